//! Products of row-major MXFP4 matrices with few columns, and decoded rows.

use kimi_quant::mxfp4::GROUP_SIZE;
use kimi_quant::{E8m0, Mxfp4View};

use super::{Vector, in_blocks};
use crate::Columns;
use crate::reference::LANES;

/// The value of each scale byte: a load is cheaper here than the two special cases.
static SCALES: [f32; 256] = {
    let mut scales = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        scales[byte] = E8m0(byte as u8).to_f32();
        byte += 1;
    }
    scales
};

/// Steps of eight columns in one group.
const STEPS: usize = GROUP_SIZE / LANES;

#[inline(always)]
pub(super) fn gemv<V: Vector>(v: V, w: Mxfp4View<'_>, x: Columns<'_>, y: &mut [f32]) {
    let count = x.count;
    macro_rules! block {
        ($r:literal, $c:literal, $row:expr, $column:expr) => {
            let mut rows: [(&[u8], &[u8]); $r] = [(&[], &[]); $r];
            let mut columns: [&[f32]; $c] = [&[]; $c];
            for i in 0..$r {
                rows[i] = w.row($row + i);
            }
            for i in 0..$c {
                columns[i] = x.column($column + i);
            }
            let block = block::<V, $r, $c>(v, rows, columns);
            for (i, values) in block.iter().enumerate() {
                y[($row + i) * count + $column..][..$c].copy_from_slice(values);
            }
        };
    }
    in_blocks!(w.rows(), count, [4, 4, 4, 2], block);
}

/// The products of `R` rows with `C` columns: one register of lanes for each.
#[inline(always)]
fn block<V: Vector, const R: usize, const C: usize>(
    v: V,
    rows: [(&[u8], &[u8]); R],
    columns: [&[f32]; C],
) -> [[f32; C]; R] {
    let groups = rows[0].1.len();
    let mut codes = [&[][..]; R];
    let mut scales = [&[][..]; R];
    for r in 0..R {
        codes[r] = &rows[r].0.as_chunks::<{ GROUP_SIZE / 2 }>().0[..groups];
        scales[r] = &rows[r].1[..groups];
    }
    let mut x = [&[][..]; C];
    for c in 0..C {
        x[c] = &columns[c].as_chunks::<GROUP_SIZE>().0[..groups];
    }
    let mut lanes = [[v.zero(); C]; R];
    for group in 0..groups {
        for r in 0..R {
            let weights = v.mxfp4(&codes[r][group], SCALES[usize::from(scales[r][group])]);
            for step in 0..STEPS {
                for c in 0..C {
                    let x = v.load(&x[c][group].as_chunks::<LANES>().0[step]);
                    lanes[r][c] = v.fma(weights[step], x, lanes[r][c]);
                }
            }
        }
    }
    let mut sums = [[0.0; C]; R];
    for r in 0..R {
        for c in 0..C {
            sums[r][c] = v.fold(lanes[r][c]);
        }
    }
    sums
}

/// The values of one row.
#[inline(always)]
pub(super) fn decode_row<V: Vector>(v: V, (codes, scales): (&[u8], &[u8]), out: &mut [f32]) {
    let groups = codes.as_chunks::<{ GROUP_SIZE / 2 }>().0.iter().zip(scales);
    for ((codes, &scale), out) in groups.zip(out.as_chunks_mut::<GROUP_SIZE>().0) {
        let weights = v.mxfp4(codes, SCALES[usize::from(scale)]);
        for (step, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            *out = v.store(weights[step]);
        }
    }
}
