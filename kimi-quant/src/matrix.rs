//! A matrix whose encoding is known at run time.

use core::fmt;
use core::ops::Range;

use crate::{Bf16, DenseView, Mxfp4View};

/// How the weights of a matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Encoding {
    /// Little-endian float32.
    F32,
    /// bfloat16.
    Bf16,
    /// E2M1 codes with an E8M0 scale per 32 columns.
    Mxfp4,
}

impl Encoding {
    /// The name that reports and options use: `"f32"`, `"bf16"`, `"mxfp4"`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Mxfp4 => "mxfp4",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A borrowed `rows x cols` matrix in any encoding.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum MatrixView<'a> {
    /// Little-endian float32, row-major.
    F32(DenseView<'a, f32>),
    /// bfloat16, row-major.
    Bf16(DenseView<'a, Bf16>),
    /// MXFP4, row-major planes.
    Mxfp4(Mxfp4View<'a>),
}

/// Applies one expression to the view inside, whichever it is.
macro_rules! each {
    ($self:expr, $view:ident => $body:expr) => {
        match $self {
            MatrixView::F32($view) => $body,
            MatrixView::Bf16($view) => $body,
            MatrixView::Mxfp4($view) => $body,
        }
    };
}

impl MatrixView<'_> {
    /// How the weights are stored.
    pub fn encoding(&self) -> Encoding {
        match self {
            Self::F32(_) => Encoding::F32,
            Self::Bf16(_) => Encoding::Bf16,
            Self::Mxfp4(_) => Encoding::Mxfp4,
        }
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        each!(self, view => view.rows())
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        each!(self, view => view.cols())
    }

    /// The matrix of the given rows.
    ///
    /// # Panics
    /// If the range ends beyond [`rows`](Self::rows).
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        each!(self, view => view.slice_rows(rows).into())
    }

    /// Writes the values of one row to `out`, exactly as stored.
    ///
    /// # Panics
    /// If `row` is out of range or `out` does not hold [`cols`](Self::cols) values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        each!(self, view => view.decode_row(row, out));
    }
}

impl<'a> From<DenseView<'a, f32>> for MatrixView<'a> {
    fn from(view: DenseView<'a, f32>) -> Self {
        Self::F32(view)
    }
}

impl<'a> From<DenseView<'a, Bf16>> for MatrixView<'a> {
    fn from(view: DenseView<'a, Bf16>) -> Self {
        Self::Bf16(view)
    }
}

impl<'a> From<Mxfp4View<'a>> for MatrixView<'a> {
    fn from(view: Mxfp4View<'a>) -> Self {
        Self::Mxfp4(view)
    }
}
