//! Products of MXFP4 matrices with few columns, and decoded rows.

use std::arch::x86_64::*;
use std::array::from_fn;

use bytemuck::must_cast;
use kimi_quant::mxfp4::GROUP_SIZE;
use kimi_quant::{E8m0, Mxfp4View};

use super::{fold, in_blocks, load, store};
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

/// The 32 weights of a group, eight to a register.
///
/// Every E2M1 value is a float32 whose lower 16 bits are zero, so two byte lookups build it; the product with the scale
/// is exact. Shuffles work within 128 bits, so the nibbles are dealt out first: the lower half of a register gets
/// columns 0 to 3 of each eight, the upper half columns 4 to 7.
#[target_feature(enable = "avx2,fma")]
fn group_weights(codes: &[u8; GROUP_SIZE / 2], scale: u8) -> [__m256; STEPS] {
    let deal = _mm256_setr_epi8(
        0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13, 2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14,
        15, 15,
    );
    // Bytes 3 and 2 of the float32 of each code.
    let upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40,
    ));
    let lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40,
    ));
    let bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(must_cast(*codes)), deal);
    let even = _mm256_and_si256(bytes, _mm256_set1_epi16(0x000f));
    let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi16(0x0f00));
    let codes = _mm256_or_si256(even, odd);
    let (upper, lower) = (_mm256_shuffle_epi8(upper, codes), _mm256_shuffle_epi8(lower, codes));
    let (first, second) = (_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper));
    let (zero, scale) = (_mm256_setzero_si256(), _mm256_set1_ps(SCALES[usize::from(scale)]));
    [
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, first)), scale),
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, first)), scale),
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, second)), scale),
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, second)), scale),
    ]
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn gemv(w: Mxfp4View<'_>, x: Columns<'_>, y: &mut [f32]) {
    let count = x.count;
    macro_rules! block {
        ($r:literal, $c:literal, $row:expr, $column:expr) => {
            let rows: [(&[u8], &[u8]); $r] = from_fn(|i| w.row($row + i));
            let columns: [&[f32]; $c] = from_fn(|i| x.column($column + i));
            let block = block::<$r, $c>(rows, columns);
            for (i, values) in block.iter().enumerate() {
                y[($row + i) * count + $column..][..$c].copy_from_slice(values);
            }
        };
    }
    in_blocks!(w.rows(), count, [4, 4, 4, 2], block);
}

/// The products of `R` rows with `C` columns: one register of lanes for each.
#[target_feature(enable = "avx2,fma")]
fn block<const R: usize, const C: usize>(rows: [(&[u8], &[u8]); R], columns: [&[f32]; C]) -> [[f32; C]; R] {
    let groups = rows[0].1.len();
    let codes: [_; R] = from_fn(|r| &rows[r].0.as_chunks::<{ GROUP_SIZE / 2 }>().0[..groups]);
    let scales: [_; R] = from_fn(|r| &rows[r].1[..groups]);
    let x: [_; C] = from_fn(|c| &columns[c].as_chunks::<GROUP_SIZE>().0[..groups]);
    let mut lanes = [[_mm256_setzero_ps(); C]; R];
    for group in 0..groups {
        for r in 0..R {
            let weights = group_weights(&codes[r][group], scales[r][group]);
            for step in 0..STEPS {
                for c in 0..C {
                    let x = load(&x[c][group].as_chunks::<LANES>().0[step]);
                    lanes[r][c] = _mm256_fmadd_ps(weights[step], x, lanes[r][c]);
                }
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

/// The values of one row.
#[target_feature(enable = "avx2,fma")]
pub(super) fn decode_row((codes, scales): (&[u8], &[u8]), out: &mut [f32]) {
    let groups = codes.as_chunks::<{ GROUP_SIZE / 2 }>().0.iter().zip(scales);
    for ((codes, &scale), out) in groups.zip(out.as_chunks_mut::<GROUP_SIZE>().0) {
        let weights = group_weights(codes, scale);
        for (step, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            *out = store(weights[step]);
        }
    }
}
