//! The definition of sampling, written as plainly as it reads.

use kimi_model::SamplerOptions;

/// Samples by sorting everything.
pub(crate) struct Reference {
    options: SamplerOptions,
    state: u64,
    /// All tokens, each with whether it was sampled.
    context: Vec<(u32, bool)>,
}

impl Reference {
    pub(crate) fn new(options: &SamplerOptions) -> Self {
        Self { options: options.clone(), state: options.seed, context: Vec::new() }
    }

    pub(crate) fn prompt(&mut self, ids: &[u32]) {
        self.context.extend(ids.iter().map(|&id| (id, false)));
    }

    pub(crate) fn sample(&mut self, logits: &[f32]) -> u32 {
        let kept = self.kept(logits);
        let mut id = kept[0].0;
        if kept.len() > 1 || !self.is_greedy() {
            let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
            let mut left = self.fraction() * total;
            for (candidate, weight) in kept {
                id = candidate;
                left -= weight;
                if left < 0.0 {
                    break;
                }
            }
        }
        self.context.push((id, true));
        id
    }

    /// The probability of each token.
    pub(crate) fn probabilities(&self, logits: &[f32]) -> Vec<f64> {
        let kept = self.kept(logits);
        let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
        let mut probabilities = vec![0.0; logits.len()];
        kept.into_iter().for_each(|(id, weight)| probabilities[id as usize] = weight / total);
        probabilities
    }

    fn is_greedy(&self) -> bool {
        self.options.temperature == 0.0 || self.options.top_k == 1 || self.options.top_p == 0.0
    }

    /// The tokens that may be chosen, in order of rank, with their weights.
    fn kept(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let mut ranked: Vec<(u32, f32)> =
            (0..).zip(logits).map(|(id, &logit)| (id, self.adjusted(id, logit))).collect();
        ranked.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
        ranked.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        if self.is_greedy() {
            return vec![(ranked[0].0, 1.0)];
        }
        if self.options.top_k > 0 {
            ranked.truncate(self.options.top_k);
        }
        let largest = f64::from(ranked[0].1);
        let weight = |logit: f32| ((f64::from(logit) - largest) / f64::from(self.options.temperature)).exp();
        let mut kept: Vec<(u32, f64)> = ranked.iter().map(|&(id, logit)| (id, weight(logit))).collect();
        if self.options.top_p < 1.0 {
            let all: f64 = kept.iter().map(|&(_, weight)| weight).sum();
            let reached = (1..=kept.len()).find(|&count| {
                let sum: f64 = kept[..count].iter().map(|&(_, weight)| weight).sum();
                sum / all >= f64::from(self.options.top_p) - 1e-6
            });
            kept.truncate(reached.unwrap());
        }
        let least = f64::from(self.options.min_p);
        kept.retain(|&(_, weight)| weight >= least);
        kept
    }

    fn adjusted(&self, id: u32, logit: f32) -> f32 {
        let options = &self.options;
        let start = match options.penalty_window {
            0 => 0,
            window => self.context.len().saturating_sub(window),
        };
        let all = self.context[start..].iter().filter(|token| token.0 == id).count();
        let sampled = self.context[start..].iter().filter(|token| token.0 == id && token.1).count();
        let mut logit = logit;
        for &(biased, bias) in &options.logit_bias {
            if biased == id {
                logit += bias;
            }
        }
        if all > 0 {
            logit = match logit > 0.0 {
                true => logit / options.repetition_penalty,
                false => logit * options.repetition_penalty,
            };
        }
        logit -= options.frequency_penalty * sampled as f32;
        logit - if sampled > 0 { options.presence_penalty } else { 0.0 }
    }

    fn fraction(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 * 0.5f64.powi(53)
    }
}

/// Logits with these probabilities.
pub(crate) fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}
