//! FP8: E4M3 values with one float32 scale to a block of 128 x 128 (DeepSeek-V3).
//!
//! A row of `cols` weights is `cols` bytes. Scales are a plane of their own, `ceil(rows / 128) x ceil(cols / 128)`, little-endian;
//! the blocks at the ends are partial. `weight = E4M3(code) * scale`, rounded once to float32.

use core::ops::Range;

use crate::LayoutError;

/// Rows and columns of a block.
pub const BLOCK: usize = 128;

/// The value of each E4M3 code (OCP 8-bit floating point, the variant without infinities: 0x7f and 0xff are NaN).
pub static E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3) & 15, code & 7);
        // Units of the last place are 2^-9 below the second binade, and double with each above.
        let (units, shift) = if exponent == 0 { (mantissa, 0) } else { (8 + mantissa, exponent - 1) };
        let magnitude = (units << shift) as f32 / 512.0;
        values[code] = match code {
            0x7f | 0xff => f32::NAN,
            0x80.. => -magnitude,
            _ => magnitude,
        };
        code += 1;
    }
    values
};

/// A `rows x cols` FP8 matrix over borrowed bytes.
#[derive(Debug, Clone, Copy)]
pub struct Fp8View<'a> {
    rows: usize,
    cols: usize,
    codes: &'a [u8],
    scales: &'a [u8],
    /// Where in its block of rows the first row stands.
    first: usize,
}

impl<'a> Fp8View<'a> {
    /// A matrix whose first row stands `first` rows below the beginning of the first row of blocks.
    ///
    /// # Errors
    /// [`LayoutError`] when a plane has another size than the shape needs.
    ///
    /// # Panics
    /// If `first` is not below [`BLOCK`].
    pub fn new(
        [rows, cols]: [usize; 2],
        first: usize,
        codes: &'a [u8],
        scales: &'a [u8],
    ) -> Result<Self, LayoutError> {
        assert!(first < BLOCK, "the first block holds the first row");
        let too_large = LayoutError::TooLarge { rows, cols };
        let expected = rows.checked_mul(cols).ok_or(too_large)?;
        if codes.len() != expected {
            return Err(LayoutError::Length { plane: "codes", expected, found: codes.len() });
        }
        let expected = scale_bytes([first.checked_add(rows).ok_or(too_large)?, cols]).ok_or(too_large)?;
        if scales.len() != expected {
            return Err(LayoutError::Length { plane: "scales", expected, found: scales.len() });
        }
        Ok(Self { rows, cols, codes, scales, first })
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
        let first = self.first + rows.start;
        let row_bytes = self.cols.div_ceil(BLOCK) * 4;
        let blocks = first / BLOCK..(self.first + rows.end).div_ceil(BLOCK).max(first / BLOCK);
        Self {
            rows: rows.len(),
            cols: self.cols,
            codes: &self.codes[rows.start * self.cols..rows.end * self.cols],
            scales: self.scales.get(blocks.start * row_bytes..blocks.end * row_bytes).unwrap_or_default(),
            first: first % BLOCK,
        }
    }

    /// Writes the values of one row to `out`.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    #[inline]
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one output per column");
        let codes = &self.codes[row * self.cols..][..self.cols];
        let row_bytes = self.cols.div_ceil(BLOCK) * 4;
        let scales = &self.scales[(self.first + row) / BLOCK * row_bytes..][..row_bytes];
        let blocks = codes.chunks(BLOCK).zip(scales.as_chunks::<4>().0);
        for ((codes, &scale), out) in blocks.zip(out.chunks_mut(BLOCK)) {
            let scale = f32::from_le_bytes(scale);
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = E4M3[usize::from(code)] * scale;
            }
        }
    }
}

/// Bytes of the scales of a matrix; `None` where no address space holds them.
pub fn scale_bytes([rows, cols]: [usize; 2]) -> Option<usize> {
    rows.div_ceil(BLOCK).checked_mul(cols.div_ceil(BLOCK))?.checked_mul(4)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use kimi_testing::Seeded;

    #[test]
    fn every_code_has_the_value_of_its_fields() {
        for code in 0..=255u8 {
            let (sign, exponent, mantissa) = (code >> 7, i32::from(code >> 3 & 15), f64::from(code & 7));
            let power = |exponent: i32| 2f64.powi(exponent);
            let magnitude = match exponent {
                0 => mantissa * power(-9),
                _ => (1.0 + mantissa / 8.0) * power(exponent - 7),
            };
            let found = f64::from(E4M3[usize::from(code)]);
            if code & 0x7f == 0x7f {
                assert!(found.is_nan());
            } else {
                let expected = if sign == 1 { -magnitude } else { magnitude };
                assert_eq!(found.to_bits(), expected.to_bits(), "{code:#x}");
            }
        }
        assert_eq!((E4M3[0x7e], E4M3[0x01]), (448.0, 1.0 / 512.0));
    }

    #[test]
    fn slices_find_their_scales_in_partial_blocks_too() {
        let mut seeded = Seeded::new(5);
        let [rows, cols] = [300, 150];
        let codes: Vec<u8> = seeded.bytes(rows * cols).into_iter().map(|code| code & 0x7e).collect();
        let scales: Vec<u8> = (0..6).flat_map(|_| seeded.normal().to_le_bytes()).collect();
        let whole = Fp8View::new([rows, cols], 0, &codes, &scales).unwrap();
        let scale = |row: usize, col: usize| {
            let at = row / 128 * 2 + col / 128;
            f32::from_le_bytes(*scales[4 * at..].first_chunk().unwrap())
        };
        let (mut a, mut b) = (vec![f32::NAN; cols], vec![f32::NAN; cols]);
        for row in [0, 127, 128, 255, 256, 299] {
            whole.decode_row(row, &mut a);
            let expected = |col: usize| E4M3[usize::from(codes[row * cols + col])] * scale(row, col);
            assert!(a.iter().enumerate().all(|(col, &value)| value == expected(col)), "{row}");
            for (start, end) in [(0, 300), (100, 300), (row, row + 1), (row / 2, 300)] {
                if (start..end).contains(&row) {
                    let part = whole.slice_rows(start..end);
                    part.slice_rows(row - start..end - start).decode_row(0, &mut b);
                    assert_eq!(a, b, "{row} of {start}..{end}");
                }
            }
        }
        assert_eq!(whole.slice_rows(300..300).rows(), 0);
        assert_eq!(whole.slice_rows(128..128).rows(), 0);
    }

    #[test]
    fn shapes_are_checked() {
        let length = LayoutError::Length { plane: "scales", expected: 8, found: 4 };
        assert_eq!(Fp8View::new([2, 10], 127, &[0; 20], &[0; 4]).unwrap_err(), length);
        let length = LayoutError::Length { plane: "codes", expected: 20, found: 19 };
        assert_eq!(Fp8View::new([2, 10], 0, &[0; 19], &[0; 4]).unwrap_err(), length);
        assert!(Fp8View::new([usize::MAX, 10], 0, &[], &[]).is_err());
    }
}
