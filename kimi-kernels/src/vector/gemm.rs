//! The product with many columns: weights are decoded once into a panel, and registers run along the columns.
//!
//! A register block holds one virtual lane of 6 rows x 16 columns and walks all steps of that lane, so K needs no
//! blocking and the eight lanes of a block are folded while they are in the first-level cache. `docs/kernels.md`
//! compares this with registers along K.

use kimi_quant::MatrixView;

use kimi_quant::int::BAND_ROWS;

use super::{Vector, WIDE, bands, decode_row};
use crate::columns::TILE_COLUMNS;
use crate::reference::LANES;

const _: () = assert!(WIDE == TILE_COLUMNS, "a wide register holds the columns of a packed tile");

/// Rows of a register block: with AVX2, twelve registers of sums, two of activations, one of weights.
const ROWS: usize = 6;

/// Row groups of the largest panel; more rows reuse a tile of activations more often.
const MAX_GROUPS: usize = 8;

/// Floats that a panel may take: with the tile of activations it stays in the second and third level caches.
const PANEL_FLOATS: usize = MAX_GROUPS * ROWS * 8192;

/// A register block of sums: for each row, sixteen columns.
type Block = [[f32; WIDE]; ROWS];
const BLOCK_FLOATS: usize = ROWS * WIDE;

/// Row groups of a panel for rows of `padded` values.
fn groups(padded: usize) -> usize {
    (PANEL_FLOATS / (ROWS * padded).max(1)).clamp(1, MAX_GROUPS)
}

/// Scratch values for rows of up to `k` values: a panel, the sums of all lanes, one decoded row or band.
pub(crate) fn scratch(k: usize) -> usize {
    let padded = k.next_multiple_of(LANES);
    // An upper bound for all shorter rows too, whose panels may have more groups.
    (MAX_GROUPS * ROWS * padded).min(PANEL_FLOATS).max(ROWS * padded)
        + LANES * MAX_GROUPS * BLOCK_FLOATS
        + bands::panel_floats(k)
}

#[inline(always)]
pub(super) fn gemm<V: Vector>(
    v: V,
    w: MatrixView<'_>,
    packed: &[f32],
    count: usize,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let (k, steps) = (w.cols(), w.cols().div_ceil(LANES));
    if steps == 0 {
        return y.fill(0.0);
    }
    let groups = groups(steps * LANES);
    let (panel, rest) = scratch.split_at_mut(groups * ROWS * steps * LANES);
    let (sums, rest) = rest.split_at_mut(LANES * groups * BLOCK_FLOATS);
    let decoded = &mut rest[..bands::panel_floats(k)];
    let in_bands = w.encoding().row_multiple() == BAND_ROWS;
    let panel = panel.as_chunks_mut::<ROWS>().0;
    let sums = sums.as_chunks_mut::<WIDE>().0.as_chunks_mut::<ROWS>().0;
    for (index, y) in y.chunks_mut(groups * ROWS * count).enumerate() {
        let rows = y.len() / count;
        // Rows of the panel that the matrix does not have keep old values; their sums are not written out.
        for r in 0..rows {
            let row = index * groups * ROWS + r;
            // Rows of a band are decoded together, and lie side by side then.
            if (row.is_multiple_of(BAND_ROWS) || r == 0) && in_bands {
                bands::decode_band(v, w, row / BAND_ROWS, decoded);
            }
            let stride = if in_bands { BAND_ROWS } else { 1 };
            if !in_bands {
                decode_row(v, w, row, &mut decoded[..k]);
            }
            let first = if in_bands { row % BAND_ROWS } else { 0 };
            for step in 0..steps {
                for lane in 0..LANES {
                    let at = step * LANES + lane;
                    let value = if at < k { decoded[at * stride + first] } else { 0.0 };
                    panel[(lane * groups + r / ROWS) * steps + step][r % ROWS] = value;
                }
            }
        }
        let used = rows.div_ceil(ROWS);
        for (tile, x) in packed.chunks_exact(LANES * steps * WIDE).enumerate() {
            let x = x.as_chunks::<WIDE>().0;
            for (lane, x) in x.chunks_exact(steps).enumerate() {
                for group in 0..used {
                    let at = lane * groups + group;
                    sums[at] = block(v, &panel[at * steps..][..steps], x);
                }
            }
            fold_lanes(sums, groups);
            let first = tile * WIDE;
            let width = WIDE.min(count - first);
            for (r, values) in sums[..used].as_flattened()[..rows].iter().enumerate() {
                y[r * count + first..][..width].copy_from_slice(&values[..width]);
            }
        }
    }
}

/// One lane of one register block, over all steps.
#[inline(always)]
fn block<V: Vector>(v: V, w: &[[f32; ROWS]], x: &[[f32; WIDE]]) -> Block {
    let mut sums = [v.wide_zero(); ROWS];
    for (w, x) in w.iter().zip(x) {
        let x = v.wide_load(x);
        for r in 0..ROWS {
            sums[r] = v.wide_fma(w[r], x, sums[r]);
        }
    }
    let mut block = [[0.0; WIDE]; ROWS];
    for r in 0..ROWS {
        block[r] = v.wide_store(sums[r]);
    }
    block
}

/// Folds the lanes of all blocks, halves onto halves, into the blocks of lane 0.
#[inline(always)]
fn fold_lanes(sums: &mut [Block], groups: usize) {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        let (low, high) = sums[..2 * width * groups].split_at_mut(width * groups);
        let high = high.as_flattened().as_flattened();
        // Plain sums vectorise as they stand.
        for (low, high) in low.as_flattened_mut().as_flattened_mut().iter_mut().zip(high) {
            *low += *high;
        }
    }
}
