//! How probable tokens are for the model.

/// A token with its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// The natural logarithm of its probability: 0 or less, and finite: what is below the smallest float32 is that number.
    pub logprob: f32,
}

impl TokenLogprob {
    /// The log-probability `logit - total`.
    pub(super) fn new(id: u32, logit: f32, total: f64) -> Self {
        let logprob = f64::from(logit) - total;
        Self { id, logprob: logprob.clamp(f64::from(f32::MIN), 0.0) as f32 }
    }
}

/// `ln(sum over t of exp(logits[t]))`; `largest` is the largest logit.
pub(super) fn log_total(logits: &[f32], largest: f32) -> f64 {
    let largest = f64::from(largest);
    let total: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) - largest)).sum();
    largest + libm::log(total)
}

/// The log-probabilities of a generation.
///
/// They are those of the model, `ln softmax(logits)` at temperature 1: bias, penalties and filters do not show in them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Logprobs {
    chosen: Vec<f32>,
    top: Vec<TokenLogprob>,
}

impl Logprobs {
    /// Adds a token with its alternatives, as many as every other one has.
    pub(crate) fn push(&mut self, chosen: f32, top: &[TokenLogprob]) {
        self.chosen.push(chosen);
        self.top.extend_from_slice(top);
    }

    /// For each generated token its own log-probability, and the most probable tokens in order of rank.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (f32, &[TokenLogprob])> {
        let alternatives = self.top.len().checked_div(self.chosen.len()).unwrap_or(0);
        let top = move |place: usize| &self.top[place * alternatives..][..alternatives];
        self.chosen.iter().enumerate().map(move |(place, &chosen)| (chosen, top(place)))
    }
}
