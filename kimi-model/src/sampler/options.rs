//! How tokens are chosen.

use crate::error::SamplerError;

/// The most alternatives per token that are reported, as many as hosted interfaces give.
pub const MAX_LOGPROBS: usize = 20;

/// How the next token is chosen. [`Sampler`](crate::Sampler) tells in which order the options act.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SamplerOptions {
    /// Divides the logits; 0 always takes the largest. At least 0, finite.
    pub temperature: f32,
    /// Keep the `top_k` first tokens; 0 keeps all, as any number does that the vocabulary does not exceed.
    pub top_k: usize,
    /// Keep the smallest set of first tokens whose probabilities reach this sum, from 0 to 1; 1 keeps all, 0 keeps one.
    pub top_p: f32,
    /// Keep tokens at least this probable relative to the most probable one, from 0 to 1; 0 keeps all, 1 those equal to the first.
    pub min_p: f32,
    /// Divides positive logits of tokens of the context, the prompt included, and multiplies negative ones (Keskar and others, *CTRL*,
    /// 2019, section 4.1). Positive, finite; 1 changes nothing, less encourages repetition.
    pub repetition_penalty: f32,
    /// Taken once from the logits of tokens that were sampled before. Finite; 0 changes nothing, negative numbers encourage repetition.
    pub presence_penalty: f32,
    /// Taken from the logits of tokens that were sampled before, as often as they were. As `presence_penalty`.
    pub frequency_penalty: f32,
    /// The three penalties look at so many of the last tokens, those of the prompt counted; 0 is all of them.
    pub penalty_window: usize,
    /// Added to the logits of tokens: ids below the size of the vocabulary, each at most once, with finite numbers.
    pub logit_bias: Vec<(u32, f32)>,
    /// Report log-probabilities: of the chosen token and of this many most probable ones, at most [`MAX_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// Selects the stream of random numbers.
    pub seed: u64,
}

impl Default for SamplerOptions {
    /// Greedy.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 0,
            logit_bias: Vec::new(),
            logprobs: None,
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// Whether all options are in their ranges, for a vocabulary.
    ///
    /// # Errors
    /// The first of [`SamplerError::Range`], [`SamplerError::Bias`] and [`SamplerError::Logprobs`].
    pub fn check(&self, vocab_size: usize) -> Result<(), SamplerError> {
        type Allowed = (&'static str, fn(f32) -> bool);
        const NOT_NEGATIVE: Allowed = ("0 or a positive number", |value| value >= 0.0 && value.is_finite());
        const POSITIVE: Allowed = ("a positive number", |value| value > 0.0 && value.is_finite());
        const NUMBER: Allowed = ("a finite number", f32::is_finite);
        const FRACTION: Allowed = ("a number from 0 to 1", |value| (0.0..=1.0).contains(&value));
        for (option, value, (allowed, is_allowed)) in [
            ("temperature", self.temperature, NOT_NEGATIVE),
            ("top_p", self.top_p, FRACTION),
            ("min_p", self.min_p, FRACTION),
            ("repetition_penalty", self.repetition_penalty, POSITIVE),
            ("presence_penalty", self.presence_penalty, NUMBER),
            ("frequency_penalty", self.frequency_penalty, NUMBER),
        ] {
            if !is_allowed(value) {
                return Err(SamplerError::Range { option, value, allowed });
            }
        }
        for (place, &(id, bias)) in self.logit_bias.iter().enumerate() {
            let reason = if id as usize >= vocab_size {
                format!("the vocabulary has {vocab_size} entries")
            } else if !bias.is_finite() {
                format!("{bias} is not a finite number")
            } else if self.logit_bias[..place].iter().any(|&(other, _)| other == id) {
                "the token has one already".to_owned()
            } else {
                continue;
            };
            return Err(SamplerError::Bias { id, reason });
        }
        match self.logprobs {
            Some(count) if count > MAX_LOGPROBS => Err(SamplerError::Logprobs { count, max: MAX_LOGPROBS }),
            _ => Ok(()),
        }
    }

    /// Whether any penalty changes anything.
    pub(super) fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}
