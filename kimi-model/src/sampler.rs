//! From logits to the next token.

mod logprobs;
mod options;
mod penalties;
mod random;
mod rank;

pub use logprobs::{Logprobs, TokenLogprob};
pub use options::{MAX_LOGPROBS, SamplerOptions};
pub use random::RandomState;

use crate::error::SamplerError;
use penalties::Penalties;
use random::SplitMix64;
use rank::{Candidate, Ranking};

/// Probabilities made from rounded logits miss their exact sum by less than this.
const SUM_TOLERANCE: f64 = 1e-6;

/// A seeded sampler.
///
/// A token is chosen in these steps:
///
/// 1. [`logit_bias`](SamplerOptions::logit_bias) is added to the logits.
/// 2. The penalties change the logits of tokens that came up before: [`repetition_penalty`](SamplerOptions::repetition_penalty),
///    then [`frequency_penalty`](SamplerOptions::frequency_penalty) and [`presence_penalty`](SamplerOptions::presence_penalty).
/// 3. Logits are ranked: larger ones first, of equal ones (`-0` equals `0`) the lower id.
/// 4. If `temperature` is 0, `top_k` 1 or `top_p` 0, the first is taken.
/// 5. Otherwise every token weighs `exp((logit - largest) / temperature)`. The first `top_k` are kept, of these the fewest first ones
///    that reach `top_p` of their weight, of these the ones that weigh `min_p` or more. At least one is kept.
/// 6. One random number is drawn, and the token in whose interval it falls is taken; the intervals lie in order of rank.
///
/// Steps 1 and 2 compute in float32; results beyond its range become its largest and smallest number. The weights are float64,
/// of a mathematical library that is part of the program, so that no processor or system can tip a choice.
///
/// The random numbers are SplitMix64 (Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014), which
/// starts at the seed; the upper 53 bits of an output are a fraction in `[0, 1)`. The same seed gives the same stream on every platform
/// and in every version. Greedy choice draws none.
///
/// Once the buffers have their size, with the first token, sampling allocates nothing; only a
/// [`penalty_window`](SamplerOptions::penalty_window) grows until it is full.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    vocab_size: usize,
    random: SplitMix64,
    penalties: Option<Penalties>,
    /// The logits after bias and penalties, where there are any.
    adjusted: Vec<f32>,
    ranking: Ranking,
    top: Vec<TokenLogprob>,
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Sampled<'a> {
    /// Its id.
    pub id: u32,
    /// Its log-probability, when [`SamplerOptions::logprobs`] asks for it; see [`Logprobs`].
    pub logprob: Option<f32>,
    /// As many most probable tokens as were asked for, in order of rank. The chosen one need not be among them.
    pub top: &'a [TokenLogprob],
}

impl Sampler {
    /// A sampler for a vocabulary.
    ///
    /// # Errors
    /// As [`SamplerOptions::check`].
    pub fn new(options: &SamplerOptions, vocab_size: usize) -> Result<Self, SamplerError> {
        options.check(vocab_size)?;
        Ok(Self {
            vocab_size,
            random: SplitMix64::new(options.seed),
            penalties: options.penalizes().then(|| Penalties::new(options, vocab_size)),
            adjusted: Vec::new(),
            ranking: Ranking::default(),
            top: Vec::new(),
            options: options.clone(),
        })
    }

    /// Tells of tokens that were given and not sampled. The repetition penalty counts them, the two others do not.
    pub fn prompt(&mut self, ids: &[u32]) {
        if let Some(penalties) = &mut self.penalties {
            ids.iter().for_each(|&id| penalties.push(id, false));
        }
    }

    /// Tells of the tokens before a sampler was made, each with whether it was sampled.
    pub(crate) fn history(&mut self, tokens: impl Iterator<Item = (u32, bool)>) {
        if let Some(penalties) = &mut self.penalties {
            tokens.for_each(|(id, sampled)| penalties.push(id, sampled));
        }
    }

    /// Where the random numbers stand.
    pub fn random(&self) -> RandomState {
        RandomState { seed: self.options.seed, state: self.random.state() }
    }

