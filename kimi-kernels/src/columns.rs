//! Activations as the matrix products read them.

use crate::reference::LANES;
use crate::{Kernels, ShapeError, Threads, dispatch::Backend};

/// Columns in one packed tile.
pub(crate) const TILE_COLUMNS: usize = 16;

/// Up to this many columns are multiplied straight from memory; more are packed first.
pub(crate) const UNPACKED_COLUMNS: usize = 8;

/// `count` columns of `k` activations each, with a second, packed copy where the kernels profit from one.
///
/// Make it once and multiply several matrices with it.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) k: usize,
    pub(crate) count: usize,
    /// Tiles of [`TILE_COLUMNS`] columns, zeros in the missing ones: for a tile and a lane, the steps along K in order.
    pub(crate) packed: Option<&'a [f32]>,
}

impl<'a> Columns<'a> {
    /// Columns without a packed copy: right for few columns, and correct for any number.
    ///
    /// `values` is `count x k`, column after column.
    ///
    /// # Errors
    /// [`ShapeError`] when `values` is no whole number of columns.
    pub fn new(values: &'a [f32], k: usize) -> Result<Self, ShapeError> {
        let count = values.len().checked_div(k).unwrap_or(0);
        ShapeError::check("the activations", count * k, values.len())?;
        Ok(Self { values, k, count, packed: None })
    }

    /// How many columns.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Length of a column.
    pub fn k(&self) -> usize {
        self.k
    }

    /// One column.
    pub(crate) fn column(&self, c: usize) -> &'a [f32] {
        &self.values[c * self.k..][..self.k]
    }
}

impl Kernels {
    /// Values that the packed copy of `count` columns of length `k` needs; 0 where there will be none.
    pub fn packed_len(self, k: usize, count: usize) -> usize {
        if count <= UNPACKED_COLUMNS || matches!(self.backend, Backend::Scalar) {
            return 0;
        }
        count.next_multiple_of(TILE_COLUMNS) * k.next_multiple_of(LANES)
    }

    /// Columns with a packed copy in `buffer`, which needs [`packed_len`](Self::packed_len) values.
    ///
    /// # Errors
    /// [`ShapeError`] when `values` is no whole number of columns or the buffer is too small.
    pub fn columns<'a>(
        self,
        threads: &Threads,
        values: &'a [f32],
        k: usize,
        buffer: &'a mut [f32],
    ) -> Result<Columns<'a>, ShapeError> {
        let columns = Columns::new(values, k)?;
        let len = self.packed_len(k, columns.count);
        if len == 0 {
            return Ok(columns);
        }
        if buffer.len() < len {
            return Err(ShapeError { operand: "the packing buffer", expected: len, found: buffer.len() });
        }
        let packed = &mut buffer[..len];
        threads.chunks(packed, TILE_COLUMNS * k.next_multiple_of(LANES), |tile, packed| {
            pack(columns, tile, packed)
        });
        Ok(Columns { packed: Some(packed), ..columns })
    }
}

/// Writes one tile: `packed[(lane * steps + step) * 16 + c]` is element `step * 8 + lane` of its column `c`.
fn pack(columns: Columns<'_>, tile: usize, packed: &mut [f32]) {
    let steps = columns.k.div_ceil(LANES);
    packed.fill(0.0);
    let first = tile * TILE_COLUMNS;
    for c in first..columns.count.min(first + TILE_COLUMNS) {
        for (i, &value) in columns.column(c).iter().enumerate() {
            packed[(i % LANES * steps + i / LANES) * TILE_COLUMNS + c - first] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_orders_by_tile_lane_step_and_column() {
        let threads = Threads::new(1).unwrap();
        let (k, count) = (11, 18);
        let values: Vec<f32> = (0..k * count).map(|i| i as f32 + 1.0).collect();
        for kernels in Kernels::available().filter(|kernels| kernels.packed_len(k, count) > 0) {
            let mut buffer = vec![f32::NAN; kernels.packed_len(k, count) + 3];
            let packed = kernels.columns(&threads, &values, k, &mut buffer).unwrap().packed.unwrap();
            for (c, i) in [(0, 0), (15, 10), (16, 3), (17, 9)] {
                let at = c / 16 * 256 + (i % 8 * 2 + i / 8) * 16 + c % 16;
                assert_eq!(packed[at], values[c * k + i]);
            }
            assert_eq!(packed[256 + 2], 0.0, "a missing column is zero");
            assert_eq!(packed[(3 * 2 + 1) * 16], 0.0, "K is padded with zeros");
        }
    }

    #[test]
    fn lengths_are_checked() {
        let error = Columns::new(&[0.0; 7], 3).unwrap_err();
        assert_eq!(error, ShapeError { operand: "the activations", expected: 6, found: 7 });
        assert_eq!(Columns::new(&[], 0).unwrap().count(), 0);
    }
}
