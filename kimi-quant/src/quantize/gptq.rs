//! GPTQ: rounding column by column, the error of each column moved to those that can still make up for it.

use alloc::vec;
use alloc::vec::Vec;

use num_traits::Float;

use super::choose::Chooser;
use super::{Grid, Method, Packer, QuantizeError, check};
use crate::int::NORMAL_CODEBOOK;
use crate::{IntFormat, LayoutError};

/// Quantizes a `rows x cols` matrix given the second moments of its input (Frantar et al., "GPTQ", 2022).
///
/// `hessian` is `cols x cols`, `sum over samples of x x^T`; only its lower triangle is read. `damping` is the share of its
/// mean diagonal that is added to the diagonal, 0.01 as a rule. A group's grid is searched, with the diagonal as importance,
/// when its first column is reached. Works in float64 on `2 cols^2` values; time grows with `cols^3 + rows cols^2`.
///
/// # Errors
/// [`QuantizeError::NotFinite`], [`QuantizeError::Layout`] when an operand does not fit, [`QuantizeError::Hessian`].
pub fn gptq(
    format: IntFormat,
    shape: [usize; 2],
    weights: &[f32],
    hessian: &[f64],
    damping: f64,
) -> Result<Vec<u8>, QuantizeError> {
    check(shape, weights)?;
    let [rows, cols] = shape;
    let expected = cols.checked_mul(cols).ok_or(LayoutError::TooLarge { rows: cols, cols })?;
    if hessian.len() != expected {
        return Err(LayoutError::Length { plane: "hessian", expected, found: hessian.len() }.into());
    }
    let importance: Vec<f32> = (0..cols).map(|c| hessian[c * cols + c] as f32).collect();
    let factor = inverse_factor(hessian, cols, damping)?;
    let chooser = Chooser::new(format, Method::Search, NORMAL_CODEBOOK);
    let mut packer = Packer::new(format, shape, &NORMAL_CODEBOOK)?;
    let group_size = format.group_size();
    let (mut row, mut group_weights, mut codes) =
        (vec![0.0f64; cols], vec![0.0f32; group_size], vec![0; group_size]);
    for r in 0..rows {
        row.iter_mut().zip(&weights[r * cols..]).for_each(|(value, &weight)| *value = f64::from(weight));
        for group in 0..cols.div_ceil(group_size) {
            let columns = group * group_size..cols.min((group + 1) * group_size);
            let width = columns.len();
            for (weight, &value) in group_weights.iter_mut().zip(&row[columns.clone()]) {
                *weight = value as f32;
            }
            let grid: Grid = chooser.choose(&group_weights[..width], &importance[columns.clone()]);
            for (c, code) in columns.zip(&mut codes) {
                *code = chooser.code(grid, row[c] as f32);
                let error = row[c] - f64::from(chooser.value(grid, *code));
                // Row `c` of the factor, from its diagonal on.
                let factors = &factor[c * cols + c..(c + 1) * cols];
                let share = error / factors[0];
                for (value, factor) in row[c + 1..].iter_mut().zip(&factors[1..]) {
                    *value -= share * factor;
                }
            }
            packer.write(r, group, grid, &codes[..width]);
        }
    }
    Ok(packer.bytes)
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
