//! MXFP4 in bands of 8 rows: the same nibbles in the order of group-wise integers.
//!
//! A band is its groups of 32 columns in ascending order, each 8 scale bytes, one per row, and 128 bytes of codes laid out like a
//! block of 4-bit integers ([`int`](crate::int)). Missing rows of the last band are zero.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::{E2M1, GROUP_SIZE, Mxfp4View};
use crate::int::{BAND_ROWS, REGISTER_BYTES};
use crate::{E8m0, LayoutError};

/// Twice the value of each E2M1 code; minus zero is zero.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Bytes of a group of a band: scales, then codes.
pub const BAND_GROUP_BYTES: usize = BAND_ROWS + BAND_ROWS * GROUP_SIZE / 2;

/// A `rows x cols` MXFP4 matrix in bands over borrowed bytes.
#[derive(Debug, Clone, Copy)]
pub struct Mxfp4BandsView<'a> {
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

/// Where the code of a row and a column of its group lies: its byte, and how far it is shifted.
fn place(r: usize, c: usize) -> (usize, usize) {
    (c / 8 * REGISTER_BYTES + 4 * r + c % 4, c % 8 / 4 * 4)
}

/// Bytes of a matrix.
///
/// # Errors
/// [`LayoutError`] when `cols` is not a multiple of 32 or the matrix does not fit the address space.
pub fn band_matrix_bytes([rows, cols]: [usize; 2]) -> Result<usize, LayoutError> {
    if !cols.is_multiple_of(GROUP_SIZE) {
        return Err(LayoutError::Group { cols, group_size: GROUP_SIZE });
    }
    let band = (cols / GROUP_SIZE).checked_mul(BAND_GROUP_BYTES);
    band.and_then(|band| band.checked_mul(rows.div_ceil(BAND_ROWS)))
        .ok_or(LayoutError::TooLarge { rows, cols })
}

/// Reorders a row-major matrix into bands. No code and no scale changes.
pub fn to_bands(view: Mxfp4View<'_>) -> Vec<u8> {
    let groups = view.cols() / GROUP_SIZE;
    let band_bytes = groups * BAND_GROUP_BYTES;
    let mut bytes = vec![0; view.rows().div_ceil(BAND_ROWS) * band_bytes];
    for row in 0..view.rows() {
        let (codes, scales) = view.row(row);
        let (band, r) = (&mut bytes[row / BAND_ROWS * band_bytes..][..band_bytes], row % BAND_ROWS);
        let sources = codes.chunks_exact(GROUP_SIZE / 2).zip(scales);
        for (group, (codes, &scale)) in band.chunks_exact_mut(BAND_GROUP_BYTES).zip(sources) {
            let (band_scales, band_codes) = group.split_at_mut(BAND_ROWS);
            band_scales[r] = scale;
            for c in 0..GROUP_SIZE {
                let (byte, shift) = place(r, c);
                band_codes[byte] |= (codes[c / 2] >> (c % 2 * 4) & 15) << shift;
            }
        }
    }
    bytes
}

impl<'a> Mxfp4BandsView<'a> {
    /// # Errors
    /// [`LayoutError`] when `cols` is not a multiple of 32 or `bytes` has another length than the shape needs.
    pub fn new(shape: [usize; 2], bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let expected = band_matrix_bytes(shape)?;
        if bytes.len() != expected {
            return Err(LayoutError::Length { plane: "weights", expected, found: bytes.len() });
        }
        Ok(Self { rows: shape[0], cols: shape[1], bytes })
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The bytes of a band: groups of [`BAND_GROUP_BYTES`].
    ///
    /// # Panics
    /// If there is no such band.
    pub fn band(&self, band: usize) -> &'a [u8] {
        let bytes = self.cols / GROUP_SIZE * BAND_GROUP_BYTES;
        &self.bytes[band * bytes..][..bytes]
    }

