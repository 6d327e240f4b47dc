//! BF12: BF16 without loss in about 12 bits.
//!
//! The exponents of a row of weights lie in a narrow range, so 4 bits tell them apart: 0 is the exponent 0 (zeros and
//! subnormals), `i` from 1 on is `base + i - 1`. What lies outside is patched. A matrix is, in this order,
//!
//! 1. `rows` bases, one byte each;
//! 2. patch ends, u32, one for every 16 rows: how many patches the rows up to there have;
//! 3. row after row, K padded with zeros to blocks of 32 columns: a byte per column, sign and mantissa (bit 7 and bits 0 to 6 of
//!    `s mmmmmmm`), then per block 16 bytes of exponent indices, the low nibble of byte `b` for column `b` of the block and the high
//!    nibble for column `b + 16`;
//! 4. the patches, row after row in ascending columns, 6 bytes each: u32 with the row among its 16 in the upper 4 bits and the
//!    column below, BF16 bits u16.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::{Bf16, LayoutError};

/// Columns of a block.
pub const BLOCK_COLUMNS: usize = 32;

/// Exponents that an index tells apart, beside zero.
const WINDOW: usize = 15;

/// Rows that share a patch end.
const PATCH_ROWS: usize = 16;

/// Bytes of a patch.
const PATCH_BYTES: usize = 6;

/// Columns that a patch can name.
const MAX_COLS: usize = 1 << 28;

/// A `rows x cols` BF12 matrix over borrowed bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bf12View<'a> {
    /// The first row and the number of rows, in what the slices hold.
    first: usize,
    rows: usize,
    cols: usize,
    bases: &'a [u8],
    ends: &'a [[u8; 4]],
    planes: &'a [u8],
    patches: &'a [[u8; PATCH_BYTES]],
}

/// One row as kernels read it.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::exhaustive_structs, reason = "a row has these four parts")]
pub struct Bf12Row<'a> {
    /// The exponent of index 1.
    pub base: u8,
    /// Sign and mantissa, one byte per column, padded with zeros to whole blocks.
    pub signs: &'a [[u8; BLOCK_COLUMNS]],
    /// Exponent indices.
    pub exponents: &'a [[u8; BLOCK_COLUMNS / 2]],
    /// What the window does not hold, in ascending columns: see [`patch_parts`].
    pub patches: &'a [[u8; PATCH_BYTES]],
}

/// Bytes of one row's planes.
fn plane_bytes(cols: usize) -> Option<usize> {
    cols.div_ceil(BLOCK_COLUMNS).checked_mul(BLOCK_COLUMNS * 3 / 2)
}

/// Bytes of a matrix with that many patches.
pub(crate) fn matrix_bytes([rows, cols]: [usize; 2], patches: usize) -> Option<usize> {
    let planes = rows.checked_mul(plane_bytes(cols)?.checked_add(1)?)?;
    planes
        .checked_add(rows.div_ceil(PATCH_ROWS).checked_mul(4)?)?
        .checked_add(patches.checked_mul(PATCH_BYTES)?)
}

