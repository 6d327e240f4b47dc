//! x86-64: 256-bit registers throughout, and 512-bit ones for sixteen columns where AVX-512 has them.
#![expect(unsafe_code, reason = "intrinsics under a token that proves the features")]

mod avx2;
mod avx512;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::Avx512;

/// The operations of [`Vector`](crate::vector::Vector) that are the same instructions with AVX2 and with AVX-512.
macro_rules! ymm_operations {
    () => {
        type F = __m256;

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
            let halves: __m128i = must_cast(*bytes);
            // SAFETY: the token proves AVX2.
            unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))) }
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
