//! Float32 weights to group-wise integers.
//!
//! All methods are deterministic and treat every group of every row by itself, [`Gptq`] aside.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::int::{BAND_ROWS, BLOCK_COLUMNS, CODEBOOK_VALUES, Levels, NORMAL_CODEBOOK, pack_block};
use crate::{IntFormat, LayoutError, NotFinite};

mod choose;
mod gptq;
mod hqq;

pub use gptq::{Gptq, block_values};

use choose::Chooser;
pub(crate) use choose::round;

/// How the scale (and zero point) of a group is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Method {
    /// The range of the values is the range of the codes.
    AbsMax,
    /// The scale, and zero point, of least squared error among some dozens, refined by least squares. Clips the tail where
    /// that pays.
    #[default]
    Search,
    /// Half-quadratic: zero points that minimise a norm below 1 of the error, which forgives outliers (Badri and Shaji,
    /// "Half-Quadratic Quantization", 2023). For formats with zero points; others are searched.
    Hqq,
}

/// Turns float32 weights into a format of group-wise integers.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Quantizer<'a> {
    format: IntFormat,
    method: Method,
    importance: Option<&'a [f32]>,
    codebook: [i8; CODEBOOK_VALUES],
}

/// Why weights cannot be quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A weight is NaN or infinite.
    NotFinite(NotFinite),
    /// The operands do not fit the shape.
    Layout(LayoutError),
    /// The Hessian is no matrix of second moments: not finite, or not positive definite even with damping.
    Hessian {
        /// The first column at which this shows.
        col: usize,
    },
}

impl fmt::Display for QuantizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFinite(error) => error.fmt(f),
            Self::Layout(error) => error.fmt(f),
            Self::Hessian { col } => {
                write!(f, "the Hessian is not positive definite at column {col}, even with damping")
            }
        }
    }
}

impl core::error::Error for QuantizeError {}

impl From<NotFinite> for QuantizeError {
    fn from(error: NotFinite) -> Self {
        Self::NotFinite(error)
    }
}

impl From<LayoutError> for QuantizeError {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}

impl<'a> Quantizer<'a> {
    /// Error search for a format, all columns equally important, [`NORMAL_CODEBOOK`] where a codebook is needed.
    pub fn new(format: IntFormat) -> Self {
        Self { format, method: Method::Search, importance: None, codebook: NORMAL_CODEBOOK }
    }

    /// Another method.
    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    /// A weight for the squared error of each column: the mean square of the input that meets it, for one. Not negative.
    pub fn importance(mut self, importance: &'a [f32]) -> Self {
        self.importance = Some(importance);
        self
    }

    /// Other levels, in ascending order.
    pub fn codebook(mut self, codebook: [i8; CODEBOOK_VALUES]) -> Self {
        self.codebook = codebook;
        self
    }

    /// Quantizes a `rows x cols` matrix, row-major. The result is what [`IntView::new`](crate::IntView::new) takes.
    ///
    /// # Errors
    /// [`QuantizeError::NotFinite`] saying where, [`QuantizeError::Layout`] when weights or importance do not fit the shape.
    pub fn quantize(&self, shape: [usize; 2], weights: &[f32]) -> Result<Vec<u8>, QuantizeError> {
        check(shape, weights)?;
        let [rows, cols] = shape;
        let uniform;
        let importance = match self.importance {
            Some(importance) if importance.len() != cols => {
                let found = importance.len();
                return Err(LayoutError::Length { plane: "importance", expected: cols, found }.into());
            }
            Some(importance) => importance,
            None => {
                uniform = vec![1.0; cols];
                &uniform
            }
        };
        let mut packer = Packer::new(self.format, shape, &self.codebook)?;
        let chooser = Chooser::new(self.format, self.method, self.codebook);
        let group_size = self.format.group_size();
        let mut codes = vec![0; group_size];
        for (row, weights) in (0..rows).zip(weights.chunks_exact(cols.max(1))) {
            let groups = weights.chunks(group_size).zip(importance.chunks(group_size));
            for (group, (weights, importance)) in groups.enumerate() {
                let grid = chooser.choose(weights, importance);
                let codes = &mut codes[..weights.len()];
                for (code, &weight) in codes.iter_mut().zip(weights) {
                    *code = chooser.code(grid, weight);
                }
                packer.write(row, group, grid, codes);
            }
        }
        Ok(packer.bytes)
    }
}

/// The scale and the zero point of a group, as they will be stored.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Grid {
    scale: f32,
    zero: i32,
}

fn check([rows, cols]: [usize; 2], weights: &[f32]) -> Result<(), QuantizeError> {
    let expected = rows.checked_mul(cols).ok_or(LayoutError::TooLarge { rows, cols })?;
    if weights.len() != expected {
        return Err(LayoutError::Length { plane: "weights", expected, found: weights.len() }.into());
    }
    match weights.iter().position(|weight| !weight.is_finite()) {
        Some(at) => Err(NotFinite { row: at / cols, col: at % cols, value: weights[at] }.into()),
        None => Ok(()),
    }
}

/// Writes groups to their places in the bands. What is not written decodes to zero.
struct Packer {
    format: IntFormat,
    band_bytes: usize,
    bytes: Vec<u8>,
}

impl Packer {
    fn new(
        format: IntFormat,
        shape: [usize; 2],
        codebook: &[i8; CODEBOOK_VALUES],
    ) -> Result<Self, LayoutError> {
        let size = format.matrix_bytes(shape)?;
        let band_bytes = format.band_bytes(shape[1]).expect("the whole matrix has a size");
        let mut bytes = vec![0; size];
        if format.levels() == Levels::Codebook {
            bytes[..CODEBOOK_VALUES].iter_mut().zip(codebook).for_each(|(byte, &level)| *byte = level as u8);
        }
        Ok(Self { format, band_bytes, bytes })
    }

    fn write(&mut self, row: usize, group: usize, grid: Grid, codes: &[i32]) {
        let (format, r) = (self.format, row % BAND_ROWS);
        let blocks_before = group * (format.group_size() / BLOCK_COLUMNS);
        let start = format.prefix_bytes()
            + row / BAND_ROWS * self.band_bytes
            + group * format.group_header()
            + blocks_before * format.block_bytes();
        let (header, rest) = self.bytes[start..].split_at_mut(format.group_header());
        header[2 * r..][..2].copy_from_slice(&format.scale().encode(grid.scale));
        match format.zero_bytes() {
            0 => {}
            BAND_ROWS => header[2 * BAND_ROWS + r] = grid.zero as u8,
            _ => header[2 * BAND_ROWS + r / 2] |= (grid.zero as u8) << (r % 2 * 4),
        }
        let blocks = rest.chunks_exact_mut(format.block_bytes());
        for (codes, block) in codes.chunks(BLOCK_COLUMNS).zip(blocks) {
            pack_block(format.bits(), codes, r, block);
        }
    }
}

#[cfg(test)]
mod tests;