impl<'a> Bf12View<'a> {
    /// # Errors
    /// [`LayoutError`] when `bytes` does not have the length that shape and patches call for, or patches are out of order or
    /// outside the matrix.
    pub fn new([rows, cols]: [usize; 2], bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let too_large = LayoutError::TooLarge { rows, cols };
        let length = |expected| LayoutError::Length { plane: "weights", expected, found: bytes.len() };
        let least = matrix_bytes([rows, cols], 0).ok_or(too_large)?;
        if bytes.len() < least {
            return Err(length(least));
        }
        let (bases, rest) = bytes.split_at(rows);
        let (ends, rest) = rest.split_at(4 * rows.div_ceil(PATCH_ROWS));
        let (planes, patches) = rest.split_at(least - bases.len() - ends.len());
        let ends = ends.as_chunks().0;
        let count = ends.last().map_or(0, |&end| u32::from_le_bytes(end) as usize);
        let expected = matrix_bytes([rows, cols], count).ok_or(too_large)?;
        if bytes.len() != expected {
            return Err(length(expected));
        }
        let view = Self { first: 0, rows, cols, bases, ends, planes, patches: patches.as_chunks().0 };
        let mut last = 0;
        for group in 0..ends.len() {
            let end = view.end(group);
            if end < last || end > count {
                return Err(LayoutError::Length { plane: "patches", expected: last, found: end });
            }
            let mut before = None;
            for &patch in &view.patches[last..end] {
                let (row, col, _) = patch_parts(patch);
                if col >= cols || group * PATCH_ROWS + row >= rows || before >= Some((row, col)) {
                    return Err(LayoutError::Length { plane: "patches", expected: cols, found: col });
                }
                before = Some((row, col));
            }
            last = end;
        }
        Ok(view)
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Where the patches of a group of rows end.
    fn end(&self, group: usize) -> usize {
        u32::from_le_bytes(self.ends[group]) as usize
    }

    /// One row.
    ///
    /// # Panics
    /// If `row` is not below [`rows`](Self::rows).
    pub fn row(&self, row: usize) -> Bf12Row<'a> {
        assert!(row < self.rows, "a row of the matrix");
        let row = self.first + row;
        let (group, within) = (row / PATCH_ROWS, row % PATCH_ROWS);
        let start = if group == 0 { 0 } else { self.end(group - 1) };
        let patches = &self.patches[start..self.end(group)];
        let from = patches.partition_point(|&patch| patch_parts(patch).0 < within);
        let to = patches.partition_point(|&patch| patch_parts(patch).0 <= within);
        let blocks = self.cols.div_ceil(BLOCK_COLUMNS);
        let planes = &self.planes[row * blocks * BLOCK_COLUMNS * 3 / 2..][..blocks * BLOCK_COLUMNS * 3 / 2];
        let (signs, exponents) = planes.split_at(blocks * BLOCK_COLUMNS);
        Bf12Row {
            base: self.bases[row],
            signs: signs.as_chunks().0,
            exponents: exponents.as_chunks().0,
            patches: &patches[from..to],
        }
    }

    /// The matrix of the given rows.
    ///
    /// # Panics
    /// If the range ends beyond [`rows`](Self::rows).
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows of the matrix");
        Self { first: self.first + rows.start, rows: rows.len(), ..*self }
    }

    /// Writes the values of one row to `out`.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one output per column");
        let row = self.row(row);
        row.decode(|col, bits| {
            if let Some(value) = out.get_mut(col) {
                *value = Bf16(bits).to_f32();
            }
        });
    }
}

impl Bf12Row<'_> {
    /// The exponent of each index.
    pub fn exponent_table(&self) -> [u8; 16] {
        let mut table = [0; 16];
        for (i, exponent) in table.iter_mut().enumerate().skip(1) {
            *exponent = self.base.wrapping_add(i as u8 - 1);
        }
        table
    }

    /// Calls `each(column, bits)` for all columns, padding included, and then once more for the patched ones.
    fn decode(&self, mut each: impl FnMut(usize, u16)) {
        let table = self.exponent_table();
        for (block, (signs, exponents)) in self.signs.iter().zip(self.exponents).enumerate() {
            for (c, &sign) in signs.iter().enumerate() {
                let index = exponents[c % 16] >> (c / 16 * 4) & 15;
                each(block * BLOCK_COLUMNS + c, join(sign, table[usize::from(index)]));
            }
        }
        for &patch in self.patches {
            let (_, col, bits) = patch_parts(patch);
            each(col, bits);
        }
    }
}

/// The row among 16, the column and the BF16 bits of a patch.
pub fn patch_parts(patch: [u8; PATCH_BYTES]) -> (usize, usize, u16) {
    let [a, b, c, d, low, high] = patch;
    let place = u32::from_le_bytes([a, b, c, d]) as usize;
    (place / MAX_COLS, place % MAX_COLS, u16::from_le_bytes([low, high]))
}

