//! Row-major matrices of plain elements: F32 and BF16.

use core::fmt::Debug;
use core::marker::PhantomData;
use core::ops::Range;

use crate::{Bf16, LayoutError};

mod sealed {
    #[expect(unnameable_types, reason = "sealed")]
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::Bf16 {}
}

/// A plain element as it is stored: `f32` or [`Bf16`], little-endian.
pub trait Element: sealed::Sealed + Copy + Debug + 'static {
    /// Bytes of one element.
    const BYTES: usize;
    /// The value of the `BYTES` bytes of one element.
    ///
    /// # Panics
    /// If `bytes` has another length.
    fn decode(bytes: &[u8]) -> f32;
}

impl Element for f32 {
    const BYTES: usize = 4;

    fn decode(bytes: &[u8]) -> f32 {
        Self::from_le_bytes(bytes.try_into().expect("four bytes per element"))
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    fn decode(bytes: &[u8]) -> f32 {
        Self(u16::from_le_bytes(bytes.try_into().expect("two bytes per element"))).to_f32()
    }
}

/// A `rows x cols` matrix of plain elements over borrowed bytes, row after row. The bytes need no alignment.
#[derive(Debug, Clone, Copy)]
pub struct DenseView<'a, E> {
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
    element: PhantomData<E>,
}

impl<'a, E: Element> DenseView<'a, E> {
    /// # Errors
    /// [`LayoutError`] when `bytes` is not exactly `rows * cols` elements.
    pub fn new([rows, cols]: [usize; 2], bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let expected = rows
            .checked_mul(cols)
            .and_then(|count| count.checked_mul(E::BYTES))
            .ok_or(LayoutError::TooLarge { rows, cols })?;
        if bytes.len() != expected {
            return Err(LayoutError::Length { plane: "weights", expected, found: bytes.len() });
        }
        Ok(Self { rows, cols, bytes, element: PhantomData })
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored bytes of one row.
    ///
    /// # Panics
    /// If `row` is not below [`rows`](Self::rows).
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.cols * E::BYTES..][..self.cols * E::BYTES]
    }

    /// The matrix of the given rows.
    ///
    /// # Panics
    /// If the range ends beyond [`rows`](Self::rows).
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        let stride = self.cols * E::BYTES;
        Self { rows: rows.len(), bytes: &self.bytes[rows.start * stride..rows.end * stride], ..*self }
    }

    /// Writes the values of one row to `out`.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "one output per column");
        for (value, bytes) in out.iter_mut().zip(self.row(row).chunks_exact(E::BYTES)) {
            *value = E::decode(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_unaligned_bytes() {
        let mut bytes = alloc::vec![0u8];
        for value in [1.0f32, -2.5, 0.0, 3.25, f32::MIN_POSITIVE, -0.0] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        let view = DenseView::<f32>::new([2, 3], &bytes[1..]).unwrap();
        let mut row = [0.0; 3];
        view.slice_rows(1..2).decode_row(0, &mut row);
        assert_eq!(row.map(f32::to_bits), [3.25, f32::MIN_POSITIVE, -0.0].map(f32::to_bits));
    }

    #[test]
    fn a_wrong_length_says_what_was_expected() {
        let error = DenseView::<Bf16>::new([3, 5], &[0; 29]).unwrap_err();
        assert_eq!(error, LayoutError::Length { plane: "weights", expected: 30, found: 29 });
        let error = DenseView::<f32>::new([usize::MAX, 2], &[]).unwrap_err();
        assert_eq!(error, LayoutError::TooLarge { rows: usize::MAX, cols: 2 });
    }

    #[test]
    fn an_empty_matrix_is_a_matrix() {
        assert_eq!(DenseView::<f32>::new([0, 7], &[]).unwrap().rows(), 0);
        DenseView::<Bf16>::new([7, 0], &[]).unwrap().decode_row(6, &mut []);
    }
}
