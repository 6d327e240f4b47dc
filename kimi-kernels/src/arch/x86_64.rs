//! x86-64: 256-bit registers throughout, and 512-bit ones for sixteen columns where AVX-512 has them.
#![expect(unsafe_code, reason = "intrinsics under a token that proves the features")]

use std::arch::x86_64::*;

mod amx;
mod avx2;
mod avx512;

pub(crate) use amx::Amx;
pub(crate) use avx2::{Avx2, AvxVnni};
pub(crate) use avx512::{Avx512, Avx512Vnni};

/// The operations of [`Vector`](crate::vector::Vector) that are the same instructions with AVX2 and with AVX-512.
macro_rules! ymm_operations {
    (dot $dot:ident) => {
        type F = __m256;
        type I = __m256i;

        #[inline(always)]
        fn zero(self) -> __m256 {
            // SAFETY: the token proves AVX.
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        fn load(self, values: &Vec8) -> __m256 {
            must_cast(*values)
        }

        #[inline(always)]
        fn load_f32(self, bytes: &[u8; 32]) -> __m256 {
            must_cast(*bytes)
        }

        #[inline(always)]
        fn load_bf16(self, bytes: &[u8; 16]) -> __m256 {
            // SAFETY: the token proves AVX2.
            unsafe { widen(must_cast(*bytes)) }
        }

        #[inline(always)]
        fn store(self, values: __m256) -> Vec8 {
            must_cast(values)
        }

        #[inline(always)]
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: the token proves FMA.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn fold(self, lanes: __m256) -> f32 {
            // SAFETY: the token proves AVX.
            unsafe {
                let half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
                let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
                _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
            }
        }

        #[inline(always)]
        fn splat(self, value: f32) -> __m256 {
            // SAFETY: the token proves AVX.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        fn mul(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: the token proves AVX.
            unsafe { _mm256_mul_ps(a, b) }
        }

        #[inline(always)]
        fn add(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: the token proves AVX.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        fn load_bytes(self, bytes: &[u8; 32]) -> __m256i {
            must_cast(*bytes)
        }

        #[inline(always)]
        fn store_bytes(self, register: __m256i) -> [u8; 32] {
            must_cast(register)
        }

        #[inline(always)]
        fn int_zero(self) -> __m256i {
            // SAFETY: the token proves AVX.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        fn field<const SHIFT: i32>(self, bytes: __m256i, mask: u8) -> __m256i {
            // SAFETY: the token proves AVX2.
            unsafe { _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(bytes), _mm256_set1_epi8(mask as i8)) }
        }

        #[inline(always)]
        fn join<const SHIFT: i32>(self, low: __m256i, high: __m256i) -> __m256i {
            // SAFETY: the token proves AVX2.
            unsafe { _mm256_or_si256(low, _mm256_slli_epi16::<SHIFT>(high)) }
        }

        #[inline(always)]
        fn lookup(self, table: &[i8; 16], indices: __m256i) -> __m256i {
            let table: __m128i = must_cast(*table);
            // SAFETY: the token proves AVX2.
            unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices) }
        }

        #[inline(always)]
        fn dot_unsigned(self, sums: __m256i, w: __m256i, x: [i8; 4]) -> __m256i {
            // SAFETY: the token proves AVX2 and what the dot product needs.
            unsafe { $dot(sums, w, _mm256_set1_epi32(must_cast(x))) }
        }

        /// The sign moves from the weights to the activations, so that one side is unsigned.
        #[inline(always)]
        fn dot_signed(self, sums: __m256i, w: __m256i, x: [i8; 4]) -> __m256i {
            // SAFETY: the token proves AVX2 and what the dot product needs.
            unsafe { $dot(sums, _mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(must_cast(x)), w)) }
        }

        #[inline(always)]
        fn subtract_product(self, sums: __m256i, zeros: [i32; 8], factor: i32) -> __m256i {
            // SAFETY: the token proves AVX2.
            unsafe { _mm256_sub_epi32(sums, _mm256_mullo_epi32(must_cast(zeros), _mm256_set1_epi32(factor))) }
        }

        #[inline(always)]
        fn to_f32(self, values: __m256i) -> __m256 {
            // SAFETY: the token proves AVX.
            unsafe { _mm256_cvtepi32_ps(values) }
        }

        #[inline(always)]
        fn byte<const J: usize>(self, bytes: __m256i) -> __m256i {
            // SAFETY: the token proves AVX2. The byte goes to the top and comes down again with its sign.
            unsafe {
                _mm256_srai_epi32::<24>(match J {
                    0 => _mm256_slli_epi32::<24>(bytes),
                    1 => _mm256_slli_epi32::<16>(bytes),
                    2 => _mm256_slli_epi32::<8>(bytes),
                    _ => bytes,
                })
            }
        }

        #[inline(always)]
        fn subtract(self, a: __m256i, b: [i32; 8]) -> __m256i {
            // SAFETY: the token proves AVX2.
            unsafe { _mm256_sub_epi32(a, must_cast(b)) }
        }

        /// Bytes first: the upper byte of a BF16 is sign and exponent but its last bit, the lower one that bit and the mantissa.
        #[inline(always)]
        fn bf12(self, signs: &[u8; 32], exponents: &[u8; 16], table: &[u8; 16]) -> [__m256; 4] {
            // SAFETY: the token proves AVX2.
            unsafe {
                let (signs, indices): (__m256i, __m128i) = (must_cast(*signs), must_cast(*exponents));
                let indices = _mm256_set_m128i(_mm_srli_epi16::<4>(indices), indices);
                let indices = _mm256_and_si256(indices, _mm256_set1_epi8(15));
                let exponents = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(must_cast(*table)), indices);
                let (sign, rest) = (_mm256_set1_epi8(-0x80), _mm256_set1_epi8(0x7f));
                let upper = _mm256_or_si256(
                    _mm256_and_si256(signs, sign),
                    _mm256_and_si256(_mm256_srli_epi16::<1>(exponents), rest),
                );
                let lower = _mm256_or_si256(
                    _mm256_and_si256(signs, rest),
                    _mm256_and_si256(_mm256_slli_epi16::<7>(exponents), sign),
                );
                let first = _mm256_unpacklo_epi8(lower, upper);
                let second = _mm256_unpackhi_epi8(lower, upper);
                [
                    widen(_mm256_castsi256_si128(first)),
                    widen(_mm256_castsi256_si128(second)),
                    widen(_mm256_extracti128_si256::<1>(first)),
                    widen(_mm256_extracti128_si256::<1>(second)),
                ]
            }
        }

        /// Every E2M1 value is a float32 whose lower 16 bits are zero, so two byte lookups build it; the product with
        /// the scale is exact. Shuffles work within 128 bits, so the nibbles are dealt out first: the lower half of a
        /// register gets columns 0 to 3 of each eight, the upper half columns 4 to 7.
        #[inline(always)]
        fn mxfp4(self, codes: &[u8; GROUP_SIZE / 2], scale: f32) -> [__m256; GROUP_SIZE / LANES] {
            // SAFETY: the token proves AVX2.
            unsafe {
                let deal = _mm256_setr_epi8(
                    0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13, 2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11,
                    11, 14, 14, 15, 15,
                );
                // Bytes 3 and 2 of the float32 of each code.
                let upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                    0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40,
                    -0x40, -0x40,
                ));
                let lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                    0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40,
                ));
                let bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(must_cast(*codes)), deal);
                let even = _mm256_and_si256(bytes, _mm256_set1_epi16(0x000f));
                let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi16(0x0f00));
                let codes = _mm256_or_si256(even, odd);
                let (upper, lower) = (_mm256_shuffle_epi8(upper, codes), _mm256_shuffle_epi8(lower, codes));
                let (first, second) =
                    (_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper));
                let (zero, scale) = (_mm256_setzero_si256(), _mm256_set1_ps(scale));
                [
                    _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, first)), scale),
                    _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, first)), scale),
                    _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, second)), scale),
                    _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, second)), scale),
                ]
            }
        }
    };
}
use ymm_operations;

/// Eight BF16 values as float32.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn widen(halves: __m128i) -> __m256 {
    // SAFETY: the caller's word.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))) }
}

/// Adds to each sum the four products of its bytes: unsigned `w`, signed `x`. Pairs must fit 16 bits, as products of codes of up to
/// 6 bits, or of magnitudes up to 127, with magnitudes up to 127 do.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn multiply_add(sums: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's word.
    unsafe {
        let pairs = _mm256_maddubs_epi16(w, x);
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// The same in one instruction of AVX-VNNI.
///
/// # Safety
/// The processor has AVX-VNNI.
#[inline(always)]
unsafe fn dot_vnni(sums: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's word.
    unsafe { _mm256_dpbusd_avx_epi32(sums, w, x) }
}

/// The same in one instruction of AVX-512 VNNI.
///
/// # Safety
/// The processor has AVX-512 VNNI and VL.
#[inline(always)]
unsafe fn dot_vnni512(sums: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's word.
    unsafe { _mm256_dpbusd_epi32(sums, w, x) }
}
