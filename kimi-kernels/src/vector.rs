//! Kernels written once over eight lanes, compiled for every instruction set.
//!
//! [`Vector`] names the register operations that the kernels need; the modules below are generic over it, and every
//! function in them is inlined into one entry per instruction set, where the processor's features are enabled. So an
//! instruction set is one implementation of this trait, and a kernel is one piece of source.

pub(crate) mod dense;
pub(crate) mod gemm;
pub(crate) mod mxfp4;

use kimi_quant::MatrixView;
use kimi_quant::mxfp4::GROUP_SIZE;

use crate::Columns;
use crate::reference::{self, LANES};

/// Eight float32 values in memory: one step of the virtual lanes.
pub(crate) type Vec8 = [f32; LANES];

/// Columns that a [`Vector::Wide`] holds.
pub(crate) const WIDE: usize = 16;

/// Register operations of one instruction set. A value is proof that the processor has it.
///
/// All arithmetic is IEEE 754 in float32, one rounding per operation, so results do not depend on the implementation.
pub(crate) trait Vector: Copy {
    /// Eight float32 values, element `j` being virtual lane `j`.
    type F: Copy;
    /// Sixteen float32 values.
    type Wide: Copy;

    fn zero(self) -> Self::F;
    fn load(self, values: &Vec8) -> Self::F;
    /// Eight stored float32 values.
    fn load_f32(self, bytes: &[u8; 32]) -> Self::F;
    /// Eight stored BF16 values.
    fn load_bf16(self, bytes: &[u8; 16]) -> Self::F;
    fn store(self, values: Self::F) -> Vec8;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// [`fold`](crate::reference::fold).
    fn fold(self, lanes: Self::F) -> f32;

    fn wide_zero(self) -> Self::Wide;
    fn wide_load(self, values: &[f32; WIDE]) -> Self::Wide;
    fn wide_store(self, values: Self::Wide) -> [f32; WIDE];
    /// `a * b + c` with one value for all columns in `a`.
    fn wide_fma(self, a: f32, b: Self::Wide, c: Self::Wide) -> Self::Wide;

    /// The 32 weights of an MXFP4 group, whose byte `b` holds column `2b` in its low nibble: eight to a register.
    fn mxfp4(self, codes: &[u8; GROUP_SIZE / 2], scale: f32) -> [Self::F; GROUP_SIZE / LANES];
}

/// The products of a matrix with columns; lengths were checked, `y` is not empty.
#[inline(always)]
pub(crate) fn matmul<V: Vector>(v: V, w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
    match (x.packed, w) {
        (Some(packed), _) => gemm::gemm(v, w, packed, x.count, y, scratch),
        (None, MatrixView::F32(w)) => dense::gemv::<V, dense::F32>(v, w, x, y),
        (None, MatrixView::Bf16(w)) => dense::gemv::<V, dense::Bf16>(v, w, x, y),
        (None, MatrixView::Mxfp4(w)) => mxfp4::gemv(v, w, x, y),
        (None, _) => decoded(v, w, x, y, scratch),
    }
}

/// Any other encoding: each row is decoded once and multiplied with every column.
#[inline(always)]
fn decoded<V: Vector>(v: V, w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
    let row = &mut scratch[..w.cols()];
    for (r, y) in y.chunks_exact_mut(x.count).enumerate() {
        decode_row(v, w, r, row);
        for (c, y) in y.iter_mut().enumerate() {
            *y = reference::dot(row, x.column(c));
        }
    }
}

/// The values of one row.
#[inline(always)]
pub(crate) fn decode_row<V: Vector>(v: V, w: MatrixView<'_>, row: usize, out: &mut [f32]) {
    match w {
        MatrixView::Mxfp4(w) => mxfp4::decode_row(v, w.row(row), out),
        // The loop over plain elements vectorises as it stands.
        _ => w.decode_row(row, out),
    }
}

/// The first values of a column, in whole steps, and the rest padded with zeros.
#[inline(always)]
fn steps(column: &[f32]) -> (&[Vec8], Vec8) {
    let (whole, rest) = column.as_chunks();
    let mut padded = [0.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    (whole, padded)
}

/// Walks a product of few columns in register blocks: `block!(R, C, first_row, first_column)` for each.
///
/// Columns go by four, the rest by its number; `$r1` to `$r4` are the rows of a block of one to four columns.
macro_rules! in_blocks {
    ($rows:expr, $columns:expr, [$r1:literal, $r2:literal, $r3:literal, $r4:literal], $block:ident) => {{
        let (rows, columns): (usize, usize) = ($rows, $columns);
        let mut c = 0;
        while c < columns {
            macro_rules! all_rows {
                ($r:literal, $c:literal) => {{
                    let mut r = 0;
                    while r + $r <= rows {
                        $block!($r, $c, r, c);
                        r += $r;
                    }
                    while r < rows {
                        $block!(1, $c, r, c);
                        r += 1;
                    }
                    c += $c;
                }};
            }
            match columns - c {
                1 => all_rows!($r1, 1),
                2 => all_rows!($r2, 2),
                3 => all_rows!($r3, 3),
                _ => all_rows!($r4, 4),
            }
        }
    }};
}
use in_blocks;
