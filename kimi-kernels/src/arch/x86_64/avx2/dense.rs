//! Products of row-major F32 and BF16 matrices with few columns.

use std::arch::x86_64::*;
use std::array::from_fn;

use bytemuck::must_cast;
use kimi_quant::DenseView;

use super::{fold, in_blocks, load, steps};
use crate::Columns;

#[target_feature(enable = "avx2,fma")]
fn load_f32(bytes: &[u8; 32]) -> __m256 {
    must_cast(*bytes)
}

#[target_feature(enable = "avx2,fma")]
fn load_bf16(bytes: &[u8; 16]) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(must_cast::<_, __m128i>(*bytes))))
}

/// The kernels of one plain element type, `$bytes` being eight stored elements and `$load` their values.
macro_rules! dense {
    ($name:ident, $element:ty, $bytes:literal, $load:ident) => {
        pub(super) struct $name;

        impl $name {
            #[target_feature(enable = "avx2,fma")]
            pub(super) fn gemv(w: DenseView<'_, $element>, x: Columns<'_>, y: &mut [f32]) {
                let count = x.count;
                macro_rules! block {
                    ($r:literal, $c:literal, $row:expr, $column:expr) => {
                        let rows: [&[u8]; $r] = from_fn(|i| w.row($row + i));
                        let columns: [&[f32]; $c] = from_fn(|i| x.column($column + i));
                        let block = Self::block::<$r, $c>(rows, columns);
                        for (i, values) in block.iter().enumerate() {
                            y[($row + i) * count + $column..][..$c].copy_from_slice(values);
                        }
                    };
                }
                in_blocks!(w.rows(), count, [8, 4, 4, 2], block);
            }

            /// The products of `R` rows with `C` columns: one register of lanes for each.
            #[target_feature(enable = "avx2,fma")]
            fn block<const R: usize, const C: usize>(
                rows: [&[u8]; R],
                columns: [&[f32]; C],
            ) -> [[f32; C]; R] {
                let columns: [_; C] = from_fn(|c| steps(columns[c]));
                let count = columns[0].0.len();
                let x: [_; C] = from_fn(|c| &columns[c].0[..count]);
                let w: [_; R] = from_fn(|r| &rows[r].as_chunks::<$bytes>().0[..count]);
                let mut lanes = [[_mm256_setzero_ps(); C]; R];
                for step in 0..count {
                    for r in 0..R {
                        let weights = $load(&w[r][step]);
                        for c in 0..C {
                            lanes[r][c] = _mm256_fmadd_ps(weights, load(&x[c][step]), lanes[r][c]);
                        }
                    }
                }
                for r in 0..R {
                    let rest = rows[r].as_chunks::<$bytes>().1;
                    if !rest.is_empty() {
                        let mut padded = [0; $bytes];
                        padded[..rest.len()].copy_from_slice(rest);
                        let weights = $load(&padded);
                        for c in 0..C {
                            lanes[r][c] = _mm256_fmadd_ps(weights, load(&columns[c].1), lanes[r][c]);
                        }
                    }
                }
                let mut sums = [[0.0; C]; R];
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = fold(lanes[r][c]);
                    }
                }
                sums
            }
        }
    };
}

dense!(F32, f32, 32, load_f32);
dense!(Bf16, kimi_quant::Bf16, 16, load_bf16);
