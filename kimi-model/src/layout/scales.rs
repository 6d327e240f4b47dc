//! The scales of FP8 matrices on the tape.

use std::sync::Arc;

use kimi_quant::{Fp8View, LayoutError, MatrixView, fp8};

/// The scales of an FP8 matrix, or of the rows that a half of one has: runs of neighbouring rows at even distances.
#[derive(Debug, Clone)]
pub(crate) struct BlockScales {
    /// Those of the whole matrix.
    pub(super) plane: Arc<[u8]>,
    /// Rows of a run.
    pub(super) run: usize,
    /// Rows of the whole matrix from one run to the next.
    pub(super) stride: usize,
    /// The row of the whole matrix that the first run begins with.
    pub(super) first: usize,
}

impl BlockScales {
    /// Those of a matrix of so many rows.
    pub(super) fn whole(plane: Arc<[u8]>, rows: usize) -> Self {
        Self { plane, run: rows, stride: rows, first: 0 }
    }

    /// The longest view that begins with `row`, of `codes`, which hold the rows from there on.
    pub(crate) fn view<'a>(
        &'a self,
        row: usize,
        cols: usize,
        codes: &'a [u8],
    ) -> Result<MatrixView<'a>, LayoutError> {
        let rows = (codes.len() / cols.max(1)).min(self.run - row % self.run);
        let source = row / self.run * self.stride + self.first + row % self.run;
        let block_bytes = cols.div_ceil(fp8::BLOCK) * 4;
        let blocks = source / fp8::BLOCK..(source + rows).div_ceil(fp8::BLOCK);
        let range = blocks.start * block_bytes..blocks.end * block_bytes;
        let found = self.plane.len();
        let scales = self.plane.get(range.clone()).ok_or(LayoutError::Length {
            plane: "scales",
            expected: range.end,
            found,
        })?;
        Ok(Fp8View::new([rows, cols], source % fp8::BLOCK, &codes[..rows * cols], scales)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two heads of 100 keys and 60 values: blocks of 128 rows begin inside of runs.
    #[test]
    fn halves_have_the_numbers_of_the_whole() {
        let (rows, cols, heads, keys, values) = (320, 130, 2, 100, 60);
        let codes: Vec<u8> = (0..rows * cols).map(|i| (i * 37 % 120) as u8).collect();
        let plane: Vec<u8> = (0..6u8).flat_map(|i| (0.5 + f32::from(i)).to_le_bytes()).collect();
        let whole = Fp8View::new([rows, cols], 0, &codes, &plane).unwrap();
        let stride = keys + values;
        for (run, first) in [(keys, 0), (values, keys)] {
            let scales = BlockScales { plane: plane.clone().into(), run, stride, first };
            let own: Vec<u8> = (0..heads * run)
                .flat_map(|r| &codes[(r / run * stride + first + r % run) * cols..][..cols])
                .copied()
                .collect();
            let (mut a, mut b) = (vec![f32::NAN; cols], vec![f32::NAN; cols]);
            let mut done = 0;
            while done < heads * run {
                let view = scales.view(done, cols, &own[done * cols..]).unwrap();
                assert!(view.rows() > 0 && view.rows() <= run);
                for r in 0..view.rows() {
                    view.decode_row(r, &mut a);
                    whole.decode_row((done + r) / run * stride + first + (done + r) % run, &mut b);
                    assert_eq!(a, b, "row {}", done + r);
                }
                done += view.rows();
            }
        }
    }
}
