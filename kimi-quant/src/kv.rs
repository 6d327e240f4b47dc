//! Rows of a key-value cache: int8 with two scales, int4 after a rotation.
//!
//! A row is a *content* part and a *rest* with a range of its own (512 and 64 values in Kimi K3).
//!
//! * **I8**: two float32 scales, content and rest, then one signed byte per value.
//! * **I4**: the row is rotated by a Hadamard matrix of 64 in each whole 64 values of a part, which spreads outliers; then two
//!   float32 scales and a nibble per value: code minus 8, the even value low.
//!
//! The rotation is its own inverse and keeps dot products: a query that was rotated once meets rotated rows as it would have
//! met the rows themselves.

use crate::activations::{largest, quantize_group};
use crate::quantize::round;

/// Values that a rotation mixes.
pub const HADAMARD: usize = 64;

/// Bytes of the two scales.
pub const SCALE_BYTES: usize = 8;

/// How a row is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "callers match on both")]
pub enum RowFormat {
    /// A byte per value.
    I8,
    /// A nibble per value, rotated.
    I4,
}

impl RowFormat {
    /// Bytes of a row of `len` values.
    pub const fn bytes(self, len: usize) -> usize {
        SCALE_BYTES
            + match self {
                Self::I8 => len,
                Self::I4 => len.div_ceil(2),
            }
    }

    /// Stores a row whose first `content` values have a scale of their own. The row itself is rotated meanwhile where the format
    /// rotates, and stays so.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn encode(self, row: &mut [f32], content: usize, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes(row.len()), "the bytes of a row");
        let (scales, codes) = out.split_at_mut(SCALE_BYTES);
        let (first, second) = row.split_at_mut(content);
        match self {
            Self::I8 => {
                let (a, b) = codes.split_at_mut(content);
                for ((values, codes), scale) in
                    [(first, a), (second, b)].into_iter().zip(scales.chunks_exact_mut(4))
                {
                    let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
                    scale.copy_from_slice(&quantize_group(values, codes).to_le_bytes());
                }
            }
            Self::I4 => {
                codes.fill(0);
                let mut at = 0;
                for (values, scale) in [first, second].into_iter().zip(scales.chunks_exact_mut(4)) {
                    rotate(values);
                    let max = largest(values);
                    let step = if max.is_finite() { max / 7.0 } else { f32::NAN };
                    scale.copy_from_slice(&step.to_le_bytes());
                    for &value in &*values {
                        let level = if step > 0.0 { round(value / step).clamp(-7.0, 7.0) } else { 0.0 };
                        codes[at / 2] |= ((level as i8 + 8) as u8) << (at % 2 * 4);
                        at += 1;
                    }
                }
            }
        }
    }

    /// Reads a row back. Rows of [`I4`](Self::I4) come back rotated; [`rotate`] turns them once more.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn decode(self, bytes: &[u8], content: usize, out: &mut [f32]) {
        assert_eq!(bytes.len(), self.bytes(out.len()), "the bytes of a row");
        let (scales, codes) = bytes.split_at(SCALE_BYTES);
        let [a, b] = [0, 4].map(|at| scale(scales, at));
        match self {
            Self::I8 => {
                for (value, &code) in out.iter_mut().zip(codes) {
                    *value = f32::from(code as i8);
                }
            }
            Self::I4 => {
                let level = |nibble: u8| f32::from(nibble as i8 - 8);
                let (pairs, last) = out.as_chunks_mut();
                for ([even, odd], &code) in pairs.iter_mut().zip(codes) {
                    (*even, *odd) = (level(code & 15), level(code >> 4));
                }
                if let ([value], Some(&code)) = (last, codes.last()) {
                    *value = level(code & 15);
                }
            }
        }
        let (first, second) = out.split_at_mut(content);
        first.iter_mut().for_each(|value| *value *= a);
        second.iter_mut().for_each(|value| *value *= b);
    }

    /// The dot product of a stored row with a query of int8 codes and two scales of its own (rotated first, for
    /// [`I4`](Self::I4)): two exact integer sums, then `fma(rest, its scales, content * its scales)`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn dot(self, bytes: &[u8], content: usize, query: &[i8], query_scales: [f32; 2]) -> f32 {
        assert_eq!(bytes.len(), self.bytes(query.len()), "the bytes of a row");
        let (scales, codes) = bytes.split_at(SCALE_BYTES);
        let mut sums = [0i32; 2];
        for (i, &q) in query.iter().enumerate() {
            let level = match self {
                Self::I8 => i32::from(codes[i] as i8),
                Self::I4 => i32::from(codes[i / 2] >> (i % 2 * 4) & 15) - 8,
            };
            sums[usize::from(i >= content)] += level * i32::from(q);
        }
        let factors = [scale(scales, 0) * query_scales[0], scale(scales, 4) * query_scales[1]];
        let content = sums[0] as f32 * factors[0];
        num_traits::Float::mul_add(sums[1] as f32, factors[1], content)
    }
}

