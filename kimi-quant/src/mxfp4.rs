//! MXFP4: E2M1 codes with one E8M0 scale per group of 32 columns (OCP Microscaling Formats v1.0).
//!
//! A row of `cols` weights is `cols / 2` bytes of codes, the even column in the low nibble, and `cols / 32`
//! scale bytes in a plane of their own; `weight = E2M1(code) * 2^(scale - 127)`.

mod bands;
mod scales;

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::{E8m0, LayoutError, NotFinite};

pub use bands::{BAND_GROUP_BYTES, E2M1_DOUBLED, Mxfp4BandsView, band_matrix_bytes, to_bands};
pub use scales::{decode_scales, encode_scales};

/// Columns that share one scale.
pub const GROUP_SIZE: usize = 32;

/// The value of each E2M1 code: sign in bit 3, two exponent bits, one mantissa bit.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A `rows x cols` MXFP4 matrix over borrowed bytes in the layout of the released checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct Mxfp4View<'a> {
    rows: usize,
    cols: usize,
    codes: &'a [u8],
    scales: &'a [u8],
}

impl<'a> Mxfp4View<'a> {
    /// # Errors
    /// [`LayoutError`] when `cols` is not a multiple of 32 or a plane has another size than the shape needs.
    pub fn new([rows, cols]: [usize; 2], codes: &'a [u8], scales: &'a [u8]) -> Result<Self, LayoutError> {
        if cols % GROUP_SIZE != 0 {
            return Err(LayoutError::Group { cols, group_size: GROUP_SIZE });
        }
        for (plane, bytes, per_byte) in [("codes", codes, 2), ("scales", scales, GROUP_SIZE)] {
            let expected = rows.checked_mul(cols / per_byte).ok_or(LayoutError::TooLarge { rows, cols })?;
            if bytes.len() != expected {
                return Err(LayoutError::Length { plane, expected, found: bytes.len() });
            }
        }
        Ok(Self { rows, cols, codes, scales })
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes and the scales of one row.
    ///
    /// # Panics
    /// If `row` is not below [`rows`](Self::rows).
    pub fn row(&self, row: usize) -> (&'a [u8], &'a [u8]) {
        let (codes, scales) = (self.cols / 2, self.cols / GROUP_SIZE);
        (&self.codes[row * codes..][..codes], &self.scales[row * scales..][..scales])
    }

    /// The matrix of the given rows.
    ///
    /// # Panics
    /// If the range ends beyond [`rows`](Self::rows).
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        let (codes, scales) = (self.cols / 2, self.cols / GROUP_SIZE);
        Self {
            rows: rows.len(),
            cols: self.cols,
            codes: &self.codes[rows.start * codes..rows.end * codes],
            scales: &self.scales[rows.start * scales..rows.end * scales],
        }
    }

    /// Writes the values of one row to `out`.
    ///
    /// The product of a code and its scale is exact, except that a scale of 254 with a magnitude above 3 is infinite;
    /// a scale of 255 makes the group NaN.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one output per column");
        let (codes, scales) = self.row(row);
        let groups = codes.chunks_exact(GROUP_SIZE / 2).zip(scales);
        for ((codes, &scale), out) in groups.zip(out.chunks_exact_mut(GROUP_SIZE)) {
            let scale = E8m0(scale).to_f32();
            for (&byte, pair) in codes.iter().zip(out.chunks_exact_mut(2)) {
                pair[0] = E2M1[usize::from(byte & 15)] * scale;
                pair[1] = E2M1[usize::from(byte >> 4)] * scale;
            }
        }
    }
}

/// An owned MXFP4 matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mxfp4Matrix {
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Mxfp4Matrix {
    /// The matrix as a view.
    pub fn view(&self) -> Mxfp4View<'_> {
        Mxfp4View { rows: self.rows, cols: self.cols, codes: &self.codes, scales: &self.scales }
    }

    /// The code plane, `rows * cols / 2` bytes.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scale plane, `rows * cols / 32` bytes.
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }
}

