//! AVX2 with FMA, and with the byte dot products of AVX-VNNI.

use std::arch::x86_64::*;

use bytemuck::must_cast;
use kimi_quant::MatrixView;
use kimi_quant::mxfp4::GROUP_SIZE;

use super::{dot_vnni, multiply_add, widen, ymm_operations};
use crate::Columns;
use crate::integer::IntegerColumns;
use crate::ops::operations;
use crate::reference::{AttentionState, Decay, LANES, Situ};
use crate::vector::tiles::NoTiles;
use crate::vector::{Vec8, Vector, WIDE};

/// Proof that the processor and the system support AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The token, where CPUID lists both features and the system saves the registers they use.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

operations!(compile [Avx2 "avx2,fma"]);

/// Proof that the processor and the system support AVX2, FMA and AVX-VNNI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AvxVnni(());

impl AvxVnni {
    /// The token, where CPUID lists all features and the system saves the registers they use.
    pub(crate) fn detect() -> Option<Self> {
        (Avx2::detect().is_some() && is_x86_feature_detected!("avxvnni")).then_some(Self(()))
    }
}

operations!(compile [AvxVnni "avx2,fma,avxvnni"]);

macro_rules! vector {
    ($token:ident, $dot:ident) => {
        impl Vector for $token {
            ymm_operations!(dot $dot);

            type Wide = [__m256; 2];
            type Tiles = NoTiles;

            #[inline(always)]
            fn tiles(self, _: usize) -> Option<NoTiles> {
                None
            }

            #[inline(always)]
            fn wide_zero(self) -> Self::Wide {
                [self.zero(); 2]
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
                let a = self.splat(a);
                [self.fma(a, b[0], c[0]), self.fma(a, b[1], c[1])]
            }
        }
    };
}

vector!(Avx2, multiply_add);
vector!(AvxVnni, dot_vnni);
