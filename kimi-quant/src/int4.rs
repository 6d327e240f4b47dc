//! Four-bit integers as `compressed-tensors` packs them (`pack-quantized`, 4 bits, groups of 32, symmetric).
//!
//! A row of `cols` weights is `cols / 2` bytes of codes, the even column in the low nibble (eight to a little-endian 32-bit word), and
//! `cols / 32` BF16 scales in a plane of their own; `weight = (code - 8) * scale`, which is exact in float32.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::int::{BAND_ROWS, Bits, pack_block, unpack};
use crate::{Bf16, IntFormat, IntView, LayoutError};

/// Columns that share one scale.
pub const GROUP_SIZE: usize = 32;

/// The code of zero.
const MIDDLE: i32 = 8;

/// A `rows x cols` matrix over the two planes of a released checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Int4View<'a> {
    rows: usize,
    cols: usize,
    codes: &'a [u8],
    scales: &'a [u8],
}

impl<'a> Int4View<'a> {
    /// # Errors
    /// [`LayoutError`] when `cols` is not a multiple of 32 or a plane has another size than the shape needs.
    pub fn new([rows, cols]: [usize; 2], codes: &'a [u8], scales: &'a [u8]) -> Result<Self, LayoutError> {
        if !cols.is_multiple_of(GROUP_SIZE) {
            return Err(LayoutError::Group { cols, group_size: GROUP_SIZE });
        }
        for (plane, bytes, row_bytes) in
            [("codes", codes, cols / 2), ("scales", scales, cols / GROUP_SIZE * 2)]
        {
            let expected = rows.checked_mul(row_bytes).ok_or(LayoutError::TooLarge { rows, cols })?;
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

    /// The matrix of the given rows.
    ///
    /// # Panics
    /// If the range ends beyond [`rows`](Self::rows).
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        let (codes, scales) = (self.cols / 2, self.cols / GROUP_SIZE * 2);
        Self {
            rows: rows.len(),
            cols: self.cols,
            codes: &self.codes[rows.start * codes..rows.end * codes],
            scales: &self.scales[rows.start * scales..rows.end * scales],
        }
    }

    /// Writes the values of one row to `out`, each the exact product of an integer and its scale.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    #[inline]
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one output per column");
        let (codes, scales) = (self.cols / 2, self.cols / GROUP_SIZE * 2);
        let codes = self.codes[row * codes..][..codes].as_chunks::<{ GROUP_SIZE / 2 }>().0;
        let scales = self.scales[row * scales..][..scales].as_chunks::<2>().0;
        let groups = codes.iter().zip(scales);
        for ((codes, &scale), out) in groups.zip(out.as_chunks_mut::<GROUP_SIZE>().0) {
            let scale = Bf16(u16::from_le_bytes(scale)).to_f32();
            for (&byte, pair) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
                pair[0] = (i32::from(byte & 15) - MIDDLE) as f32 * scale;
                pair[1] = (i32::from(byte >> 4) - MIDDLE) as f32 * scale;
            }
        }
    }
}

