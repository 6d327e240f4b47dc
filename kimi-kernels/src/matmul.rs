//! Matrix products: shapes checked here, rows split over threads here, arithmetic in the back ends.

use kimi_quant::MatrixView;

use crate::dispatch::dispatch;
use crate::reference;
use crate::vector::{bands, gemm};
use crate::{Columns, Kernels, Scratch, ShapeError, Threads};

/// Fewer multiplications than this are not worth a second thread.
const MIN_TASK: usize = 1 << 17;

/// Rows per task are a multiple of this where there are enough: whole register blocks in every back end.
const ROW_MULTIPLE: usize = 48;

impl Kernels {
    /// Scratch values that one thread needs to multiply matrices of up to `k` columns with `columns` columns.
    pub fn matmul_scratch(self, k: usize, columns: usize) -> usize {
        // One decoded row, or the eight of a band.
        let decoded = bands::panel_floats(k);
        if self.packed_len(k, columns) > 0 { decoded.max(gemm::scratch(k)) } else { decoded }
    }

    /// [`reference::gemm`] on all threads: `y[r, c] = sum over k of w[r, k] * x[c, k]`.
    ///
    /// `y` is `w.rows() x x.count()` and is overwritten. `scratch` needs [`matmul_scratch`](Self::matmul_scratch) values
    /// per thread.
    ///
    /// # Errors
    /// [`ShapeError`] when an operand does not fit; `y` is untouched then.
    pub fn matmul(
        self,
        threads: &Threads,
        scratch: &Scratch,
        w: MatrixView<'_>,
        x: Columns<'_>,
        y: &mut [f32],
    ) -> Result<(), ShapeError> {
        self.check(w, x, y, scratch.floats())?;
        if y.is_empty() {
            return Ok(());
        }
        let (rows, count) = (w.rows(), x.count);
        let task = self.task_rows(threads, rows, w.cols() * count);
        threads.chunks(y, task * count, |i, y| {
            let first = i * task;
            let w = w.slice_rows(first..first + y.len() / count);
            self.multiply(w, x, y, &mut scratch.piece(threads));
        });
        Ok(())
    }

    /// [`matmul`](Self::matmul) on the calling thread, for callers that split the work themselves.
    ///
    /// # Errors
    /// [`ShapeError`] when an operand does not fit; `y` is untouched then.
    pub fn matmul_serial(
        self,
        scratch: &mut [f32],
        w: MatrixView<'_>,
        x: Columns<'_>,
        y: &mut [f32],
    ) -> Result<(), ShapeError> {
        self.check(w, x, y, scratch.len())?;
        if !y.is_empty() {
            self.multiply(w, x, y, scratch);
        }
        Ok(())
    }

    /// [`reference::gemv_transposed`] on the calling thread: `y[k] += sum over r of w[r, k] * x[r]`.
    ///
    /// `scratch` needs one value per column of `w`.
    ///
    /// # Errors
    /// [`ShapeError`] when an operand does not fit; `y` is untouched then.
    pub fn gemv_transposed(
        self,
        scratch: &mut [f32],
        w: MatrixView<'_>,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), ShapeError> {
        ShapeError::check("x", w.rows(), x.len())?;
        ShapeError::check("y", w.cols(), y.len())?;
        let found = scratch.len();
        let Some(row) = scratch.get_mut(..w.cols()) else {
            return Err(ShapeError { operand: "the scratch", expected: w.cols(), found });
        };
        for (r, &x) in x.iter().enumerate() {
            dispatch!(self.backend, scalar => w.decode_row(r, row), token => token.decode_row(w, r, row));
            self.accumulate(y, x, row);
        }
        Ok(())
    }

    /// Rows of a task, given the multiplications of a row.
    pub(crate) fn task_rows(self, threads: &Threads, rows: usize, row_work: usize) -> usize {
        let fair = rows.div_ceil(threads.count() * 4);
        let worthwhile = MIN_TASK.div_ceil(row_work.max(1));
        fair.max(worthwhile).next_multiple_of(ROW_MULTIPLE).min(rows)
    }

    fn check(self, w: MatrixView<'_>, x: Columns<'_>, y: &[f32], scratch: usize) -> Result<(), ShapeError> {
        ShapeError::check("a column of x", w.cols(), x.k)?;
        ShapeError::check("y", w.rows() * x.count, y.len())?;
        let expected = self.matmul_scratch(w.cols(), x.count);
        if scratch < expected {
            return Err(ShapeError { operand: "the scratch", expected, found: scratch });
        }
        Ok(())
    }

    fn multiply(self, w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
        dispatch!(
            self.backend,
            scalar => {
                let row = &mut scratch[..w.cols()];
                for (r, y) in y.chunks_exact_mut(x.count).enumerate() {
                    w.decode_row(r, row);
                    for (c, y) in y.iter_mut().enumerate() {
                        *y = reference::dot(row, x.column(c));
                    }
                }
            },
            token => token.matmul(w, x, y, scratch)
        );
    }
}
