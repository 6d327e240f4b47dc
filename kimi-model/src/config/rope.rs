//! Rotary position embedding: the fields, and what follows from them.

use std::f64::consts::PI;

use super::fields::Fields;
use crate::error::ConfigError;

/// Rotation of the shared part of queries and keys by their position.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rope {
    /// The angle of each pair of neighbouring values per position.
    pub frequencies: Vec<f64>,
    /// Factor on sines and cosines.
    pub magnitude: f64,
    /// Factor on the scale of the attention's scores.
    pub attention_scale: f64,
}

impl Rope {
    /// Writes the cosines and sines of a position, one to each pair.
    ///
    /// Angles are float64 and rounded once, after the sine: float32 angles are off by hundredths at the end of a long context.
    pub(crate) fn angles(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        for ((&frequency, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
            let (s, c) = (position as f64 * frequency).sin_cos();
            *cos = (c * self.magnitude) as f32;
            *sin = (s * self.magnitude) as f32;
        }
    }
}

/// Bound on the numbers of YaRN: no factor that follows from them is infinite.
const LARGEST: f64 = 1e12;

/// Reads the rotation of `width` values of each head. Some tools move all of its fields into `rope_parameters`.
///
/// Plain frequencies are `theta^(-2j / width)`. YaRN (Peng et al. 2023, section 3.2, with the attention factors of DeepSeek-V2)
/// divides the slow ones by `factor` and blends between `beta_fast` and `beta_slow` turns over the original context.
pub(super) fn rope(text: &Fields<'_>, width: usize) -> Result<Rope, ConfigError> {
    if !width.is_multiple_of(2) {
        let reason = "values are rotated in pairs";
        return Err(text.unsupported("qk_rope_head_dim", &width.to_string(), reason));
    }
    let parameters = text.nested("rope_parameters")?;
    let theta = match (text.holds("rope_theta"), &parameters) {
        (false, Some(parameters)) => parameters.required::<f64>("rope_theta")?,
        _ => text.required::<f64>("rope_theta")?,
    };
    if !(theta > 1.0 && theta.is_finite()) {
        return Err(text.unsupported("rope_theta", &theta.to_string(), "it must be above 1"));
    }
    let pairs = width / 2;
    let plain = (0..pairs).map(|j| theta.powf(-2.0 * j as f64 / width as f64));
    let scaling = match text.nested("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => parameters,
    };
    let Some(scaling) = scaling else {
        return Ok(Rope { frequencies: plain.collect(), magnitude: 1.0, attention_scale: 1.0 });
    };
    let field = if scaling.holds("rope_type") { "rope_type" } else { "type" };
    match scaling.optional::<String>(field)?.as_deref() {
        Some("yarn") => {}
        None | Some("default") => {
            return Ok(Rope { frequencies: plain.collect(), magnitude: 1.0, attention_scale: 1.0 });
        }
        Some(other) => return Err(scaling.unsupported(field, other, "known: `yarn`, `default`")),
    }
    let number = |field: &str, default: f64| match scaling.optional::<f64>(field)? {
        Some(value) if (0.0..LARGEST).contains(&value) => Ok(value),
        Some(value) => Err(scaling.unsupported(field, &value.to_string(), "it must be from 0 to 1e12")),
        None => Ok(default),
    };
    let positive = |field: &str, value: f64| match value {
        value if value > 0.0 && value < LARGEST => Ok(value),
        value => Err(scaling.unsupported(field, &value.to_string(), "it must be positive, up to 1e12")),
    };
    let required = |field: &str| positive(field, scaling.required(field)?);
    let beta = |field: &str, default: f64| positive(field, scaling.optional(field)?.unwrap_or(default));
    let (factor, original) = (required("factor")?, required("original_max_position_embeddings")?);
    let (fast, slow) = (beta("beta_fast", 32.0)?, beta("beta_slow", 1.0)?);
    let (mscale, mscale_all) = (number("mscale", 1.0)?, number("mscale_all_dim", 0.0)?);

    // The pair that turns so many times over the original context.
    let pair = |turns: f64| width as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let low = pair(fast).floor().max(0.0);
    let high = pair(slow).ceil().min(width as f64 - 1.0);
    let span = if high == low { 0.001 } else { high - low };
    let frequencies = plain.enumerate().map(|(j, frequency)| {
        let ramp = ((j as f64 - low) / span).clamp(0.0, 1.0);
        frequency * (1.0 - ramp) + frequency / factor * ramp
    });
    let magnitude = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
    let both = mscale > 0.0 && mscale_all > 0.0;
    Ok(Rope {
        frequencies: frequencies.collect(),
        magnitude: if both { magnitude(mscale) / magnitude(mscale_all) } else { magnitude(1.0) },
        attention_scale: if mscale_all > 0.0 { magnitude(mscale_all).powi(2) } else { 1.0 },
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::config::fields::Document;

    fn read(fields: &Value, width: usize) -> Result<Rope, ConfigError> {
        let json = fields.to_string();
        let document = Document::parse(json.as_bytes(), Path::new("config.json"))?;
        rope(&document.fields(), width)
    }

    fn yarn(change: impl FnOnce(&mut Value)) -> Value {
        let mut scaling = json!({
            "type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096
        });
        change(&mut scaling);
        json!({"rope_theta": 50000.0, "rope_scaling": scaling})
    }

    #[test]
    fn plain_frequencies_are_powers_of_theta() {
        let rope = read(&json!({"rope_theta": 10000.0, "rope_scaling": null}), 4).unwrap();
        assert_eq!(rope, Rope { frequencies: vec![1.0, 0.01], magnitude: 1.0, attention_scale: 1.0 });
        let (mut cos, mut sin) = ([f32::NAN; 2], [f32::NAN; 2]);
        rope.angles(262_143, &mut cos, &mut sin);
        let expected = [262_143f64, 2621.43].map(|angle| [angle.cos() as f32, angle.sin() as f32]);
        assert_eq!([[cos[0], sin[0]], [cos[1], sin[1]]], expected);
    }

    /// Numbers of the released text part of K2.5.
    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let rope = read(&yarn(|_| {}), 64).unwrap();
        assert_eq!(rope.frequencies.len(), 32);
        assert_eq!(rope.frequencies[0], 1.0);
        let plain = 50000f64.powf(-62.0 / 64.0);
        assert!((rope.frequencies[31] / (plain / 64.0) - 1.0).abs() < 1e-12);
        assert!(rope.frequencies.is_sorted_by(|a, b| a > b));
        assert_eq!(rope.magnitude, 1.0);
        assert!((rope.attention_scale - 2.0048).abs() < 1e-4);
    }

    #[test]
    fn the_magnitude_is_the_ratio_of_both_factors() {
        let only = read(&yarn(|y| y["mscale_all_dim"] = Value::Null), 64).unwrap();
        assert!((only.magnitude - 1.41589).abs() < 1e-4 && only.attention_scale == 1.0);
        let half = read(&yarn(|y| y["mscale"] = json!(0.5)), 64).unwrap();
        assert!((half.magnitude - 1.20794 / 1.41589).abs() < 1e-4);
    }

    #[test]
    fn the_newer_spelling_reads_the_same() {
        let old = yarn(|_| {});
        let mut parameters = old["rope_scaling"].clone();
        parameters["rope_theta"] = old["rope_theta"].clone();
        parameters["rope_type"] = json!("yarn");
        let new = json!({"rope_parameters": parameters});
        assert_eq!(read(&new, 64).unwrap(), read(&old, 64).unwrap());
        let plain = json!({"rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}});
        assert_eq!(read(&plain, 64).unwrap(), read(&json!({"rope_theta": 50000.0}), 64).unwrap());
    }

    #[test]
    fn what_is_no_rotation_is_refused_with_its_field() {
        for (fields, width, field) in [
            (json!({}), 64, "rope_theta"),
            (json!({"rope_theta": 1.0}), 64, "rope_theta"),
            (json!({"rope_theta": "x"}), 64, "rope_theta"),
            (json!({"rope_theta": 50000.0}), 63, "qk_rope_head_dim"),
            (yarn(|y| y["type"] = json!("longrope")), 64, "longrope"),
            (yarn(|y| y["factor"] = json!(0.0)), 64, "rope_scaling.factor"),
            (yarn(|y| y["factor"] = Value::Null), 64, "rope_scaling.factor"),
            (yarn(|y| y["beta_fast"] = json!(-1)), 64, "rope_scaling.beta_fast"),
            (yarn(|y| y["beta_slow"] = json!(0)), 64, "rope_scaling.beta_slow"),
            (yarn(|y| y["mscale"] = json!(-1)), 64, "rope_scaling.mscale"),
            (
                yarn(|y| y["original_max_position_embeddings"] = json!([])),
                64,
                "original_max_position_embeddings",
            ),
        ] {
            let message = read(&fields, width).unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        }
    }
}
