//! AArch64. An eight-lane value is two 128-bit registers of NEON, which every such processor has; what differs are the byte dot
//! products of the fast tier.
#![expect(unsafe_code, reason = "intrinsics under a token that proves the features")]

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use bytemuck::must_cast;
use kimi_quant::MatrixView;
use kimi_quant::mxfp4::GROUP_SIZE;

use crate::Columns;
use crate::integer::IntegerColumns;
use crate::ops::operations;
use crate::reference::{AttentionState, Decay, LANES, Situ};
use crate::vector::tiles::NoTiles;
use crate::vector::{REGISTERS, Vec8, Vector, WIDE};

mod dot;

/// Proof that the processor supports NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// The token, where the system lists the feature.
    pub(crate) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

operations!(compile [Neon "neon"]);

/// Proof that the processor supports NEON and SVE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sve(());

impl Sve {
    /// The token, where the system lists the features.
    pub(crate) fn detect() -> Option<Self> {
        (Neon::detect().is_some() && is_aarch64_feature_detected!("sve")).then_some(Self(()))
    }
}

operations!(compile [Sve "neon,sve"]);

/// Proof that the processor supports NEON and its dot products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonDotprod(());

impl NeonDotprod {
    /// The token, where the system lists the features.
    pub(crate) fn detect() -> Option<Self> {
        (Neon::detect().is_some() && is_aarch64_feature_detected!("dotprod")).then_some(Self(()))
    }
}

operations!(compile [NeonDotprod "neon,dotprod"]);

/// Proof that the processor supports NEON, its dot products and its products of byte matrices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonI8mm(());

impl NeonI8mm {
    /// The token, where the system lists the features.
    pub(crate) fn detect() -> Option<Self> {
        (NeonDotprod::detect().is_some() && is_aarch64_feature_detected!("i8mm")).then_some(Self(()))
    }
}

operations!(compile [NeonI8mm "neon,dotprod,i8mm"]);

/// The bytes of one register.
#[inline(always)]
fn bytes(values: [u8; 16]) -> uint8x16_t {
    must_cast(values)
}