/// The same numbers in bands: [`IntFormat::INT4`], bit for bit.
pub fn to_bands(view: Int4View<'_>) -> Vec<u8> {
    let groups = view.cols / GROUP_SIZE;
    let mut bytes = Vec::with_capacity(view.rows.div_ceil(BAND_ROWS) * groups * BAND_GROUP_BYTES);
    for first in (0..view.rows).step_by(BAND_ROWS) {
        for group in 0..groups {
            let mut header = [0; 2 * BAND_ROWS];
            let mut block = [0; BAND_GROUP_BYTES - 2 * BAND_ROWS];
            for r in 0..BAND_ROWS {
                // The rows that the last band lacks are zeros.
                let mut codes = [MIDDLE; GROUP_SIZE];
                if first + r < view.rows {
                    let at = (first + r) * groups + group;
                    header[2 * r..][..2].copy_from_slice(&view.scales[2 * at..][..2]);
                    let stored = &view.codes[at * GROUP_SIZE / 2..][..GROUP_SIZE / 2];
                    for (pair, &byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(stored) {
                        *pair = [i32::from(byte & 15), i32::from(byte >> 4)];
                    }
                }
                pack_block(Bits::I4, &codes, r, &mut block);
            }
            bytes.extend_from_slice(&header);
            bytes.extend_from_slice(&block);
        }
    }
    bytes
}

/// Bytes of a group of a band: eight scales, and 32 codes of eight rows.
const BAND_GROUP_BYTES: usize = 2 * BAND_ROWS + BAND_ROWS * GROUP_SIZE / 2;

/// The code plane and the scale plane of a matrix in bands; the way back from [`to_bands`].
///
/// # Panics
/// If the matrix is not of [`IntFormat::INT4`], or its columns are no multiple of 32.
pub fn to_planes(view: &IntView<'_>) -> (Vec<u8>, Vec<u8>) {
    assert_eq!(view.format(), IntFormat::INT4, "the format of the planes");
    assert!(view.cols().is_multiple_of(GROUP_SIZE), "whole groups");
    let groups = view.cols() / GROUP_SIZE;
    let mut codes = vec![0; view.rows() * view.cols() / 2];
    let mut scales = vec![0; view.rows() * groups * 2];
    for row in 0..view.rows() {
        let (band, r) = (view.band(row / BAND_ROWS), row % BAND_ROWS);
        for (group, bytes) in band.chunks_exact(BAND_GROUP_BYTES).enumerate() {
            let at = row * groups + group;
            scales[2 * at..][..2].copy_from_slice(&bytes[2 * r..][..2]);
            let block = &bytes[2 * BAND_ROWS..];
            for (pair, byte) in codes[at * GROUP_SIZE / 2..][..GROUP_SIZE / 2].iter_mut().enumerate() {
                let code = |c| unpack(Bits::I4, block, r, c) as u8;
                *byte = code(2 * pair) | code(2 * pair + 1) << 4;
            }
        }
    }
    (codes, scales)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_testing::Seeded;

    #[test]
    fn every_code_stands_for_its_distance_from_eight() {
        let codes: Vec<u8> = (0..16).map(|byte| byte | (15 - byte) << 4).collect();
        let scale = Bf16::from_f32(0.375).0.to_le_bytes();
        let mut row = [f32::NAN; 32];
        Int4View::new([1, 32], &codes, &scale).unwrap().decode_row(0, &mut row);
        for (c, value) in row.into_iter().enumerate() {
            let code = if c % 2 == 0 { c / 2 } else { 15 - c / 2 };
            assert_eq!(value, (code as f32 - 8.0) * 0.375);
        }
    }

    /// The words are little-endian: a 32-bit word holds eight columns from its lowest bits up.
    #[test]
    fn a_word_holds_its_columns_from_the_lowest_bits_up() {
        let words = [0x7654_3210u32, 0xfedc_ba98, 0, 0];
        let codes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let scale = Bf16::from_f32(1.0).0.to_le_bytes();
        let mut row = [f32::NAN; 32];
        Int4View::new([1, 32], &codes, &scale).unwrap().decode_row(0, &mut row);
        assert!(row[..16].iter().enumerate().all(|(c, &value)| value == c as f32 - 8.0), "{row:?}");
    }

    #[test]
    fn bands_hold_the_same_numbers_and_give_the_planes_back() {
        let mut seeded = Seeded::new(4);
        for [rows, cols] in [[1, 32], [8, 64], [19, 96], [0, 32], [5, 0]] {
            let codes = seeded.bytes(rows * cols / 2);
            let scales: Vec<u8> =
                (0..rows * cols / 32).flat_map(|_| Bf16::from_f32(seeded.normal()).0.to_le_bytes()).collect();
            let view = Int4View::new([rows, cols], &codes, &scales).unwrap();
            let bands = to_bands(view);
            let banded = IntView::new([rows, cols], IntFormat::INT4, &bands).unwrap();
            let (mut a, mut b) = (vec![f32::NAN; cols], vec![f32::NAN; cols]);
            for row in 0..rows {
                view.decode_row(row, &mut a);
                banded.decode_row(row, &mut b);
                assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            assert_eq!(to_planes(&banded), (codes, scales));
        }
    }

    #[test]
    fn shapes_are_checked() {
        let group = LayoutError::Group { cols: 33, group_size: 32 };
        assert_eq!(Int4View::new([1, 33], &[], &[]).unwrap_err(), group);
        let length = LayoutError::Length { plane: "scales", expected: 4, found: 3 };
        assert_eq!(Int4View::new([2, 32], &[0; 32], &[0; 3]).unwrap_err(), length);
    }
}
