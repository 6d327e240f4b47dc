//! From logits to the next token.

use kimi_kernels::reference;

use crate::error::SamplerError;

/// How the next token is chosen.
///
/// Filters apply in this order: temperature, `top_k`, `top_p` over what is left, `min_p`. At least one token always
/// survives, and of tokens with equal logits the lower id ranks first.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SamplerOptions {
    /// Divides the logits; 0 always takes the largest.
    pub temperature: f32,
    /// Keep the `top_k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most probable tokens whose probabilities reach this sum; 1 keeps all, 0 keeps one.
    pub top_p: f32,
    /// Keep tokens at least this probable relative to the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Selects the stream of random numbers.
    pub seed: u64,
}

impl Default for SamplerOptions {
    /// Greedy.
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// Sums of rounded probabilities miss the exact sum by less than this.
const SUM_TOLERANCE: f64 = 1e-6;

/// A seeded sampler.
///
/// The same seed gives the same stream on every platform and in every version: SplitMix64 (Steele, Lea, Flood, *Fast
/// Splittable Pseudorandom Number Generators*, OOPSLA 2014), the upper 53 bits of each output as a fraction. One number
/// is drawn per sampled token, none in greedy choice. Exponentials are those of the kernels, so that no maths library
/// can tip a choice.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    state: u64,
    candidates: Vec<(f32, u32)>,
    probabilities: Vec<f64>,
}