fn join(sign: u8, exponent: u8) -> u16 {
    u16::from(sign & 0x80) << 8 | u16::from(exponent) << 7 | u16::from(sign & 0x7f)
}

fn exponent(bits: u16) -> u8 {
    (bits >> 7) as u8
}

/// The base whose window holds the exponents of most weights of a row, and how many it leaves out.
fn best_base(row: &[[u8; 2]]) -> (u8, usize) {
    // Four tables, so that equal neighbours do not wait for each other.
    let mut tables = [[0u32; 256]; 4];
    let (fours, tail) = row.as_chunks::<4>();
    for four in fours {
        for (table, &bits) in tables.iter_mut().zip(four) {
            table[usize::from(exponent(u16::from_le_bytes(bits)))] += 1;
        }
    }
    for &bits in tail {
        tables[0][usize::from(exponent(u16::from_le_bytes(bits)))] += 1;
    }
    let mut counts = [0usize; 256];
    for table in &tables {
        counts.iter_mut().zip(table).for_each(|(count, &more)| *count += more as usize);
    }
    let mut inside: usize = counts[1..=WINDOW].iter().sum();
    let mut best = (1u8, inside);
    for base in 2..=256 - WINDOW {
        inside = inside - counts[base - 1] + counts[base + WINDOW - 1];
        if inside > best.1 {
            best = (base as u8, inside);
        }
    }
    (best.0, row.len() - best.1 - counts[0])
}

/// The bytes that [`encode`] would return: larger than `2 * rows * cols` where exponents are all over the place, and the matrix
/// is better left as BF16.
///
/// # Errors
/// [`LayoutError`] when `bf16` is not exactly `rows * cols` elements.
pub fn encoded_size(shape: [usize; 2], bf16: &[u8]) -> Result<usize, LayoutError> {
    let rows = checked_rows(shape, bf16)?;
    let patches = rows.map(|row| best_base(row).1).sum();
    matrix_bytes(shape, patches).ok_or(LayoutError::TooLarge { rows: shape[0], cols: shape[1] })
}

