//! What `run` reports of its sampling.

use kimi_model::{Config, GenerateOptions, Logprobs, SamplerOptions, TokenLogprob};
use serde::Serialize;

/// The settings that were used, wherever they come from.
#[derive(Debug, Serialize)]
pub(super) struct SamplingReport<'a> {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    penalty_window: usize,
    logit_bias: Vec<BiasReport>,
    seed: u64,
    eos_token_ids: &'a [u32],
}

#[derive(Debug, Serialize)]
struct BiasReport {
    id: u32,
    bias: f32,
}

impl<'a> SamplingReport<'a> {
    pub(super) fn new(options: &'a GenerateOptions, config: &'a Config) -> Self {
        let SamplerOptions { temperature, top_k, top_p, min_p, penalty_window, seed, .. } = options.sampler;
        let SamplerOptions { repetition_penalty, presence_penalty, frequency_penalty, .. } = options.sampler;
        let bias = &options.sampler.logit_bias;
        Self {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            penalty_window,
            logit_bias: bias.iter().map(|&(id, bias)| BiasReport { id, bias }).collect(),
            seed,
            eos_token_ids: options.eos_token_ids.as_ref().unwrap_or(&config.eos_token_ids),
        }
    }
}

/// The log-probability of a generated token, and the most probable ones in its place.
#[derive(Debug, Serialize)]
pub(super) struct LogprobReport {
    id: u32,
    logprob: f32,
    top: Vec<AlternativeReport>,
}

#[derive(Debug, Serialize)]
struct AlternativeReport {
    id: u32,
    logprob: f32,
}

impl LogprobReport {
    pub(super) fn all(ids: &[u32], logprobs: &Logprobs) -> Vec<Self> {
        let alternative =
            |&TokenLogprob { id, logprob, .. }: &TokenLogprob| AlternativeReport { id, logprob };
        ids.iter()
            .zip(logprobs.iter())
            .map(|(&id, (logprob, top))| Self { id, logprob, top: top.iter().map(alternative).collect() })
            .collect()
    }
}