/// Why a matrix could not be quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The shape does not fit the format or the number of weights.
    Layout(LayoutError),
    /// A weight is NaN or infinite.
    NotFinite(NotFinite),
}

impl core::fmt::Display for QuantizeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Layout(_) => write!(f, "the shape does not fit mxfp4"),
            Self::NotFinite(_) => write!(f, "only finite weights can be quantized"),
        }
    }
}

impl core::error::Error for QuantizeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Layout(error) => Some(error),
            Self::NotFinite(error) => Some(error),
        }
    }
}

/// Quantizes row-major weights: per group of 32 the scale `2^(floor(log2 max) - 2)`, then each weight to the
/// nearest code, ties to even, magnitudes above 6 to 6 (OCP Microscaling Formats v1.0, section 6.3).
///
/// # Errors
/// [`QuantizeError`] when the shape does not fit, or naming the first weight that is not finite.
pub fn quantize([rows, cols]: [usize; 2], weights: &[f32]) -> Result<Mxfp4Matrix, QuantizeError> {
    if cols % GROUP_SIZE != 0 {
        return Err(QuantizeError::Layout(LayoutError::Group { cols, group_size: GROUP_SIZE }));
    }
    let count = rows.checked_mul(cols).ok_or(QuantizeError::Layout(LayoutError::TooLarge { rows, cols }))?;
    if weights.len() != count {
        let (expected, found) = (count.saturating_mul(4), weights.len().saturating_mul(4));
        return Err(QuantizeError::Layout(LayoutError::Length { plane: "weights", expected, found }));
    }
    if let Some(at) = weights.iter().position(|weight| !weight.is_finite()) {
        let (row, col) = (at / cols, at % cols);
        return Err(QuantizeError::NotFinite(NotFinite { row, col, value: weights[at] }));
    }
    let mut codes = vec![0u8; count / 2];
    let mut scales = vec![0u8; count / GROUP_SIZE];
    let groups = weights.chunks_exact(GROUP_SIZE).zip(codes.chunks_exact_mut(GROUP_SIZE / 2));
    for ((weights, codes), scale) in groups.zip(&mut scales) {
        *scale = group_scale(weights).0;
        for (pair, byte) in weights.chunks_exact(2).zip(codes) {
            *byte = nearest_code(pair[0], E8m0(*scale)) | nearest_code(pair[1], E8m0(*scale)) << 4;
        }
    }
    Ok(Mxfp4Matrix { rows, cols, codes, scales })
}

/// The scale that puts the largest magnitude of a group into the top binade of E2M1.
fn group_scale(weights: &[f32]) -> E8m0 {
    let largest = weights.iter().fold(0.0f32, |largest, weight| largest.max(weight.abs()));
    // The exponent field less two: 4 is E2M1's top power of two. Subnormal groups take the smallest scale.
    E8m0((largest.to_bits() >> 23).saturating_sub(2) as u8)
}

