//! The fast tier: activations as int8, products of integers.

use kimi_quant::int::BLOCK_COLUMNS;
use kimi_quant::{MatrixView, activations};

use crate::dispatch::dispatch;
use crate::{Kernels, ShapeError, Threads};

/// `count` columns of int8 activations, one float32 scale per group, in memory of the caller's.
#[derive(Debug, Clone, Copy)]
pub struct IntegerColumns<'a> {
    pub(crate) k: usize,
    pub(crate) count: usize,
    group: usize,
    /// Four codes each, columns padded with zeros to blocks of 32.
    codes: &'a [[i8; 4]],
    scales: &'a [f32],
    /// The sum of the codes of each group, which zero points are multiplied with.
    sums: &'a [i32],
}

/// Memory for [`IntegerColumns`].
#[derive(Debug, Clone, Default)]
pub struct IntegerBuffers {
    codes: Vec<[i8; 4]>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl IntegerBuffers {
    /// Quantizes columns of length `k` in groups of 32, 64 or 128: the group of the weights that they will meet. Memory grows to
    /// what is needed and stays.
    ///
    /// # Errors
    /// [`ShapeError`] when `values` is no whole number of columns or the group is another.
    pub fn quantize(
        &mut self,
        threads: &Threads,
        values: &[f32],
        k: usize,
        group: usize,
    ) -> Result<IntegerColumns<'_>, ShapeError> {
        if !matches!(group, 32 | 64 | 128) {
            return Err(ShapeError {
                operand: "the group of activations",
                expected: BLOCK_COLUMNS,
                found: group,
            });
        }
        let count = values.len().checked_div(k).unwrap_or(0);
        ShapeError::check("the activations", count * k, values.len())?;
        let (padded, groups) = (k.next_multiple_of(BLOCK_COLUMNS) / 4, k.div_ceil(group));
        self.codes.resize(count * padded, [0; 4]);
        self.scales.resize(count * groups, 0.0);
        self.sums.resize(count * groups, 0);
        if count > 0 && k > 0 {
            let scales_and_sums: Vec<_> =
                self.scales.chunks_exact_mut(groups).zip(self.sums.chunks_exact_mut(groups)).collect();
            let mut targets: Vec<_> = self.codes.chunks_exact_mut(padded).zip(scales_and_sums).collect();
            threads.chunks(&mut targets, 1, |c, target| {
                let (codes, (scales, sums)) = &mut target[0];
                let codes = codes.as_flattened_mut();
                codes[k..].fill(0);
                let x = &values[c * k..][..k];
                activations::quantize_column(x, group, &mut codes[..k], scales);
                for (sum, codes) in sums.iter_mut().zip(codes[..k].chunks(group)) {
                    *sum = codes.iter().map(|&code| i32::from(code)).sum();
                }
            });
        }
        Ok(IntegerColumns { k, count, group, codes: &self.codes, scales: &self.scales, sums: &self.sums })
    }
}

impl<'a> IntegerColumns<'a> {
    /// How many columns.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Codes, scales and sums of one column.
    pub(crate) fn column(&self, c: usize) -> (&'a [[i8; 4]], &'a [f32], &'a [i32]) {
        let (padded, groups) = (self.k.next_multiple_of(BLOCK_COLUMNS) / 4, self.k.div_ceil(self.group));
        (
            &self.codes[c * padded..][..padded],
            &self.scales[c * groups..][..groups],
            &self.sums[c * groups..][..groups],
        )
    }
}

impl Kernels {
    /// [`reference::gemv_integer`](crate::reference::gemv_integer) for every column, on all threads: `y` is `w.rows() x x.count()` and is
    /// overwritten.
    ///
    /// # Errors
    /// [`ShapeError`] when an operand does not fit, or the weights are not integers of the columns' group; `y` is untouched then.
    pub fn matmul_integer(
        self,
        threads: &Threads,
        w: MatrixView<'_>,
        x: IntegerColumns<'_>,
        y: &mut [f32],
    ) -> Result<(), ShapeError> {
        ShapeError::check("the group of the weights", x.group, w.integer_group().unwrap_or(0))?;
        ShapeError::check("a column of x", w.cols(), x.k)?;
        ShapeError::check("y", w.rows() * x.count, y.len())?;
        if y.is_empty() {
            return Ok(());
        }
        let task = self.task_rows(threads, w.rows(), w.cols() * x.count);
        threads.chunks(y, task * x.count, |i, y| {
            let first = i * task;
            let w = w.slice_rows(first..first + y.len() / x.count);
            dispatch!(
                self.backend,
                scalar => scalar(w, x, y),
                token => token.integer(w, x, y)
            );
        });
        Ok(())
    }
}

fn scalar(w: MatrixView<'_>, x: IntegerColumns<'_>, y: &mut [f32]) {
    let mut column = vec![0.0f32; w.rows()];
    for c in 0..x.count {
        let (codes, scales, _) = x.column(c);
        crate::reference::gemv_integer(w, &codes.as_flattened()[..x.k], scales, &mut column);
        for (y, value) in y.chunks_exact_mut(x.count).zip(&column) {
            y[c] = *value;
        }
    }
}
