//! Random weights that can be computed from any position on: the same bytes on every platform.
//!
//! Only integer arithmetic and IEEE additions, multiplications and square roots are used, none of which may differ between
//! systems.

use kimi_quant::fp8;
use kimi_quant::mxfp4::E2M1;

/// The increment of SplitMix64: 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Lanes of 16 bits in one output of the generator.
pub(crate) const LANES: u64 = 4;

/// A stream of 16-bit lanes that belongs to one seed and one name.
///
/// Lane `4 i + j` is bits `16 j` to `16 j + 15` of output `i` of SplitMix64 (Steele, Lea, Flood, *Fast Splittable
/// Pseudorandom Number Generators*, OOPSLA 2014), whose state is a counter, so that any output is computed alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    state: u64,
}

impl Stream {
    /// The stream of a seed and a name; the name is hashed by FNV-1a, 64 bits.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self { state: finish(seed.wrapping_add(finish(hash))) }
    }

    /// Output `i`: four lanes.
    pub(crate) fn output(self, i: u64) -> u64 {
        finish(self.state.wrapping_add(i.wrapping_add(1).wrapping_mul(GAMMA)))
    }

    /// Fills `out` with `encode(lane)` of lanes `first` on, `N` bytes each.
    ///
    /// `first` is a multiple of [`LANES`] and `out` holds whole elements.
    pub(crate) fn fill<const N: usize>(self, first: u64, out: &mut [u8], encode: impl Fn(u16) -> [u8; N]) {
        debug_assert!(first.is_multiple_of(LANES) && out.len().is_multiple_of(N));
        for (i, elements) in (first / LANES..).zip(out.as_chunks_mut().0.chunks_mut(LANES as usize)) {
            let lanes = self.output(i);
            for (j, element) in elements.iter_mut().enumerate() {
                *element = encode((lanes >> (16 * j)) as u16);
            }
        }
    }
}

/// The output function of SplitMix64.
fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What lanes turn into.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The quantile of the standard normal distribution at `(lane + 1/2) / 65536`.
    normal: Vec<f32>,
    /// E2M1 codes of normal values with a standard deviation of [`CODE_STD`], by 8 bits.
    codes: [u8; 256],
    /// Four-bit integers above -8 of the same values.
    integers: [u8; 256],
    /// E4M3 codes of normal values with a standard deviation of [`E4M3_STD`].
    e4m3: [u8; 256],
}

/// The standard deviation of codes, in units of their scale: one in a hundred is the largest.
pub(crate) const CODE_STD: f32 = 2.0;

/// The standard deviation of E4M3 codes: the largest of 65,536 are a fifth of what fits.
pub(super) const E4M3_STD: f32 = 16.0;

/// Half of the lanes' values.
const HALF: usize = 1 << 15;

impl Tables {
    pub(crate) fn new() -> Self {
        let upper = upper_quantiles();
        let normal: Vec<f32> = upper.iter().rev().map(|q| -q).chain(upper.iter().copied()).collect();
        let of_byte = |byte: usize| normal[byte * 256 + 128];
        let codes = std::array::from_fn(|byte| nearest(&E2M1, CODE_STD * of_byte(byte)));
        let integers = std::array::from_fn(|byte| (CODE_STD * of_byte(byte)).round().clamp(-8.0, 7.0) as i8)
            .map(|level: i8| (level + 8) as u8);
        let e4m3 = std::array::from_fn(|byte| nearest(&fp8::E4M3, E4M3_STD * of_byte(byte)));
        Self { normal, codes, integers, e4m3 }
    }

    /// A standard normal value.
    pub(crate) fn normal(&self, lane: u16) -> f32 {
        self.normal[usize::from(lane)]
    }

    /// Two codes.
    pub(crate) fn codes(&self, lane: u16) -> u8 {
        let [low, high] = lane.to_le_bytes().map(|byte| self.codes[usize::from(byte)]);
        low | high << 4
    }

    /// Two four-bit integers.
    pub(super) fn integers(&self, lane: u16) -> u8 {
        let [low, high] = lane.to_le_bytes().map(|byte| self.integers[usize::from(byte)]);
        low | high << 4
    }

    /// An E4M3 code.
    pub(super) fn e4m3(&self, lane: u16) -> u8 {
        self.e4m3[usize::from(lane >> 8)]
    }
}

