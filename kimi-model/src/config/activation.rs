//! The gated activation of the feed-forward layers.

use kimi_kernels::{Kernels, Situ};

use super::fields::Fields;
use crate::error::ConfigError;

/// What happens to the gate branch and the linear branch of a feed-forward.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "the family has these two")]
pub enum Activation {
    /// `gate * sigmoid(gate) * up`.
    Silu,
    /// Soft caps on both branches.
    Situ(Situ<f32>),
}

impl Activation {
    /// Replaces `gate` by the activation of both branches.
    pub(crate) fn apply(self, kernels: Kernels, gate: &mut [f32], up: &[f32]) {
        match self {
            Self::Silu => kernels.swiglu(gate, up),
            Self::Situ(constants) => kernels.situ(gate, up, constants),
        }
    }
}

pub(super) fn activation(text: &Fields<'_>) -> Result<Activation, ConfigError> {
    let beta: Option<f32> = text.optional("activation_situ_beta")?;
    let linear_beta: Option<f32> = text.optional("activation_situ_linear_beta")?;
    match text.optional::<String>("hidden_act")?.as_deref() {
        Some("silu") => return Ok(Activation::Silu),
        Some("situ") => {}
        // Checkpoints made by tools leave the name out; the constants say which activation it is.
        None if beta.is_some() => {}
        None => return Err(text.missing("hidden_act")),
        Some(other) => return Err(text.unsupported("hidden_act", other, "known: `situ`, `silu`")),
    }
    for (field, value) in [("activation_situ_beta", beta), ("activation_situ_linear_beta", linear_beta)] {
        if let Some(value) = value
            && !(value > 0.0 && value.is_finite())
        {
            return Err(text.unsupported(field, &value.to_string(), "it must be positive"));
        }
    }
    Ok(Activation::Situ(Situ { beta: beta.unwrap_or(1.0), linear_beta }))
}