fn nearest_code(weight: f32, scale: E8m0) -> u8 {
    // In float64 the quotient by a power of two is exact, and so is every midpoint.
    let magnitude = f64::from(weight.abs()) / f64::from(scale.to_f32());
    // Midpoints between neighbours; a tie goes to the even mantissa bit, that is, to the even code.
    const MIDPOINTS: [f64; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let mut code = 0u8;
    for (below, midpoint) in (0u8..).zip(MIDPOINTS) {
        if magnitude > midpoint || (magnitude == midpoint && below % 2 == 1) {
            code = below + 1;
        }
    }
    code | u8::from(weight.is_sign_negative()) << 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_testing::Seeded;
    use proptest::prelude::*;

    #[test]
    fn every_code_and_every_scale_decode_exactly() {
        for scale in 0..=255u8 {
            let codes: Vec<u8> = (0..8).flat_map(|i| [(2 * i) | ((2 * i + 1) << 4); 2]).collect();
            let scales = [scale];
            let view = Mxfp4View::new([1, 32], &codes, &scales).unwrap();
            let mut row = [0.0; 32];
            view.decode_row(0, &mut row);
            for (col, value) in row.into_iter().enumerate() {
                let code = 2 * (col / 4) + col % 2;
                let exact = f64::from(E2M1[code]) * f64::from(E8m0(scale).to_f32());
                if scale == 255 {
                    assert!(value.is_nan());
                } else if exact.abs() > f64::from(f32::MAX) {
                    assert_eq!(value, f32::INFINITY.copysign(exact as f32));
                } else {
                    assert_eq!(f64::from(value), exact, "scale {scale}, code {code}");
                }
            }
        }
    }

    #[test]
    fn small_scales_are_not_flushed_to_zero() {
        let (codes, scales) = ([0x11; 16], [0]);
        let mut row = [0.0; 32];
        Mxfp4View::new([1, 32], &codes, &scales).unwrap().decode_row(0, &mut row);
        assert_eq!(row[0].to_bits(), 0x0020_0000); // 0.5 * 2^-127
    }

    #[test]
    fn quantizing_decoded_values_gives_them_back() {
        let mut seeded = Seeded::new(3);
        for _ in 0..200 {
            let codes = seeded.bytes(16);
            let scales = [100 + seeded.below(40) as u8];
            let mut row = [0.0; 32];
            Mxfp4View::new([1, 32], &codes, &scales).unwrap().decode_row(0, &mut row);
            let again = quantize([1, 32], &row).unwrap();
            let mut back = [0.0; 32];
            again.view().decode_row(0, &mut back);
            assert_eq!(row.map(f32::to_bits), back.map(f32::to_bits));
        }
    }

    #[test]
    fn ties_go_to_the_even_code_and_large_values_saturate() {
        let mut weights = [0.0f32; 32];
        weights[..9].copy_from_slice(&[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.9, -0.25]);
        let packed = quantize([1, 32], &weights).unwrap();
        let mut row = [9.0; 32];
        packed.view().decode_row(0, &mut row);
        assert_eq!(row[..9], [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 0.0]);
        assert!(row[8].is_sign_negative());
    }

    #[test]
    fn weights_that_are_not_finite_are_named() {
        let mut weights = [0.0f32; 96];
        weights[70] = f32::NAN;
        match quantize([3, 32], &weights).unwrap_err() {
            QuantizeError::NotFinite(at) => assert_eq!((at.row, at.col), (2, 6)),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn shapes_are_checked() {
        let group = LayoutError::Group { cols: 33, group_size: 32 };
        assert_eq!(Mxfp4View::new([1, 33], &[], &[]).unwrap_err(), group);
        let length = LayoutError::Length { plane: "scales", expected: 2, found: 3 };
        assert_eq!(Mxfp4View::new([2, 32], &[0; 32], &[0; 3]).unwrap_err(), length);
        assert!(quantize([1, 64], &[0.0; 32]).is_err());
    }

    proptest! {
        #[test]
        fn no_code_is_nearer_than_the_chosen_one(seed: u64, exponent in -130i32..127) {
            let mut seeded = Seeded::new(seed);
            let size = exponent as f32;
            let weights: Vec<f32> = (0..32).map(|_| seeded.normal() * size.exp2()).collect();
            prop_assume!(weights.iter().all(|weight| weight.is_finite()));
            let packed = quantize([1, 32], &weights).unwrap();
            let scale = f64::from(E8m0(packed.scales()[0]).to_f32());
            let mut row = [0.0; 32];
            packed.view().decode_row(0, &mut row);
            for (&weight, &value) in weights.iter().zip(&row) {
                let error = (f64::from(weight) - f64::from(value)).abs();
                let best = E2M1.iter().map(|&code| (f64::from(weight) - f64::from(code) * scale).abs());
                prop_assert!(best.fold(f64::INFINITY, f64::min) >= error);
            }
        }
    }
}
