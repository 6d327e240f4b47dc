//! Products of row-major F32 and BF16 matrices with few columns.

use kimi_quant::{DenseView, Element};

use super::{Vector, in_blocks, steps};
use crate::Columns;
use crate::reference::LANES;

/// A plain element type as the kernels load it.
pub(crate) trait Plain {
    type Element: Element;
    /// Bytes of eight elements.
    type Step: AsRef<[u8]> + AsMut<[u8]> + Copy;

    fn steps(row: &[u8]) -> (&[Self::Step], &[u8]);
    fn zeros() -> Self::Step;
    fn load<V: Vector>(v: V, step: &Self::Step) -> V::F;
}

macro_rules! plain {
    ($name:ident, $element:ty, $bytes:literal, $load:ident) => {
        pub(crate) struct $name;

        impl Plain for $name {
            type Element = $element;
            type Step = [u8; $bytes];

            #[inline(always)]
            fn steps(row: &[u8]) -> (&[Self::Step], &[u8]) {
                row.as_chunks()
            }

            #[inline(always)]
            fn zeros() -> Self::Step {
                [0; $bytes]
            }

            #[inline(always)]
            fn load<V: Vector>(v: V, step: &Self::Step) -> V::F {
                v.$load(step)
            }
        }
    };
}

plain!(F32, f32, 32, load_f32);
plain!(Bf16, kimi_quant::Bf16, 16, load_bf16);

#[inline(always)]
pub(super) fn gemv<V: Vector, P: Plain>(v: V, w: DenseView<'_, P::Element>, x: Columns<'_>, y: &mut [f32]) {
    let count = x.count;
    macro_rules! block {
        ($r:literal, $c:literal, $row:expr, $column:expr) => {
            let mut rows: [&[u8]; $r] = [&[]; $r];
            let mut columns: [&[f32]; $c] = [&[]; $c];
            for i in 0..$r {
                rows[i] = w.row($row + i);
            }
            for i in 0..$c {
                columns[i] = x.column($column + i);
            }
            let block = block::<V, P, $r, $c>(v, rows, columns);
            for (i, values) in block.iter().enumerate() {
                y[($row + i) * count + $column..][..$c].copy_from_slice(values);
            }
        };
    }
    in_blocks!(w.rows(), count, [8, 4, 4, 2], block);
}

/// The products of `R` rows with `C` columns: one register of lanes for each.
#[inline(always)]
fn block<V: Vector, P: Plain, const R: usize, const C: usize>(
    v: V,
    rows: [&[u8]; R],
    columns: [&[f32]; C],
) -> [[f32; C]; R] {
    let count = columns[0].len() / LANES;
    let mut x = [&[][..]; C];
    let mut tails = [[0.0; LANES]; C];
    for c in 0..C {
        let (whole, tail) = steps(columns[c]);
        (x[c], tails[c]) = (&whole[..count], tail);
    }
    let mut w = [&[][..]; R];
    for r in 0..R {
        w[r] = &P::steps(rows[r]).0[..count];
    }
    let mut lanes = [[v.zero(); C]; R];
    for step in 0..count {
        for r in 0..R {
            let weights = P::load(v, &w[r][step]);
            for c in 0..C {
                lanes[r][c] = v.fma(weights, v.load(&x[c][step]), lanes[r][c]);
            }
        }
    }
    for r in 0..R {
        let rest = P::steps(rows[r]).1;
        if !rest.is_empty() {
            let mut padded = P::zeros();
            padded.as_mut()[..rest.len()].copy_from_slice(rest);
            let weights = P::load(v, &padded);
            for c in 0..C {
                lanes[r][c] = v.fma(weights, v.load(&tails[c]), lanes[r][c]);
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
