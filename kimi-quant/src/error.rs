//! What can be wrong with the bytes or the values that a caller brings.

use core::fmt;

/// The bytes do not have the size that the shape and the encoding call for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// A plane of the matrix has another length than its shape needs.
    Length {
        /// Which plane: `"weights"`, `"codes"` or `"scales"`.
        plane: &'static str,
        /// The bytes that the shape needs.
        expected: usize,
        /// The bytes that were given.
        found: usize,
    },
    /// The number of columns is not a multiple of the group that shares one scale.
    Group {
        /// Columns of the matrix.
        cols: usize,
        /// Columns that share one scale.
        group_size: usize,
    },
    /// `rows x cols` does not fit the address space.
    TooLarge {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { plane, expected, found } => {
                write!(f, "the {plane} plane needs {expected} bytes, found {found}")
            }
            Self::Group { cols, group_size } => {
                write!(f, "{cols} columns are not a multiple of the group size {group_size}")
            }
            Self::TooLarge { rows, cols } => write!(f, "a matrix of {rows} x {cols} does not fit memory"),
        }
    }
}

impl core::error::Error for LayoutError {}

/// A weight that cannot be quantized: NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NotFinite {
    /// Row of the weight.
    pub row: usize,
    /// Column of the weight.
    pub col: usize,
    /// The weight.
    pub value: f32,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the weight at row {}, column {} is {}", self.row, self.col, self.value)
    }
}

impl core::error::Error for NotFinite {}