    /// The matrix of the given rows, which begin with a band.
    ///
    /// # Panics
    /// If the range ends beyond [`rows`](Self::rows), or begins inside a band, or ends inside one that has more rows.
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        let whole = |row: usize| row.is_multiple_of(BAND_ROWS) || row == self.rows;
        assert!(rows.end <= self.rows && whole(rows.start) && whole(rows.end), "rows are cut between bands");
        let band = self.cols / GROUP_SIZE * BAND_GROUP_BYTES;
        let bytes = rows.start.div_ceil(BAND_ROWS) * band..rows.end.div_ceil(BAND_ROWS) * band;
        Self { rows: rows.len(), bytes: self.bytes.get(bytes).unwrap_or_default(), ..*self }
    }

    /// Writes the values of one row to `out`, as [`Mxfp4View::decode_row`] does.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "one output per column of a row that exists");
        let r = row % BAND_ROWS;
        let groups = self.band(row / BAND_ROWS).chunks_exact(BAND_GROUP_BYTES);
        for (group, out) in groups.zip(out.chunks_exact_mut(GROUP_SIZE)) {
            let (scales, codes) = group.split_at(BAND_ROWS);
            let scale = E8m0(scales[r]).to_f32();
            for (c, value) in out.iter_mut().enumerate() {
                let (byte, shift) = place(r, c);
                *value = E2M1[usize::from(codes[byte] >> shift & 15)] * scale;
            }
        }
    }

    /// The doubled values of the codes of one row and half the scale of each group.
    ///
    /// # Panics
    /// If `row` is out of range or the slices do not hold one level per column and one scale per group.
    pub fn decode_levels(&self, row: usize, levels: &mut [i32], scales: &mut [f32]) {
        assert!(row < self.rows && levels.len() == self.cols, "one level per column of a row that exists");
        assert_eq!(scales.len(), self.cols / GROUP_SIZE, "one scale per group");
        let r = row % BAND_ROWS;
        let groups = self.band(row / BAND_ROWS).chunks_exact(BAND_GROUP_BYTES);
        for ((group, levels), half) in groups.zip(levels.chunks_exact_mut(GROUP_SIZE)).zip(scales) {
            let (band_scales, codes) = group.split_at(BAND_ROWS);
            *half = E8m0(band_scales[r]).to_f32() * 0.5;
            for (c, level) in levels.iter_mut().enumerate() {
                let (byte, shift) = place(r, c);
                *level = i32::from(E2M1_DOUBLED[usize::from(codes[byte] >> shift & 15)]);
            }
        }
    }

    /// The row-major planes, codes and scales, to the byte.
    pub fn to_planes(&self) -> (Vec<u8>, Vec<u8>) {
        let mut codes = vec![0; self.rows * self.cols / 2];
        let mut scales = vec![0; self.rows * self.cols / GROUP_SIZE];
        for row in 0..self.rows {
            let r = row % BAND_ROWS;
            for (number, group) in self.band(row / BAND_ROWS).chunks_exact(BAND_GROUP_BYTES).enumerate() {
                let (band_scales, band_codes) = group.split_at(BAND_ROWS);
                let at = row * self.cols / GROUP_SIZE + number;
                scales[at] = band_scales[r];
                for c in 0..GROUP_SIZE {
                    let (byte, shift) = place(r, c);
                    codes[at * GROUP_SIZE / 2 + c / 2] |= (band_codes[byte] >> shift & 15) << (c % 2 * 4);
                }
            }
        }
        (codes, scales)
    }
}

#[cfg(test)]
mod tests {
    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bands_hold_the_same_nibbles(rows in 0usize..30, groups in 0usize..7, seed: u64) {
            let (mut seeded, cols) = (Seeded::new(seed), groups * 32);
            let (codes, scales) = (seeded.bytes(rows * cols / 2), seeded.bytes(rows * groups));
            let rows_view = Mxfp4View::new([rows, cols], &codes, &scales).unwrap();
            let bytes = to_bands(rows_view);
            let view = Mxfp4BandsView::new([rows, cols], &bytes).unwrap();
            prop_assert_eq!(view.to_planes(), (codes.clone(), scales.clone()));
            let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
            let first = rows / 2 / 8 * 8;
            let part = view.slice_rows(first..rows);
            for row in first..rows {
                rows_view.decode_row(row, &mut a);
                part.decode_row(row - first, &mut b);
                prop_assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }

    #[test]
    fn shapes_are_checked() {
        assert_eq!(
            Mxfp4BandsView::new([8, 33], &[]).unwrap_err(),
            LayoutError::Group { cols: 33, group_size: 32 }
        );
        assert!(Mxfp4BandsView::new([9, 32], &[0; 136]).is_err());
        assert_eq!(Mxfp4BandsView::new([9, 32], &[0; 272]).unwrap().rows(), 9);
        assert!(band_matrix_bytes([usize::MAX, 1 << 40]).is_err());
    }
}
