//! Dynamic quantization of activations: symmetric int8 with one scale per group along K.
//!
//! `scale = max |x| / 127` and `code = round(x / scale)`, ties to even. A group of zeros, or of values so small that the scale is
//! zero, has scale 0 and codes 0. A group that holds a NaN or an infinity has scale NaN and codes 0: the result of any product
//! with it is NaN, never a plausible number.

use crate::quantize::round;

/// The largest code.
pub const MAX_CODE: f32 = 127.0;

/// Quantizes one column: `codes` has its length, `scales` one value per group of `group_size`, the last of which may be shorter.
///
/// # Panics
/// If the lengths do not fit or `group_size` is 0.
pub fn quantize_column(x: &[f32], group_size: usize, codes: &mut [i8], scales: &mut [f32]) {
    assert_eq!(
        (codes.len(), scales.len()),
        (x.len(), x.len().div_ceil(group_size)),
        "codes and scales fit x"
    );
    for ((x, codes), scale) in x.chunks(group_size).zip(codes.chunks_mut(group_size)).zip(scales) {
        *scale = quantize_group(x, codes);
    }
}

/// The largest magnitude; NaN where there is one.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |max, x| if max >= x.abs() || max.is_nan() { max } else { x.abs() })
}

/// Quantizes one group and returns its scale.
#[inline(always)]
pub fn quantize_group(x: &[f32], codes: &mut [i8]) -> f32 {
    let max = largest(x);
    if !max.is_finite() {
        codes.fill(0);
        return f32::NAN;
    }
    let scale = max / MAX_CODE;
    if scale == 0.0 {
        codes.fill(0);
        return 0.0;
    }
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = round(x / scale).clamp(-MAX_CODE, MAX_CODE) as i8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_value_has_the_largest_code_and_ties_go_to_even() {
        let mut codes = [0; 6];
        let scale = quantize_group(&[127.0, -127.0, 0.5, 1.5, -2.5, 0.0], &mut codes);
        assert_eq!((scale, codes), (1.0, [127, -127, 0, 2, -2, 0]));
    }

    #[test]
    fn groups_at_the_edges_are_defined() {
        let mut codes = [1; 2];
        assert_eq!((quantize_group(&[0.0, -0.0], &mut codes), codes), (0.0, [0, 0]));
        let smallest = f32::from_bits(1);
        assert_eq!((quantize_group(&[smallest, 0.0], &mut codes), codes), (0.0, [0, 0]));
        let scale = quantize_group(&[f32::MAX, -f32::MAX], &mut codes);
        assert_eq!((scale, codes), (f32::MAX / 127.0, [127, -127]));
        // A subnormal scale is coarse, and codes stay in range.
        let scale = quantize_group(&[smallest * 200.0, smallest * 90.0], &mut codes);
        assert_eq!((scale, codes), (smallest * 2.0, [100, 45]));
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for x in [[wrong, 1.0], [1.0, wrong]] {
                assert!(quantize_group(&x, &mut codes).is_nan());
                assert_eq!(codes, [0, 0]);
            }
        }
        assert_eq!(quantize_group(&[], &mut []), 0.0);
    }

    proptest! {
        #[test]
        fn no_value_moves_by_more_than_half_a_step(len in 0usize..200, group in prop::sample::select(vec![32usize, 64, 128]), seed: u64) {
            let x = Seeded::new(seed).normals(len, 3.0);
            let (mut codes, mut scales) = (vec![0; len], vec![0.0; len.div_ceil(group)]);
            quantize_column(&x, group, &mut codes, &mut scales);
            for (i, (&x, &code)) in x.iter().zip(&codes).enumerate() {
                let scale = scales[i / group];
                prop_assert!((x - f32::from(code) * scale).abs() <= 0.5001 * scale);
            }
        }
    }
}
