//! What came up before, and what that does to logits.

use std::collections::VecDeque;

use super::options::SamplerOptions;
use super::saturate;

/// How often each token stands in the window, and the three penalties.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Tokens to look back at; 0 is all of them.
    window: usize,
    /// The tokens of the window, each with whether it was sampled; empty without a window.
    recent: VecDeque<(u32, bool)>,
    counts: Vec<Counts>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    all: u32,
    sampled: u32,
}

impl Penalties {
    pub(super) fn new(options: &SamplerOptions, vocab_size: usize) -> Self {
        Self {
            repetition: options.repetition_penalty,
            presence: options.presence_penalty,
            frequency: options.frequency_penalty,
            window: options.penalty_window,
            recent: VecDeque::new(),
            counts: vec![Counts::default(); vocab_size],
        }
    }

    /// Takes up a token; the oldest one leaves a full window. Ids outside the vocabulary have no logits and only take their place.
    pub(super) fn push(&mut self, id: u32, sampled: bool) {
        if self.window > 0 {
            if self.recent.len() == self.window
                && let Some((oldest, sampled)) = self.recent.pop_front()
                && let Some(counts) = self.counts.get_mut(oldest as usize)
            {
                counts.all -= 1;
                counts.sampled -= u32::from(sampled);
            }
            self.recent.push_back((id, sampled));
        }
        if let Some(counts) = self.counts.get_mut(id as usize) {
            counts.all += 1;
            counts.sampled += u32::from(sampled);
        }
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (logit, counts) in logits.iter_mut().zip(&self.counts) {
            if counts.all > 0 {
                let before = *logit;
                let repeated = if before > 0.0 { before / self.repetition } else { before * self.repetition };
                *logit = saturate(before, repeated);
                if counts.sampled > 0 {
                    let taken = (self.frequency * counts.sampled as f32).clamp(f32::MIN, f32::MAX);
                    *logit = saturate(before, saturate(before, *logit - taken) - self.presence);
                }
            }
        }
    }
}
