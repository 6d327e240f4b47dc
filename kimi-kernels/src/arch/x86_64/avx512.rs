//! AVX-512 (F, BW, DQ, VL), and with VNNI: twice the registers, and sixteen columns in one of them.

use std::arch::x86_64::*;

use bytemuck::must_cast;
use kimi_quant::MatrixView;
use kimi_quant::mxfp4::GROUP_SIZE;

use super::{dot_vnni512, multiply_add, widen, ymm_operations};
use crate::Columns;
use crate::integer::IntegerColumns;
use crate::ops::operations;
use crate::reference::{AttentionState, Decay, LANES, Situ};
use crate::vector::tiles::NoTiles;
use crate::vector::{Vec8, Vector, WIDE};

/// Proof that the processor and the system support AVX2, FMA and AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The token, where CPUID lists all features and the system saves the registers they use.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl"))
        .then_some(Self(()))
    }
}

operations!(compile [Avx512 "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"]);

/// Proof that the processor and the system support what [`Avx512`] stands for, and AVX-512 VNNI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Vnni(());

impl Avx512Vnni {
    /// The token, where CPUID lists all features and the system saves the registers they use.
    pub(crate) fn detect() -> Option<Self> {
        (Avx512::detect().is_some() && is_x86_feature_detected!("avx512vnni")).then_some(Self(()))
    }
}

operations!(compile [Avx512Vnni "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"]);

macro_rules! vector {
    ($token:ident, $dot:ident, $tiles:ty, { $($own:tt)* }) => {
        impl Vector for $token {
            ymm_operations!(dot $dot);

            type Wide = __m512;
            type Tiles = $tiles;

            $($own)*

            #[inline(always)]
            fn wide_zero(self) -> __m512 {
                // SAFETY: the token proves AVX-512 F.
                unsafe { _mm512_setzero_ps() }
            }

            #[inline(always)]
            fn wide_load(self, values: &[f32; WIDE]) -> __m512 {
                must_cast(*values)
            }

            #[inline(always)]
            fn wide_store(self, values: __m512) -> [f32; WIDE] {
                must_cast(values)
            }

            #[inline(always)]
            fn wide_fma(self, a: f32, b: __m512, c: __m512) -> __m512 {
                // SAFETY: the token proves AVX-512 F.
                unsafe { _mm512_fmadd_ps(_mm512_set1_ps(a), b, c) }
            }
        }
    };
}

pub(super) use vector;

vector!(Avx512, multiply_add, NoTiles, {
    #[inline(always)]
    fn tiles(self, _: usize) -> Option<NoTiles> {
        None
    }
});
vector!(Avx512Vnni, dot_vnni512, NoTiles, {
    #[inline(always)]
    fn tiles(self, _: usize) -> Option<NoTiles> {
        None
    }
});