fn scale(scales: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]])
}

/// Multiplies each whole 64 values by the orthonormal Hadamard matrix `H[i, j] = (-1)^popcount(i & j) / 8`. The rest stays.
pub fn rotate(values: &mut [f32]) {
    for values in values.as_chunks_mut::<HADAMARD>().0 {
        let mut width = 1;
        while width < HADAMARD {
            for pair in values.chunks_exact_mut(2 * width) {
                let (low, high) = pair.split_at_mut(width);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            width *= 2;
        }
        values.iter_mut().for_each(|value| *value *= 0.125);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;
    use crate::metrics::compare;

    fn row(seed: u64) -> Vec<f32> {
        let mut seeded = Seeded::new(seed);
        let mut row = seeded.normals(512, 1.0);
        row.extend(seeded.normals(64, 8.0));
        row
    }

    fn stored(format: RowFormat, row: &[f32], content: usize) -> Vec<u8> {
        let (mut row, mut bytes) = (row.to_vec(), vec![0xaa; format.bytes(row.len())]);
        format.encode(&mut row, content, &mut bytes);
        bytes
    }

    #[test]
    fn rows_come_back_within_their_precision() {
        let row = row(1);
        let mut out = vec![0.0; 576];
        let eight = stored(RowFormat::I8, &row, 512);
        RowFormat::I8.decode(&eight, 512, &mut out);
        assert_eq!(eight.len(), 584);
        assert!(
            compare(&row[..512], &out[..512]).relative_rms < 0.01,
            "the large rest does not hurt the content"
        );
        let four = stored(RowFormat::I4, &row, 512);
        RowFormat::I4.decode(&four, 512, &mut out);
        rotate(&mut out);
        assert_eq!(four.len(), 296);
        assert!(compare(&row, &out).relative_rms < 0.17);
    }

    #[test]
    fn a_rotation_spreads_an_outlier_and_is_its_own_inverse() {
        let mut values = vec![0.0; 130];
        values[3] = 8.0;
        values[129] = 5.0;
        rotate(&mut values);
        assert!(values[..64].iter().all(|value| value.abs() == 1.0) && values[129] == 5.0);
        rotate(&mut values);
        assert_eq!((values[3], values[4], values[129]), (8.0, 0.0, 5.0));
    }

    #[test]
    fn zeros_and_broken_rows_are_defined() {
        let mut out = vec![1.0; 96];
        for format in [RowFormat::I8, RowFormat::I4] {
            format.decode(&stored(format, &[0.0; 96], 64), 64, &mut out);
            assert!(out.iter().all(|&value| value == 0.0));
            let mut broken = vec![1.0; 96];
            broken[70] = f32::INFINITY;
            format.decode(&stored(format, &broken, 64), 64, &mut out);
            assert!(out[..64].iter().all(|value| value.is_finite()) && out[70].is_nan());
        }
    }

    proptest! {
        #[test]
        fn integer_dots_are_dots_of_the_decoded_rows(content in 0usize..130, rest in 0usize..70, seed: u64) {
            let mut seeded = Seeded::new(seed);
            let row = seeded.normals(content + rest, 1.0);
            let query: Vec<i8> = seeded.bytes(content + rest).into_iter().map(|byte| (byte as i8).max(-127)).collect();
            for format in [RowFormat::I8, RowFormat::I4] {
                let bytes = stored(format, &row, content);
                let mut decoded = vec![0.0; content + rest];
                format.decode(&bytes, content, &mut decoded);
                let scales = [0.5, 0.25];
                let terms = decoded.iter().zip(&query).enumerate().map(|(i, (&k, &q))| f64::from(k) * f64::from(q) * f64::from(scales[usize::from(i >= content)]));
                let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let found = f64::from(format.dot(&bytes, content, &query, scales));
                prop_assert!((found - exact).abs() <= 1e-6 * size, "{} {}", found, exact);
            }
        }
    }
}
