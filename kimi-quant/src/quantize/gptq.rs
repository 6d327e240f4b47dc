//! GPTQ: rounding column by column, the error of each column moved to those that can still make up for it.

use alloc::vec;
use alloc::vec::Vec;

use num_traits::Float;

use super::choose::Chooser;
use super::{Grid, Method, Packer, QuantizeError, check};
use crate::int::NORMAL_CODEBOOK;
use crate::{IntFormat, LayoutError};

/// Quantizes matrices that meet the same input, given its second moments (Frantar et al., "GPTQ", 2022).
///
/// A group's grid is searched, with the diagonal of the moments as importance, when its first column is reached. Every row is
/// treated by itself, so a matrix may come in pieces of rows. Works in float64.
#[derive(Debug)]
pub struct Gptq {
    chooser: Chooser,
    cols: usize,
    block: usize,
    importance: Vec<f32>,
    /// Block after block the upper factor of the inverse, row-major.
    factors: Vec<f64>,
}

impl Gptq {
    /// Prepares for matrices of `cols` columns.
    ///
    /// `hessian` is the block diagonal of `sum over samples of x x^T`: for each `block` columns a `block x block` matrix,
    /// row-major, the last one as wide as what is left; only lower triangles are read. Errors move inside a block. `block` is a
    /// multiple of the format's group or not below `cols`, which makes it the whole matrix. `damping` is the share of a block's mean
    /// diagonal that is added to its diagonal, 0.01 as a rule. Time grows with `cols block^2`.
    ///
    /// # Errors
    /// [`QuantizeError::Layout`] when the block does not fit the groups or the Hessian the columns, [`QuantizeError::Hessian`].
    pub fn new(
        format: IntFormat,
        cols: usize,
        block: usize,
        hessian: &[f64],
        damping: f64,
    ) -> Result<Self, QuantizeError> {
        let block = block.min(cols).max(1);
        if block < cols && !block.is_multiple_of(format.group_size()) {
            return Err(LayoutError::Group { cols: block, group_size: format.group_size() }.into());
        }
        let expected = block_values(cols, block).ok_or(LayoutError::TooLarge { rows: block, cols })?;
        if hessian.len() != expected {
            return Err(LayoutError::Length { plane: "hessian", expected, found: hessian.len() }.into());
        }
        let (mut importance, mut factors) = (Vec::with_capacity(cols), Vec::with_capacity(expected));
        let mut rest = hessian;
        for first in (0..cols).step_by(block) {
            let n = block.min(cols - first);
            let (here, behind) = rest.split_at(n * n);
            rest = behind;
            importance.extend((0..n).map(|c| here[c * n + c] as f32));
            let factor = inverse_factor(here, n, damping).map_err(|error| match error {
                QuantizeError::Hessian { col } => QuantizeError::Hessian { col: first + col },
                error => error,
            })?;
            factors.extend_from_slice(&factor);
        }
        let chooser = Chooser::new(format, Method::Search, NORMAL_CODEBOOK);
        Ok(Self { chooser, cols, block, importance, factors })
    }

