//! How tokens are chosen.

use clap::Args;
use kimi_model::SamplerOptions;

/// What is not given is left to `generation_config.json`, and then to the library.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// 0 always takes the most probable token [default: as the model folder says, else 0; for the demo model 0.6]
    #[arg(long, allow_negative_numbers = true, value_name = "T")]
    temperature: Option<f32>,
    /// Sample from this many most probable tokens; 0 is all [default: as the model folder says, else 0]
    #[arg(long, allow_negative_numbers = true, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the smallest set of tokens that reaches this probability [default: as the model folder says, else 1]
    #[arg(long, allow_negative_numbers = true, value_name = "P")]
    top_p: Option<f32>,
    /// Sample from tokens at least this probable relative to the most probable one [default: as the model folder says,
    /// else 0]
    #[arg(long, allow_negative_numbers = true, value_name = "P")]
    min_p: Option<f32>,
    /// Divide positive logits of tokens of the prompt and the text by this, multiply negative ones [default: as the model
    /// folder says, else 1]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Take this from the logits of tokens that were generated before [default: as the model folder says, else 0]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    presence_penalty: Option<f32>,
    /// Take this from the logit of a token for each time that it was generated [default: as the model folder says, else 0]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    frequency_penalty: Option<f32>,
    /// The penalties look at this many of the last tokens; 0 is all
    #[arg(long, value_name = "N", default_value_t = 0)]
    penalty_window: usize,
    /// Add BIAS to the logit of a token; may be given several times
    #[arg(long, value_name = "ID:BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Report the log-probability of every token, and of the N most probable ones in its place (at most 20)
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
    /// Selects the random numbers [default: that of --load-state, else 0]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl SamplingArgs {
    /// Sets what was given.
    pub(crate) fn apply(&self, options: &mut SamplerOptions) {
        options.temperature = self.temperature.unwrap_or(options.temperature);
        options.top_k = self.top_k.unwrap_or(options.top_k);
        options.top_p = self.top_p.unwrap_or(options.top_p);
        options.min_p = self.min_p.unwrap_or(options.min_p);
        options.repetition_penalty = self.repetition_penalty.unwrap_or(options.repetition_penalty);
        options.presence_penalty = self.presence_penalty.unwrap_or(options.presence_penalty);
        options.frequency_penalty = self.frequency_penalty.unwrap_or(options.frequency_penalty);
        options.penalty_window = self.penalty_window;
        options.logit_bias.clone_from(&self.logit_bias);
        options.logprobs = self.logprobs;
        options.seed = self.seed.unwrap_or(options.seed);
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "must be ID:BIAS, like 42:-1.5".to_owned();
    let (id, bias) = text.split_once(':').ok_or_else(wrong)?;
    Ok((id.parse().map_err(|_| wrong())?, bias.parse().map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_an_id_and_a_number() {
        assert_eq!(parse_bias("42:-1.5"), Ok((42, -1.5)));
        assert_eq!(parse_bias("0:1e3"), Ok((0, 1e3)));
        for text in ["", "42", "42:", ":1", "-1:1", "4294967296:1", "1:2:3", "1: 2", "a:1"] {
            assert!(parse_bias(text).is_err(), "{text}");
        }
    }
}
