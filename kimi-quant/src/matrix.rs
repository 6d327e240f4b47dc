//! A matrix whose encoding is known at run time.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use crate::bf12;
use crate::fp8;
use crate::int::{BAND_ROWS, UnknownFormat};
use crate::mxfp4::{GROUP_SIZE, Mxfp4BandsView, band_matrix_bytes};
use crate::{Bf12View, Bf16, DenseView, Fp8View, Int4View, IntFormat, IntView, LayoutError, Mxfp4View};

/// How the weights of a matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Encoding {
    /// Little-endian float32.
    F32,
    /// bfloat16.
    Bf16,
    /// E2M1 codes with an E8M0 scale per 32 columns, as released.
    Mxfp4,
    /// The same in bands of 8 rows.
    Mxfp4Bands,
    /// BF16 without loss in about 12 bits.
    Bf12,
    /// Group-wise integers.
    Int(IntFormat),
    /// Four-bit integers with a BF16 scale per 32 columns, as `compressed-tensors` packs them.
    Int4,
    /// E4M3 with a float32 scale per 128 x 128, as released.
    Fp8,
}

impl Encoding {
    /// Rows that must stay together where a matrix is cut: those of a band.
    pub const fn row_multiple(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::Mxfp4 | Self::Bf12 | Self::Int4 | Self::Fp8 => 1,
            Self::Mxfp4Bands | Self::Int(_) => BAND_ROWS,
        }
    }

    /// Bytes of a `rows x cols` matrix; of BF12 those of a matrix without patches, which come on top.
    ///
    /// # Errors
    /// [`LayoutError`] for a shape that the encoding or the address space does not hold.
    pub fn matrix_bytes(self, [rows, cols]: [usize; 2]) -> Result<usize, LayoutError> {
        let dense = |value_bytes: usize| {
            let weights = rows.checked_mul(cols).and_then(|weights| weights.checked_mul(value_bytes));
            weights.ok_or(LayoutError::TooLarge { rows, cols })
        };
        match self {
            Self::F32 => dense(4),
            Self::Bf16 => dense(2),
            Self::Mxfp4 | Self::Int4 if !cols.is_multiple_of(GROUP_SIZE) => {
                Err(LayoutError::Group { cols, group_size: GROUP_SIZE })
            }
            Self::Mxfp4 => Ok(dense(1)? / 2 + rows * (cols / GROUP_SIZE)),
            Self::Mxfp4Bands => band_matrix_bytes([rows, cols]),
            Self::Bf12 => bf12::matrix_bytes([rows, cols], 0).ok_or(LayoutError::TooLarge { rows, cols }),
            Self::Int(format) => format.matrix_bytes([rows, cols]),
            Self::Int4 => Ok(dense(1)? / 2 + rows * (cols / GROUP_SIZE) * 2),
            Self::Fp8 => {
                let scales = fp8::scale_bytes([rows, cols]);
                scales
                    .and_then(|scales| scales.checked_add(dense(1).ok()?))
                    .ok_or(LayoutError::TooLarge { rows, cols })
            }
        }
    }
}

impl fmt::Display for Encoding {
    /// The name that reports and options use: `f32`, `bf16`, `mxfp4`, `mxfp4:bands`, `bf12`, `int4`, `fp8`, or that of an [`IntFormat`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp4Bands => "mxfp4:bands",
            Self::Bf12 => "bf12",
            Self::Int4 => "int4",
            Self::Fp8 => "fp8",
            Self::Int(format) => return format.fmt(f),
        })
    }
}

