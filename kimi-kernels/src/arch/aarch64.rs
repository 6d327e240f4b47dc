//! AArch64 with NEON: every such processor has it. An eight-lane value is two 128-bit registers.
#![expect(unsafe_code, reason = "intrinsics under a token that proves the features")]

use std::arch::aarch64::*;

use bytemuck::must_cast;
use kimi_quant::MatrixView;
use kimi_quant::mxfp4::GROUP_SIZE;

use crate::Columns;
use crate::ops::operations;
use crate::reference::{AttentionState, Decay, LANES, Situ};
use crate::vector::{Vec8, Vector, WIDE};

/// Proof that the processor supports NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// The token, where the system lists the feature.
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

operations!(compile [Neon "neon"]);

/// The bytes of one register.
#[inline(always)]
fn bytes(values: [u8; 16]) -> uint8x16_t {
    must_cast(values)
}

impl Vector for Neon {
    type F = [float32x4_t; 2];
    type Wide = [float32x4_t; 4];

    #[inline(always)]
    fn zero(self) -> Self::F {
        must_cast([0.0f32; LANES])
    }

    #[inline(always)]
    fn load(self, values: &Vec8) -> Self::F {
        must_cast(*values)
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 32]) -> Self::F {
        must_cast(*bytes)
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 16]) -> Self::F {
        let halves: uint16x8_t = must_cast(*bytes);
        // SAFETY: the token proves NEON.
        unsafe {
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(halves))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(halves)),
            ]
        }
    }

    #[inline(always)]
    fn store(self, values: Self::F) -> Vec8 {
        must_cast(values)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: the token proves NEON.
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    fn fold(self, lanes: Self::F) -> f32 {
        // SAFETY: the token proves NEON.
        unsafe {
            let half = vaddq_f32(lanes[0], lanes[1]);
            let pair = vadd_f32(vget_low_f32(half), vget_high_f32(half));
            vpadds_f32(pair)
        }
    }

    #[inline(always)]
    fn wide_zero(self) -> Self::Wide {
        must_cast([0.0f32; WIDE])
    }

    #[inline(always)]
    fn wide_load(self, values: &[f32; WIDE]) -> Self::Wide {
        must_cast(*values)
    }

    #[inline(always)]
    fn wide_store(self, values: Self::Wide) -> [f32; WIDE] {
        must_cast(values)
    }

    #[inline(always)]
    fn wide_fma(self, a: f32, b: Self::Wide, c: Self::Wide) -> Self::Wide {
        let mut sums = c;
        for i in 0..sums.len() {
            // SAFETY: the token proves NEON.
            sums[i] = unsafe { vfmaq_n_f32(c[i], b[i], a) };
        }
        sums
    }

    /// Every E2M1 value is a float32 whose lower 16 bits are zero, so two byte lookups build it; the product with the
    /// scale is exact.
    #[inline(always)]
    fn mxfp4(self, codes: &[u8; GROUP_SIZE / 2], scale: f32) -> [Self::F; GROUP_SIZE / LANES] {
        // Bytes 3 and 2 of the float32 of each code.
        let upper =
            [0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0];
        let lower = [0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0, 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0];
        // SAFETY: the token proves NEON.
        unsafe {
            let codes = bytes(*codes);
            let (even, odd) = (vandq_u8(codes, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(codes));
            let mut weights = [self.zero(); GROUP_SIZE / LANES];
            for (half, columns) in [vzip1q_u8(even, odd), vzip2q_u8(even, odd)].into_iter().enumerate() {
                let (upper, lower) = (vqtbl1q_u8(bytes(upper), columns), vqtbl1q_u8(bytes(lower), columns));
                for (step, pairs) in
                    [vzip1q_u8(lower, upper), vzip2q_u8(lower, upper)].into_iter().enumerate()
                {
                    let pairs = vreinterpretq_u16_u8(pairs);
                    weights[half * 2 + step] = [
                        vmulq_n_f32(vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(pairs))), scale),
                        vmulq_n_f32(vreinterpretq_f32_u32(vshll_high_n_u16::<16>(pairs)), scale),
                    ];
                }
            }
            weights
        }
    }
}
