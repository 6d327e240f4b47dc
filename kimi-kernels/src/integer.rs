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
    k: usize,
    count: usize,
    group: usize,
}

/// Groups of four codes and scales that so many columns need at most, whatever the group.
fn sizes(k: usize, count: usize) -> Option<(usize, usize)> {
    let codes = (k.div_ceil(BLOCK_COLUMNS) * BLOCK_COLUMNS / 4).checked_mul(count)?;
    Some((codes, k.div_ceil(BLOCK_COLUMNS).checked_mul(count)?))
}

impl IntegerBuffers {
    /// Buffers that hold up to `count` columns of up to `k` values without growing; their product is what counts.
    pub fn with_capacity(k: usize, count: usize) -> Self {
        let (codes, groups) = sizes(k, count).unwrap_or((0, 0));
        Self {
            codes: Vec::with_capacity(codes),
            scales: Vec::with_capacity(groups),
            sums: Vec::with_capacity(groups),
            ..Self::default()
        }
    }

    /// Bytes of such buffers.
    pub fn bytes(k: usize, count: usize) -> u64 {
        sizes(k, count)
            .map_or(u64::MAX, |(codes, groups)| (codes as u64 * 4).saturating_add(groups as u64 * 8))
    }

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
        (self.k, self.count, self.group) = (k, count, group);
        if count > 0 && k > 0 {
            threads.chunk_pairs((&mut self.codes, padded), (&mut self.scales, groups), |c, codes, scales| {
                let codes = codes.as_flattened_mut();
                codes[k..].fill(0);
                activations::quantize_column(&values[c * k..][..k], group, &mut codes[..k], scales);
            });
            let codes = &self.codes;
            threads.chunks(&mut self.sums, groups, |c, sums| {
                let codes = codes[c * padded..][..padded].as_flattened();
                for (sum, codes) in sums.iter_mut().zip(codes.chunks(group)) {
                    *sum = codes.iter().map(|&code| i32::from(code)).sum();
                }
            });
        }
        Ok(self.columns())
    }

    /// What was quantized last; no columns if nothing was.
    pub fn columns(&self) -> IntegerColumns<'_> {
        let Self { codes, scales, sums, k, count, group } = self;
        IntegerColumns { k: *k, count: *count, group: *group, codes, scales, sums }
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

    /// The codes from a block of a column on, and how many codes further the next column has its own.
    pub(crate) fn codes_from(&self, c: usize, block: usize) -> (&'a [i8], usize) {
        let stride = self.k.next_multiple_of(BLOCK_COLUMNS);
        (&self.codes.as_flattened()[c * stride + block * BLOCK_COLUMNS..], stride)
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