/// [`Vector`] for one token: the operations of NEON, and what the token computes otherwise.
macro_rules! vector {
    ($token:ident { $($own:tt)* }) => {
        impl Vector for $token {
            type F = [float32x4_t; 2];
            type I = [int8x16_t; 2];
            type Wide = [float32x4_t; 4];
            type Tiles = NoTiles;

            #[inline(always)]
            fn tiles(self, _: usize) -> Option<NoTiles> {
                None
            }

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
            fn splat(self, value: f32) -> Self::F {
                must_cast([value; LANES])
            }

            #[inline(always)]
            fn mul(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves NEON.
                unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
            }

            #[inline(always)]
            fn add(self, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the token proves NEON.
                unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
            }

            #[inline(always)]
            fn load_bytes(self, bytes: &[u8; 32]) -> Self::I {
                must_cast(*bytes)
            }

            #[inline(always)]
            fn store_bytes(self, register: Self::I) -> [u8; 32] {
                must_cast(register)
            }

            #[inline(always)]
            fn int_zero(self) -> Self::I {
                must_cast([0u8; 32])
            }

            #[inline(always)]
            fn field<const SHIFT: i32>(self, bytes: Self::I, mask: u8) -> Self::I {
                // SAFETY: the token proves NEON.
                bytes.map(|bytes| unsafe {
                    let shifted = vshlq_u8(vreinterpretq_u8_s8(bytes), vdupq_n_s8(-SHIFT as i8));
                    vreinterpretq_s8_u8(vandq_u8(shifted, vdupq_n_u8(mask)))
                })
            }

            #[inline(always)]
            fn join<const SHIFT: i32>(self, low: Self::I, high: Self::I) -> Self::I {
                let mut joined = low;
                for i in 0..2 {
                    // SAFETY: the token proves NEON.
                    joined[i] = unsafe { vorrq_s8(low[i], vshlq_n_s8::<SHIFT>(high[i])) };
                }
                joined
            }

            #[inline(always)]
            fn lookup(self, table: &[i8; 16], indices: Self::I) -> Self::I {
                let table: int8x16_t = must_cast(*table);
                // SAFETY: the token proves NEON.
                indices.map(|indices| unsafe { vqtbl1q_s8(table, vreinterpretq_u8_s8(indices)) })
            }

            /// Codes of up to 7 bits are the same signed.
            #[inline(always)]
            fn dot_unsigned(self, sums: Self::I, w: Self::I, x: [i8; 4]) -> Self::I {
                self.dot_signed(sums, w, x)
            }

            #[inline(always)]
            fn dot_signed(self, sums: Self::I, w: Self::I, x: [i8; 4]) -> Self::I {
                let mut next = sums;
                for i in 0..2 {
                    // SAFETY: the token proves NEON.
                    next[i] = unsafe {
                        let x = vreinterpretq_s8_s32(vdupq_n_s32(must_cast(x)));
                        let low = vpaddlq_s16(vmull_s8(vget_low_s8(w[i]), vget_low_s8(x)));
                        let high = vpaddlq_s16(vmull_high_s8(w[i], x));
                        vreinterpretq_s8_s32(vaddq_s32(vreinterpretq_s32_s8(sums[i]), vpaddq_s32(low, high)))
                    };
                }
                next
            }

            #[inline(always)]
            fn subtract_product(self, sums: Self::I, zeros: [i32; 8], factor: i32) -> Self::I {
                let zeros: [int32x4_t; 2] = must_cast(zeros);
                let mut next = sums;
                for i in 0..2 {
                    // SAFETY: the token proves NEON.
                    next[i] = unsafe {
                        vreinterpretq_s8_s32(vmlsq_s32(vreinterpretq_s32_s8(sums[i]), zeros[i], vdupq_n_s32(factor)))
                    };
                }
                next
            }

            #[inline(always)]
            fn to_f32(self, values: Self::I) -> Self::F {
                // SAFETY: the token proves NEON.
                values.map(|values| unsafe { vcvtq_f32_s32(vreinterpretq_s32_s8(values)) })
            }

            #[inline(always)]
            fn byte<const J: usize>(self, bytes: Self::I) -> Self::I {
                let up = 24 - 8 * J as i32;
                // SAFETY: the token proves NEON. The byte goes to the top and comes down again with its sign.
                bytes.map(|bytes| unsafe {
                    let top = vshlq_s32(vreinterpretq_s32_s8(bytes), vdupq_n_s32(up));
                    vreinterpretq_s8_s32(vshrq_n_s32::<24>(top))
                })
            }

            #[inline(always)]
            fn subtract(self, a: Self::I, b: [i32; 8]) -> Self::I {
                let b: [int32x4_t; 2] = must_cast(b);
                let mut next = a;
                for i in 0..2 {
                    // SAFETY: the token proves NEON.
                    next[i] = unsafe { vreinterpretq_s8_s32(vsubq_s32(vreinterpretq_s32_s8(a[i]), b[i])) };
                }
                next
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

            /// Bytes first: the upper byte of a BF16 is sign and exponent but its last bit, the lower one that bit and the mantissa.
            #[inline(always)]
            fn bf12(self, signs: &[u8; 32], exponents: &[u8; 16], table: &[u8; 16]) -> [Self::F; 4] {
                let signs: [uint8x16_t; 2] = must_cast(*signs);
                let mut weights = [self.zero(); 4];
                // SAFETY: the token proves NEON.
                unsafe {
                    let packed = bytes(*exponents);
                    for (half, indices) in
                        [vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed)].into_iter().enumerate()
                    {
                        let exponents = vqtbl1q_u8(bytes(*table), indices);
                        let (sign, rest) = (vdupq_n_u8(0x80), vdupq_n_u8(0x7f));
                        let upper = vorrq_u8(vandq_u8(signs[half], sign), vshrq_n_u8::<1>(exponents));
                        let lower = vorrq_u8(vandq_u8(signs[half], rest), vshlq_n_u8::<7>(exponents));
                        for (part, halves) in
                            [vzip1q_u8(lower, upper), vzip2q_u8(lower, upper)].into_iter().enumerate()
                        {
                            let halves = vreinterpretq_u16_u8(halves);
                            weights[2 * half + part] = [
                                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(halves))),
                                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(halves)),
                            ];
                        }
                    }
                }
                weights
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

            $($own)*
        }
    };
}

vector!(Neon {});

vector!(Sve {
    #[inline(always)]
    fn dots<const SIGNED: bool, const C: usize>(
        self,
        mut sums: [Self::I; C],
        w: &[Self::I; REGISTERS],
        x: [&[[i8; 4]; REGISTERS]; C],
    ) -> [Self::I; C] {
        // SAFETY: the token proves SVE.
        unsafe { dot::sve(&mut sums, w, &x) };
        sums
    }
});

vector!(NeonDotprod {
    #[inline(always)]
    fn dots<const SIGNED: bool, const C: usize>(
        self,
        mut sums: [Self::I; C],
        w: &[Self::I; REGISTERS],
        x: [&[[i8; 4]; REGISTERS]; C],
    ) -> [Self::I; C] {
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: the token proves the dot products.
            *sums = unsafe { dot::dotprod(*sums, w, x) };
        }
        sums
    }
});

vector!(NeonI8mm {
    /// Columns go by two; the last of an odd number goes alone.
    #[inline(always)]
    fn dots<const SIGNED: bool, const C: usize>(
        self,
        mut sums: [Self::I; C],
        w: &[Self::I; REGISTERS],
        x: [&[[i8; 4]; REGISTERS]; C],
    ) -> [Self::I; C] {
        let mut pairs = sums.chunks_exact_mut(2);
        for (sums, x) in pairs.by_ref().zip(x.chunks_exact(2)) {
            // SAFETY: the token proves the products of byte matrices.
            let [first, second] = unsafe { dot::i8mm([sums[0], sums[1]], w, [x[0], x[1]]) };
            (sums[0], sums[1]) = (first, second);
        }
        if let [sums] = pairs.into_remainder() {
            // SAFETY: the token proves the dot products.
            *sums = unsafe { dot::dotprod(*sums, w, x[C - 1]) };
        }
        sums
    }
});