/// Encodes a row-major BF16 matrix; [`Bf12View`] gives every bit back.
///
/// # Errors
/// [`LayoutError`] when `bf16` is not exactly `rows * cols` elements, or has 2^28 columns or 2^32 patches or more.
pub fn encode(shape: [usize; 2], bf16: &[u8]) -> Result<Vec<u8>, LayoutError> {
    let [rows, cols] = shape;
    let too_large = LayoutError::TooLarge { rows, cols };
    let least = matrix_bytes(shape, 0).ok_or(too_large)?;
    let source = checked_rows(shape, bf16)?;
    let mut bytes = vec![0; least];
    let (bases, rest) = bytes.split_at_mut(rows);
    let (ends, planes) = rest.split_at_mut(4 * rows.div_ceil(PATCH_ROWS));
    let blocks = cols.div_ceil(BLOCK_COLUMNS);
    let mut patches: Vec<[u8; PATCH_BYTES]> = Vec::new();
    let ends = ends.as_chunks_mut::<4>().0;
    let targets = bases.iter_mut().zip(planes.chunks_exact_mut((blocks * 48).max(1))).enumerate();
    for (row, (row_number, (base, planes))) in source.zip(targets) {
        *base = best_base(row).0;
        let (signs, exponents) = planes.split_at_mut(blocks * BLOCK_COLUMNS);
        let blocks =
            signs.as_chunks_mut::<BLOCK_COLUMNS>().0.iter_mut().zip(exponents.as_chunks_mut::<16>().0);
        for (number, (source, (signs, exponents))) in row.chunks(BLOCK_COLUMNS).zip(blocks).enumerate() {
            let mut padded = [[0u8; 2]; BLOCK_COLUMNS];
            padded[..source.len()].copy_from_slice(source);
            let bits = padded.map(u16::from_le_bytes);
            // Loops over bytes of one kind each, which the compiler turns into loops over registers.
            let (mut exponents_of, mut indices, mut missed) =
                ([0u8; BLOCK_COLUMNS], [0u8; BLOCK_COLUMNS], [0u8; BLOCK_COLUMNS]);
            for c in 0..BLOCK_COLUMNS {
                exponents_of[c] = exponent(bits[c]);
            }
            for c in 0..BLOCK_COLUMNS {
                signs[c] = ((bits[c] >> 8) & 0x80 | bits[c] & 0x7f) as u8;
            }
            for c in 0..BLOCK_COLUMNS {
                let offset = exponents_of[c].wrapping_sub(*base);
                indices[c] = if offset < WINDOW as u8 { offset + 1 } else { 0 };
            }
            for c in 0..BLOCK_COLUMNS {
                missed[c] = if indices[c] == 0 { exponents_of[c] } else { 0 };
            }
            for (b, byte) in exponents.iter_mut().enumerate() {
                *byte = indices[b] | indices[b + 16] << 4;
            }
            if missed != [0; BLOCK_COLUMNS] {
                for (c, &bits) in source.iter().enumerate() {
                    let exponent = exponent(u16::from_le_bytes(bits));
                    if usize::from(exponent.wrapping_sub(*base)) >= WINDOW && exponent != 0 {
                        let place = row_number % PATCH_ROWS * MAX_COLS + number * BLOCK_COLUMNS + c;
                        let [p, q, r, s] = (place as u32).to_le_bytes();
                        patches.push([p, q, r, s, bits[0], bits[1]]);
                    }
                }
            }
        }
        ends[row_number / PATCH_ROWS] = u32::try_from(patches.len()).map_err(|_| too_large)?.to_le_bytes();
    }
    if blocks == 0 {
        return Ok(bytes);
    }
    bytes.extend_from_slice(patches.as_flattened());
    Ok(bytes)
}

/// The BF16 bytes of a matrix, row-major.
pub fn decode(view: Bf12View<'_>) -> Vec<u8> {
    let mut bytes = vec![0; view.rows() * view.cols() * 2];
    for (row, bytes) in bytes.chunks_exact_mut((view.cols() * 2).max(1)).enumerate() {
        let halves = bytes.as_chunks_mut::<2>().0;
        view.row(row).decode(|col, bits| {
            if let Some(half) = halves.get_mut(col) {
                *half = bits.to_le_bytes();
            }
        });
    }
    bytes
}

fn checked_rows(
    [rows, cols]: [usize; 2],
    bf16: &[u8],
) -> Result<impl Iterator<Item = &[[u8; 2]]>, LayoutError> {
    let expected = rows
        .checked_mul(cols)
        .and_then(|count| count.checked_mul(2))
        .ok_or(LayoutError::TooLarge { rows, cols })?;
    if cols >= MAX_COLS {
        return Err(LayoutError::TooLarge { rows, cols });
    }
    if bf16.len() != expected {
        return Err(LayoutError::Length { plane: "weights", expected, found: bf16.len() });
    }
    let elements = bf16.as_chunks::<2>().0;
    Ok((0..rows).map(move |row| &elements[row * cols..][..cols]))
}

#[cfg(test)]
mod tests {
    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;

    fn gaussian(count: usize, seed: u64) -> Vec<u8> {
        Seeded::new(seed)
            .normals(count, 0.02)
            .into_iter()
            .flat_map(|weight| Bf16::from_f32(weight).0.to_le_bytes())
            .collect()
    }

    fn round_trip(shape: [usize; 2], bf16: &[u8]) -> usize {
        let bytes = encode(shape, bf16).unwrap();
        assert_eq!(bytes.len(), encoded_size(shape, bf16).unwrap());
        let view = Bf12View::new(shape, &bytes).unwrap();
        assert_eq!(decode(view), bf16);
        bytes.len()
    }

