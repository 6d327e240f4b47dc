//! AVX2 with FMA.
//!
//! Kernels are safe functions that enable the two features; the only unsafe step is to call one, which the token
//! permits. Loads go through byte arrays, so no pointer appears.
#![expect(unsafe_code, reason = "calling target_feature functions under a token that proves the features")]

mod dense;
mod gemm;
mod mxfp4;

use std::arch::x86_64::*;

use bytemuck::must_cast;
use kimi_quant::MatrixView;

use crate::Columns;
use crate::ops::operations;
use crate::reference::{self, AttentionState, Decay, LANES, Situ};

/// Proof that the processor and the system support AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The token, where CPUID lists both features and the system saves the registers they use.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }

    /// Scratch values of the packed product for matrices of up to `k` columns.
    pub(crate) fn gemm_scratch(self, k: usize) -> usize {
        gemm::scratch(k)
    }

    /// `y = w x`; lengths were checked, `y` is not empty.
    pub(crate) fn matmul(self, w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
        // SAFETY: only `detect` makes a token, after it found AVX2 and FMA.
        unsafe { matmul(w, x, y, scratch) }
    }

    /// The values of one row.
    pub(crate) fn decode_row(self, w: MatrixView<'_>, row: usize, out: &mut [f32]) {
        // SAFETY: only `detect` makes a token, after it found AVX2 and FMA.
        unsafe { decode_row(w, row, out) }
    }
}

/// Methods that compile the reference with the two features enabled.
macro_rules! recompile {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)?;)*) => {
        impl Avx2 {
            $(
                #[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
                pub(crate) fn $name(self, $($argument: $type),*) $(-> $output)? {
                    #[target_feature(enable = "avx2,fma")]
                    #[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
                    fn compiled($($argument: $type),*) $(-> $output)? {
                        reference::$name($($argument),*)
                    }
                    // SAFETY: only `detect` makes a token, after it found AVX2 and FMA.
                    unsafe { compiled($($argument),*) }
                }
            )*
        }
    };
}

operations!(recompile);

/// Eight float32 values: one register, one step of the virtual lanes.
type Vec8 = [f32; LANES];

#[target_feature(enable = "avx2,fma")]
fn load(values: &Vec8) -> __m256 {
    must_cast(*values)
}

#[target_feature(enable = "avx2,fma")]
fn store(register: __m256) -> Vec8 {
    must_cast(register)
}

/// [`reference::fold`] of one register.
#[target_feature(enable = "avx2,fma")]
fn fold(lanes: __m256) -> f32 {
    let half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
}

/// The first values of a column, in whole steps, and the rest padded with zeros.
#[target_feature(enable = "avx2,fma")]
fn steps(column: &[f32]) -> (&[Vec8], Vec8) {
    let (whole, rest) = column.as_chunks();
    let mut padded = [0.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    (whole, padded)
}

#[target_feature(enable = "avx2,fma")]
fn matmul(w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]) {
    match (x.packed, w) {
        (Some(packed), _) => gemm::gemm(w, packed, x.count, y, scratch),
        (None, MatrixView::F32(w)) => dense::F32::gemv(w, x, y),
        (None, MatrixView::Bf16(w)) => dense::Bf16::gemv(w, x, y),
        (None, MatrixView::Mxfp4(w)) => mxfp4::gemv(w, x, y),
        (None, _) => unreachable!("every encoding has a kernel"),
    }
}

#[target_feature(enable = "avx2,fma")]
fn decode_row(w: MatrixView<'_>, row: usize, out: &mut [f32]) {
    match w {
        MatrixView::Mxfp4(w) => mxfp4::decode_row(w.row(row), out),
        // The loop over plain elements vectorises as it stands.
        _ => w.decode_row(row, out),
    }
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