/// The quantiles of the upper half.
///
/// The quantile function `w(p)` solves `w'' = w w'^2` with `w(1/2) = 0`, `w'(1/2) = sqrt(2 pi)` (Steinbrecher, Shaw, *Quantile
/// mechanics*, European Journal of Applied Mathematics 19, 2008). The fourth-order Runge-Kutta method needs no logarithm, whose
/// last bit differs between libraries.
fn upper_quantiles() -> Vec<f32> {
    const SUBSTEPS: usize = 32;
    let slope = |[w, v]: [f64; 2]| [v, w * v * v];
    let ahead = |[w, v]: [f64; 2], [dw, dv]: [f64; 2], h: f64| [w + h * dw, v + h * dv];
    let step = |y: [f64; 2], h: f64| {
        let a = slope(y);
        let b = slope(ahead(y, a, h / 2.0));
        let c = slope(ahead(y, b, h / 2.0));
        let d = slope(ahead(y, c, h));
        [0, 1].map(|i| y[i] + h / 6.0 * (a[i] + 2.0 * b[i] + 2.0 * c[i] + d[i]))
    };
    let mut y = [0.0, (2.0 * std::f64::consts::PI).sqrt()];
    let distance = 1.0 / (2 * HALF) as f64;
    let mut quantiles = Vec::with_capacity(HALF);
    for i in 0..HALF {
        // The first value stands half a distance from the middle.
        let h = if i == 0 { distance / 2.0 } else { distance } / SUBSTEPS as f64;
        for _ in 0..SUBSTEPS {
            y = step(y, h);
        }
        quantiles.push(y[0] as f32);
    }
    quantiles
}

/// The code of the value that is nearest; NaN is far from everything.
fn nearest(values: &[f32], value: f32) -> u8 {
    let distance = |code: &usize| (values[*code] - value).abs();
    let codes = 0..values.len();
    codes.min_by(|a, b| distance(a).total_cmp(&distance(b))).expect("there are codes") as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_those_of_splitmix64() {
        // First outputs for seed 1234567, as listed with the algorithm's public test vectors.
        let stream = Stream { state: 1_234_567 };
        assert_eq!(stream.output(0), 6_457_827_717_110_365_317);
        assert_eq!(stream.output(1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn any_part_is_computed_alone() {
        let stream = Stream::new(7, "a");
        let mut whole = [0; 2 * 103];
        stream.fill(0, &mut whole, u16::to_le_bytes);
        let mut part = [0; 2 * 63];
        stream.fill(40, &mut part, u16::to_le_bytes);
        assert_eq!(part, whole[80..]);
    }

    #[test]
    fn seeds_and_names_have_streams_of_their_own() {
        let first = |seed, name| Stream::new(seed, name).output(0);
        let outputs = [first(0, "a"), first(0, "b"), first(1, "a"), first(1, "b"), first(0, "ab")];
        for (i, output) in outputs.iter().enumerate() {
            assert!(!outputs[..i].contains(output));
        }
    }

    #[test]
    fn the_table_is_normal() {
        let tables = Tables::new();
        // Quantiles at (lane + 1/2) / 65536 from an independent implementation in double precision.
        for (lane, expected) in QUANTILES {
            let found = f64::from(tables.normal(lane));
            assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{lane}: {found} {expected}");
            assert_eq!(tables.normal(u16::MAX - lane), -tables.normal(lane));
        }
        let variance = tables.normal.iter().map(|q| f64::from(q * q)).sum::<f64>() / 65536.0;
        assert!((variance - 1.0).abs() < 1e-3, "{variance}");
        assert!(tables.normal.is_sorted());
    }

    #[test]
    fn codes_are_rounded_normal_values() {
        let tables = Tables::new();
        let values: Vec<f32> = tables.codes.iter().map(|&code| E2M1[usize::from(code)]).collect();
        assert!(values.is_sorted());
        assert_eq!((values[0], values[255]), (-6.0, 6.0));
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 256.0;
        assert!((1.9..2.1).contains(&variance.sqrt()), "{variance}");
        assert_eq!(tables.codes(0xff00), tables.codes[0] | tables.codes[255] << 4);
    }

    const QUANTILES: [(u16, f64); 5] = [
        (32768, 1.91240560515e-05),
        (40000, 0.280255334292),
        (60000, 1.37564988728),
        (65000, 2.40118296561),
        (65535, 4.32491904083),
    ];
}