    /// Quantizes a `rows x cols` matrix, row-major, as [`Quantizer::quantize`](super::Quantizer::quantize) does.
    ///
    /// # Errors
    /// [`QuantizeError::NotFinite`], [`QuantizeError::Layout`] when the matrix has other columns.
    pub fn quantize(&self, shape: [usize; 2], weights: &[f32]) -> Result<Vec<u8>, QuantizeError> {
        check(shape, weights)?;
        let [rows, cols] = shape;
        if cols != self.cols {
            return Err(LayoutError::Length { plane: "hessian", expected: cols, found: self.cols }.into());
        }
        let format = self.chooser.format;
        let mut packer = Packer::new(format, shape, &NORMAL_CODEBOOK)?;
        let group_size = format.group_size();
        let (mut row, mut group_weights, mut codes) =
            (vec![0.0f64; self.block], vec![0.0f32; group_size], vec![0; group_size]);
        for (r, weights) in (0..rows).zip(weights.chunks_exact(cols.max(1))) {
            let mut factors = &self.factors[..];
            for first in (0..cols).step_by(self.block) {
                let n = self.block.min(cols - first);
                let row = &mut row[..n];
                row.iter_mut().zip(&weights[first..]).for_each(|(value, &weight)| *value = f64::from(weight));
                for at in (0..n).step_by(group_size) {
                    let width = group_size.min(n - at);
                    for (weight, &value) in group_weights.iter_mut().zip(&row[at..at + width]) {
                        *weight = value as f32;
                    }
                    let importance = &self.importance[first + at..][..width];
                    let grid: Grid = self.chooser.choose(&group_weights[..width], importance);
                    for (c, code) in (at..at + width).zip(&mut codes) {
                        *code = self.chooser.code(grid, row[c] as f32);
                        let error = row[c] - f64::from(self.chooser.value(grid, *code));
                        // Row `c` of the factor, from its diagonal on.
                        let factors = &factors[c * n + c..(c + 1) * n];
                        let share = error / factors[0];
                        for (value, factor) in row[c + 1..].iter_mut().zip(&factors[1..]) {
                            *value -= share * factor;
                        }
                    }
                    packer.write(r, (first + at) / group_size, grid, &codes[..width]);
                }
                factors = &factors[n * n..];
            }
        }
        Ok(packer.bytes)
    }
}

/// Values of the block diagonal of a `cols x cols` matrix, the last block as wide as what is left; `None` when that is more than
/// memory can hold.
pub fn block_values(cols: usize, block: usize) -> Option<usize> {
    let block = block.min(cols).max(1);
    let last = cols % block;
    (cols / block).checked_mul(block)?.checked_mul(block)?.checked_add(last * last)
}

/// The upper triangular `U` with `U^T U = (H + damping)^-1`, row-major.
fn inverse_factor(hessian: &[f64], n: usize, damping: f64) -> Result<Vec<f64>, QuantizeError> {
    let mean = (0..n).map(|i| hessian[i * n + i]).sum::<f64>() / n.max(1) as f64;
    // A column that never saw an input is kept out of the way of the others.
    let extra = if mean > 0.0 { damping * mean } else { 1.0 };
    let mut lower = vec![0.0; n * n];
    for i in 0..n {
        lower[i * n..][..=i].copy_from_slice(&hessian[i * n..][..=i]);
        lower[i * n + i] += extra;
    }
    cholesky(&mut lower, n)?;
    // The inverse of the lower factor, in place, column by column.
    for j in 0..n {
        lower[j * n + j] = 1.0 / lower[j * n + j];
        for i in j + 1..n {
            let sum: f64 = (j..i).map(|k| lower[i * n + k] * lower[k * n + j]).sum();
            lower[i * n + j] = -sum / lower[i * n + i];
        }
    }
    // H^-1 = L^-T L^-1.
    let mut factor = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            factor[i * n + j] = (i..n).map(|k| lower[k * n + i] * lower[k * n + j]).sum();
        }
    }
    cholesky(&mut factor, n)?;
    for i in 0..n {
        for j in 0..i {
            factor[j * n + i] = factor[i * n + j];
            factor[i * n + j] = 0.0;
        }
    }
    Ok(factor)
}

/// The lower factor `L` with `L L^T = a`, in place of the lower triangle.
fn cholesky(a: &mut [f64], n: usize) -> Result<(), QuantizeError> {
    for j in 0..n {
        for i in j..n {
            let (above, below) = a.split_at(i * n);
            let row_i = &below[..n];
            let row_j = if i == j { row_i } else { &above[j * n..][..n] };
            let sum = row_i[..j].iter().zip(&row_j[..j]).map(|(a, b)| a * b).sum::<f64>();
            let value = row_i[j] - sum;
            if i == j {
                if !(value > 0.0 && value.is_finite()) {
                    return Err(QuantizeError::Hessian { col: j });
                }
                a[j * n + j] = Float::sqrt(value);
            } else {
                a[i * n + j] = value / a[j * n + j];
            }
        }
    }
    Ok(())
}
