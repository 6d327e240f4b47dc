//! The random numbers.

/// Where a stream of random numbers stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RandomState {
    /// The seed that it began with.
    pub seed: u64,
    /// The generator's state.
    pub state: u64,
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn state(&self) -> u64 {
        self.0
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number in `[0, 1)`, a multiple of 2^-53.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_those_of_splitmix64() {
        // First outputs for seed 1234567, as listed with the algorithm's public test vectors.
        let mut random = SplitMix64::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(expected.map(|_| random.next()), expected);
        for seed in [0, 1, u64::MAX] {
            let mut random = SplitMix64::new(seed);
            assert!((0..1000).all(|_| (0.0..1.0).contains(&random.fraction())));
        }
    }
}