    /// Goes on with the random numbers of another sampler, if they began with the same seed.
    pub fn continue_random(&mut self, random: RandomState) {
        if random.seed == self.options.seed {
            self.random = SplitMix64::new(random.state);
        }
    }

    /// Chooses the next token, which counts for the penalties from now on.
    ///
    /// A logit of minus infinity forbids its token.
    ///
    /// # Errors
    /// [`SamplerError::Logit`] for a logit that is not a number or infinite, [`SamplerError::NothingLeft`] when all tokens are
    /// forbidden. The sampler is as before then.
    ///
    /// # Panics
    /// If there is not one logit per entry of the vocabulary.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled<'_>, SamplerError> {
        assert_eq!(logits.len(), self.vocab_size, "one logit per entry of the vocabulary");
        let largest = rank::largest(logits)?;
        let id = if self.adjust(logits) {
            let adjusted = std::mem::take(&mut self.adjusted);
            let id = rank::largest(&adjusted).map(|best| self.choose(&adjusted, best));
            self.adjusted = adjusted;
            id?
        } else {
            self.choose(logits, largest)
        };
        if let Some(penalties) = &mut self.penalties {
            penalties.push(id, true);
        }
        let logprob = self.options.logprobs.map(|count| {
            let total = logprobs::log_total(logits, largest);
            self.ranking.keep_best(logits, count);
            self.top.clear();
            self.top.extend(
                (0..count)
                    .map_while(|place| self.ranking.get(place))
                    .map(|best| TokenLogprob::new(best.id(), best.logit(), total)),
            );
            TokenLogprob::new(id, logits[id as usize], total).logprob
        });
        Ok(Sampled { id, logprob, top: &self.top })
    }

    /// Applies bias and penalties, if there are any.
    fn adjust(&mut self, logits: &[f32]) -> bool {
        let bias = &self.options.logit_bias;
        if bias.is_empty() && self.penalties.is_none() {
            return false;
        }
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(id, bias) in bias {
            let logit = &mut self.adjusted[id as usize];
            *logit = saturate(*logit, *logit + bias);
        }
        if let Some(penalties) = &self.penalties {
            penalties.apply(&mut self.adjusted);
        }
        true
    }

    /// The token for these logits, of which `largest` is the largest.
    fn choose(&mut self, logits: &[f32], largest: f32) -> u32 {
        let SamplerOptions { temperature, top_k, top_p, min_p, .. } = self.options;
        if temperature == 0.0 || top_k == 1 || top_p == 0.0 {
            return rank::first(logits, largest);
        }
        self.ranking.keep_best(logits, if top_k == 0 { usize::MAX } else { top_k });
        let (largest, temperature) = (f64::from(largest), f64::from(temperature));
        let weight = |candidate: Candidate| libm::exp((f64::from(candidate.logit()) - largest) / temperature);
        let whole = |ranking: &Ranking| ranking.all().iter().copied().map(weight).sum::<f64>();

        let (mut kept, mut total) = (0, 0.0);
        if top_p == 1.0 && min_p == 0.0 {
            (kept, total) = (self.ranking.all().len(), whole(&self.ranking));
        } else {
            let enough = if top_p < 1.0 {
                (f64::from(top_p) - SUM_TOLERANCE) * whole(&self.ranking)
            } else {
                f64::INFINITY
            };
            while let Some(weight) = self.ranking.get(kept).map(weight)
                // The first weighs 1, which no limit exceeds.
                && weight >= f64::from(min_p)
            {
                (kept, total) = (kept + 1, total + weight);
                if total >= enough {
                    break;
                }
            }
        }

        let mut left = self.random.fraction() * total;
        let mut id = 0;
        for place in 0..kept {
            let Some(candidate) = self.ranking.get(place) else { break };
            let weight = weight(candidate);
            // Nothing that weighs nothing is taken, even where rounding leaves something of the number.
            if weight == 0.0 {
                break;
            }
            id = candidate.id();
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
        id
    }
}

/// The logit after a change: within the finite numbers, unless the token was forbidden before.
fn saturate(before: f32, after: f32) -> f32 {
    if before == f32::NEG_INFINITY { before } else { after.clamp(f32::MIN, f32::MAX) }
}