impl FromStr for Encoding {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let plain = [Self::F32, Self::Bf16, Self::Mxfp4, Self::Mxfp4Bands, Self::Bf12, Self::Int4, Self::Fp8];
        let names = ["f32", "bf16", "mxfp4", "mxfp4:bands", "bf12", "int4", "fp8"];
        match names.iter().position(|&name| name == text) {
            Some(at) => Ok(plain[at]),
            None => text.parse().map(Self::Int),
        }
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
    /// MXFP4 in bands.
    Mxfp4Bands(Mxfp4BandsView<'a>),
    /// BF16 without loss in about 12 bits.
    Bf12(Bf12View<'a>),
    /// Group-wise integers in bands.
    Int(IntView<'a>),
    /// Four-bit integers, row-major planes.
    Int4(Int4View<'a>),
    /// FP8 with scales of blocks.
    Fp8(Fp8View<'a>),
}

/// Applies one expression to the view inside, whichever it is.
macro_rules! each {
    ($self:expr, $view:ident => $body:expr) => {
        match $self {
            MatrixView::F32($view) => $body,
            MatrixView::Bf16($view) => $body,
            MatrixView::Mxfp4($view) => $body,
            MatrixView::Mxfp4Bands($view) => $body,
            MatrixView::Bf12($view) => $body,
            MatrixView::Int($view) => $body,
            MatrixView::Int4($view) => $body,
            MatrixView::Fp8($view) => $body,
        }
    };
}

impl<'a> MatrixView<'a> {
    /// A matrix in one piece: of [`Encoding::Mxfp4`], [`Encoding::Int4`] and [`Encoding::Fp8`] the codes and then the scales.
    ///
    /// # Errors
    /// [`LayoutError`] when `bytes` does not have the length that shape and encoding call for.
    pub fn new(encoding: Encoding, shape: [usize; 2], bytes: &'a [u8]) -> Result<Self, LayoutError> {
        Ok(match encoding {
            Encoding::F32 => DenseView::<f32>::new(shape, bytes)?.into(),
            Encoding::Bf16 => DenseView::<Bf16>::new(shape, bytes)?.into(),
            Encoding::Mxfp4 | Encoding::Int4 | Encoding::Fp8 => {
                let expected = encoding.matrix_bytes(shape)?;
                let codes = shape[0] * shape[1] / if encoding == Encoding::Fp8 { 1 } else { 2 };
                let Some((codes, scales)) = bytes.split_at_checked(codes) else {
                    return Err(LayoutError::Length { plane: "weights", expected, found: bytes.len() });
                };
                match encoding {
                    Encoding::Mxfp4 => Mxfp4View::new(shape, codes, scales)?.into(),
                    Encoding::Int4 => Int4View::new(shape, codes, scales)?.into(),
                    _ => Fp8View::new(shape, 0, codes, scales)?.into(),
                }
            }
            Encoding::Mxfp4Bands => Mxfp4BandsView::new(shape, bytes)?.into(),
            Encoding::Bf12 => Bf12View::new(shape, bytes)?.into(),
            Encoding::Int(format) => IntView::new(shape, format, bytes)?.into(),
        })
    }
}

impl MatrixView<'_> {
    /// How the weights are stored.
    pub fn encoding(&self) -> Encoding {
        match self {
            Self::F32(_) => Encoding::F32,
            Self::Bf16(_) => Encoding::Bf16,
            Self::Mxfp4(_) => Encoding::Mxfp4,
            Self::Mxfp4Bands(_) => Encoding::Mxfp4Bands,
            Self::Bf12(_) => Encoding::Bf12,
            Self::Int(view) => Encoding::Int(view.format()),
            Self::Int4(_) => Encoding::Int4,
            Self::Fp8(_) => Encoding::Fp8,
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
    /// If the range ends beyond [`rows`](Self::rows), or does not keep to [`Encoding::row_multiple`].
    #[must_use]
    pub fn slice_rows(&self, rows: Range<usize>) -> Self {
        each!(self, view => view.slice_rows(rows).into())
    }

    /// Columns that share a scale, where weights are small integers times a scale and the product with int8 activations is one
    /// of integers; `None` in other encodings.
    pub fn integer_group(&self) -> Option<usize> {
        match self {
            Self::Int(view) => Some(view.format().group_size()),
            Self::Mxfp4Bands(_) => Some(GROUP_SIZE),
            _ => None,
        }
    }

    /// The integers of one row and the scale of each group: `weight = level * scale`. MXFP4 levels are doubled and their scales
    /// halved.
    ///
    /// # Panics
    /// If the encoding has no [`integer_group`](Self::integer_group), `row` is out of range, or the slices do not hold one level
    /// per column and one scale per group.
    pub fn decode_levels(&self, row: usize, levels: &mut [i32], scales: &mut [f32]) {
        match self {
            Self::Int(view) => view.decode_levels(row, levels, scales),
            Self::Mxfp4Bands(view) => view.decode_levels(row, levels, scales),
            _ => panic!("{} has no integer levels", self.encoding()),
        }
    }

    /// Writes the values of one row to `out`, exactly as stored; the products of FP8 are rounded to float32.
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

impl<'a> From<Mxfp4BandsView<'a>> for MatrixView<'a> {
    fn from(view: Mxfp4BandsView<'a>) -> Self {
        Self::Mxfp4Bands(view)
    }
}

impl<'a> From<Bf12View<'a>> for MatrixView<'a> {
    fn from(view: Bf12View<'a>) -> Self {
        Self::Bf12(view)
    }
}

impl<'a> From<IntView<'a>> for MatrixView<'a> {
    fn from(view: IntView<'a>) -> Self {
        Self::Int(view)
    }
}

impl<'a> From<Int4View<'a>> for MatrixView<'a> {
    fn from(view: Int4View<'a>) -> Self {
        Self::Int4(view)
    }
}

impl<'a> From<Fp8View<'a>> for MatrixView<'a> {
    fn from(view: Fp8View<'a>) -> Self {
        Self::Fp8(view)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn bytes_of_every_encoding_are_viewed_in_one_piece() {
        for name in [
            "f32",
            "bf16",
            "mxfp4",
            "mxfp4:bands",
            "bf12",
            "int4",
            "fp8",
            "i4:g32:cb",
            "i8:g128",
            "i3:g64:zp",
        ] {
            let encoding: Encoding = name.parse().unwrap();
            let shape = [19, 96];
            let bytes = vec![0; encoding.matrix_bytes(shape).unwrap()];
            let view = MatrixView::new(encoding, shape, &bytes).unwrap();
            assert_eq!((view.encoding(), [view.rows(), view.cols()]), (encoding, shape), "{name}");
            for short in [0, 1, bytes.len() - 1] {
                assert!(MatrixView::new(encoding, shape, &bytes[..short]).is_err(), "{name}");
            }
            assert!(encoding.matrix_bytes([usize::MAX / 2, 96]).is_err(), "{name}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for name in ["f32", "bf16", "mxfp4", "mxfp4:bands", "bf12", "int4", "fp8", "i4:g32:cb", "i8:g128"] {
            assert_eq!(name.parse::<Encoding>().map(|encoding| encoding.to_string()).as_deref(), Ok(name));
        }
        assert!("q4".parse::<Encoding>().is_err());
    }
}