impl Sampler {
    /// # Errors
    /// [`SamplerError`] for a temperature that is negative or not finite and for probabilities outside 0 to 1.
    pub fn new(options: SamplerOptions) -> Result<Self, SamplerError> {
        let SamplerOptions { temperature, top_p, min_p, seed, .. } = options;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(SamplerError {
                option: "temperature",
                value: temperature,
                allowed: "0 or a positive number",
            });
        }
        for (option, value) in [("top_p", top_p), ("min_p", min_p)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(SamplerError { option, value, allowed: "a number from 0 to 1" });
            }
        }
        Ok(Self { options, state: seed, candidates: Vec::new(), probabilities: Vec::new() })
    }

    /// The id of the next token. Logits must be finite, as those of a pass always are: of others, any may be taken.
    ///
    /// # Panics
    /// If there are no logits.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let greedy = argmax(logits);
        let SamplerOptions { temperature, top_k, top_p, min_p, .. } = self.options;
        if temperature == 0.0 || top_k == 1 || top_p == 0.0 {
            return greedy;
        }
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend(logits.iter().copied().zip(0..));
        let by_rank = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if (1..candidates.len()).contains(&top_k) {
            candidates.select_nth_unstable_by(top_k - 1, by_rank);
            candidates.truncate(top_k);
        }
        candidates.sort_unstable_by(by_rank);

        // Relative to the largest logit nothing overflows, however small the temperature.
        let largest = logits[greedy as usize];
        let weight = |logit: f32| f64::from(reference::exp((logit - largest) / temperature));
        self.probabilities.clear();
        self.probabilities.extend(candidates.iter().map(|&(logit, _)| weight(logit)));
        let total: f64 = self.probabilities.iter().sum();
        let mut kept = self.probabilities.len();
        if top_p < 1.0 {
            let target = f64::from(top_p) - SUM_TOLERANCE;
            let mut sum = 0.0;
            let reached = self.probabilities.iter().position(|weight| {
                sum += weight / total;
                sum >= target
            });
            kept = reached.map_or(kept, |last| last + 1);
        }
        // The most probable token has weight 1.
        kept = self.probabilities[..kept].partition_point(|&weight| weight >= f64::from(min_p)).max(1);
        let total: f64 = self.probabilities[..kept].iter().sum();
        let mut left = self.uniform() * total;
        for (weight, (_, id)) in self.probabilities[..kept].iter().zip(&self.candidates) {
            left -= weight;
            if left < 0.0 {
                return *id;
            }
        }
        // Rounding left nothing of the last interval.
        self.candidates[kept - 1].1
    }

    /// The next number in `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The index of the largest logit, the lowest of equal ones.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each token comes out of `draws` samples.
    fn counts(probabilities: &[f32], options: SamplerOptions, draws: usize) -> Vec<usize> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut sampler = Sampler::new(options).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.sample(&logits) as usize] += 1;
        }
        counts
    }

    fn options(temperature: f32) -> SamplerOptions {
        SamplerOptions { temperature, seed: 7, ..SamplerOptions::default() }
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_the_sum() {
        let probabilities = [0.15, 0.5, 0.05, 0.3];
        for (top_p, kept) in
            [(0.0, 1), (1e-9, 1), (0.5, 1), (0.6, 2), (0.8, 2), (0.81, 3), (0.95, 3), (1.0, 4)]
        {
            let counts = counts(&probabilities, SamplerOptions { top_p, ..options(1.0) }, 2000);
            let order = [1, 3, 0, 2];
            for (rank, &id) in order.iter().enumerate() {
                assert_eq!(counts[id] > 0, rank < kept, "top_p {top_p}: {counts:?}");
            }
        }
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let counts = counts(&[0.5, 0.3, 0.15, 0.05], options(1.0), 20_000);
        for (count, p) in counts.iter().zip([0.5f64, 0.3, 0.15, 0.05]) {
            // Five standard deviations of a binomial count.
            assert!((*count as f64 - 20_000.0 * p).abs() < 5.0 * (20_000.0 * p * (1.0 - p)).sqrt());
        }
    }

    #[test]
    fn zero_and_tiny_temperatures_take_the_largest_logit() {
        let logits = [1.0f32, 3.0, 3.0, -200.0];
        for temperature in [0.0, 1e-9, f32::MIN_POSITIVE] {
            let mut sampler = Sampler::new(options(temperature)).unwrap();
            assert!([1, 2].contains(&sampler.sample(&logits)));
        }
        assert_eq!(
            Sampler::new(options(0.0)).unwrap().sample(&logits),
            1,
            "of equal logits the lower id wins"
        );
    }

    #[test]
    fn top_k_and_min_p_cut_the_tail() {
        let probabilities = [0.05, 0.3, 0.5, 0.15];
        for cut in
            [SamplerOptions { top_k: 2, ..options(1.0) }, SamplerOptions { min_p: 0.4, ..options(1.0) }]
        {
            let counts = counts(&probabilities, cut, 500);
            assert!(
                counts[0] == 0 && counts[3] == 0 && counts[1] > 0 && counts[2] > 0,
                "{cut:?}: {counts:?}"
            );
        }
        let only =
            super::Sampler::new(SamplerOptions { min_p: 1.0, ..options(5.0) }).unwrap().sample(&[0.0, 1.0]);
        assert_eq!(only, 1);
    }

    #[test]
    fn of_equal_logits_top_k_keeps_the_lower_ids() {
        let counts = counts(&[0.25; 4], SamplerOptions { top_k: 2, ..options(1.0) }, 200);
        assert!(counts[0] > 0 && counts[1] > 0 && counts[2] == 0 && counts[3] == 0);
    }

    #[test]
    fn the_stream_is_fixed_by_the_seed() {
        let logits: Vec<f32> = (0..50).map(|i| (i * 37 % 50) as f32 / 20.0).collect();
        let draw = |seed| {
            let mut sampler = Sampler::new(SamplerOptions { seed, ..options(1.0) }).unwrap();
            (0..8).map(|_| sampler.sample(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // These numbers are part of the interface: a change would alter what users see for a given seed.
        assert_eq!(draw(42), EXPECTED_FOR_SEED_42);
    }

    const EXPECTED_FOR_SEED_42: [u32; 8] = [21, 8, 12, 16, 27, 14, 35, 29];

    #[test]
    fn options_out_of_range_are_refused() {
        for (temperature, top_p, min_p) in [
            (-1.0, 1.0, 0.0),
            (f32::NAN, 1.0, 0.0),
            (f32::INFINITY, 1.0, 0.0),
            (1.0, 1.0001, 0.0),
            (1.0, -0.1, 0.0),
            (1.0, f32::NAN, 0.0),
            (1.0, 1.0, 1.5),
        ] {
            let bad = SamplerOptions { temperature, top_p, min_p, ..SamplerOptions::default() };
            assert!(Sampler::new(bad).is_err(), "{bad:?}");
        }
        let error = Sampler::new(options(-1.0)).unwrap_err().to_string();
        assert_eq!(error, "temperature is -1, it must be 0 or a positive number");
    }
}