    #[test]
    fn every_bit_pattern_survives() {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for cols in [1, 16, 1024, 65536] {
            round_trip([65536 / cols, cols], &all);
        }
        // A row of NaN with all payloads, of subnormals, of zeros of both signs.
        round_trip([1, 256], &(0x7f80..0x8080u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>());
        round_trip([1, 128], &(0..128u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>());
        round_trip(
            [1, 64],
            &[0x0000u16, 0x8000].repeat(32).into_iter().flat_map(u16::to_le_bytes).collect::<Vec<_>>(),
        );
    }

    #[test]
    fn weights_of_a_normal_distribution_take_three_quarters() {
        let shape = [64, 1024];
        let size = round_trip(shape, &gaussian(64 * 1024, 1));
        assert!(size as f64 <= 0.76 * 2.0 * 64.0 * 1024.0, "{size}");
    }

    #[test]
    fn the_size_says_when_a_matrix_does_not_shrink() {
        let noise = Seeded::new(2).bytes(2 * 64 * 64);
        assert!(encoded_size([64, 64], &noise).unwrap() > noise.len());
        // One column per row: the padding alone is more.
        assert!(encoded_size([64, 1], &gaussian(64, 3)).unwrap() > 128);
        assert_eq!(encoded_size([0, 64], &[]), Ok(0));
        assert_eq!(round_trip([7, 0], &[]), 11);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let shape = [4, 40];
        let bytes =
            encode(shape, &(0..160u16).map(|i| i * 409).flat_map(u16::to_le_bytes).collect::<Vec<_>>())
                .unwrap();
        assert!(Bf12View::new(shape, &bytes[..bytes.len() - 1]).is_err());
        assert!(Bf12View::new([4, usize::MAX / 2], &bytes).is_err());
        assert!(Bf12View::new([5, 40], &bytes).is_err());
        let mut descending = bytes.clone();
        descending[5..9].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Bf12View::new(shape, &descending).is_err());
        let mut descending =
            encode([20, 40], &(0..800u16).map(|i| i * 79).flat_map(u16::to_le_bytes).collect::<Vec<_>>())
                .unwrap();
        assert!(Bf12View::new([20, 40], &descending).is_ok());
        descending[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Bf12View::new([20, 40], &descending).is_err());
        let mut outside = bytes.clone();
        let patch = outside.len() - PATCH_BYTES;
        outside[patch..patch + 4].copy_from_slice(&40u32.to_le_bytes());
        let error = Bf12View::new(shape, &outside).unwrap_err();
        assert_eq!(error, LayoutError::Length { plane: "patches", expected: 40, found: 40 });
    }

    proptest! {
        #[test]
        fn any_matrix_survives_and_slices_are_its_rows(rows in 0usize..9, cols in 0usize..100, spread in 0u32..16, seed: u64) {
            let mut seeded = Seeded::new(seed);
            let bf16: Vec<u8> = (0..rows * cols)
                .flat_map(|_| {
                    let exponent = 100 + seeded.below(1 << (spread / 2)) as u16 % 150;
                    ((seeded.below(2) as u16) << 15 | exponent << 7 | seeded.below(128) as u16).to_le_bytes()
                })
                .collect();
            round_trip([rows, cols], &bf16);
            let bytes = encode([rows, cols], &bf16).unwrap();
            let view = Bf12View::new([rows, cols], &bytes).unwrap();
            let first = seeded.below(rows + 1);
            prop_assert_eq!(decode(view.slice_rows(first..rows)), &bf16[first * cols * 2..]);
            let middle = view.slice_rows(first..rows).slice_rows(0..(rows - first) / 2);
            prop_assert_eq!(decode(middle), &bf16[first * cols * 2..(first + (rows - first) / 2) * cols * 2]);
        }
    }
}
