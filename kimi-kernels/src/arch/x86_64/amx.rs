//! AMX-INT8: products of tiles of bytes, beside all of AVX-512 VNNI. Neither its intrinsics nor its detection are stable: both are
//! assembly here.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use bytemuck::must_cast;
use kimi_quant::MatrixView;
use kimi_quant::mxfp4::GROUP_SIZE;

use super::avx512::vector;
use super::{Avx512Vnni, dot_vnni512, widen, ymm_operations};
use crate::Columns;
use crate::integer::IntegerColumns;
use crate::ops::operations;
use crate::reference::{AttentionState, Decay, LANES, Situ};
use crate::vector::tiles::registers::{BLOCK, CONFIG, PAIR, SUMS};
use crate::vector::tiles::{Line, Sums, TILE_COLUMNS, Tiles};
use crate::vector::{REGISTERS, Vec8, Vector, WIDE};

/// Proof that the processor supports what [`Avx512Vnni`] stands for and AMX-INT8, and that the system lets this process use tiles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amx(());

impl Amx {
    /// The token, where CPUID lists the features, the system saves the tiles, and it grants the process their use.
    pub(crate) fn detect() -> Option<Self> {
        Avx512Vnni::detect()?;
        (listed() && saved() && permitted()).then_some(Self(()))
    }
}

/// AMX-TILE and AMX-INT8 in CPUID, and tiles of 16 lines of 64 bytes.
fn listed() -> bool {
    if __cpuid(0).eax < 0x1d {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    let palette = __cpuid_count(0x1d, 1);
    features >> 24 & 3 == 3
        && __cpuid_count(0x1d, 0).eax >= 1
        && palette.ebx & 0xffff == 64
        && palette.ebx >> 16 >= 8
        && palette.ecx & 0xffff == 16
}

/// Whether the system saves configuration and data of tiles: bits 17 and 18 of XCR0.
fn saved() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let low: u32;
    // SAFETY: OSXSAVE is set, so the instruction is there; it reads XCR0.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    low >> 17 & 3 == 3
}

/// Asks Linux to let this process use tiles (Documentation/arch/x86/xstate.rst); it grants that once for all threads.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call that touches no memory of this process; the kernel overwrites rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// How another system grants tiles is not known here.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

operations!(compile [Amx "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"]);

vector!(Amx, dot_vnni512, TileRegisters, {
    #[inline(always)]
    fn tiles(self, count: usize) -> Option<TileRegisters> {
        (count >= TILE_COLUMNS).then(|| TileRegisters::new(self))
    }
});

/// The tile registers of this thread, configured until the value is dropped. Nothing else in the program uses them. The pointer
/// keeps the value on its thread.
#[derive(Debug)]
pub(crate) struct TileRegisters(PhantomData<*const ()>);

impl TileRegisters {
    fn new(_: Amx) -> Self {
        // SAFETY: the token proves AMX and the permission; the configuration is 64 bytes for palette 1.
        unsafe {
            asm!("ldtilecfg [{config}]", config = in(reg) CONFIG.as_ptr(), options(readonly, nostack, preserves_flags));
        }
        Self(PhantomData)
    }
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: `new` took the token.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
    }
}

/// Panics unless a tile of activations, `bytes` to a line, lies within `x`.
#[inline(always)]
fn check(x: &[i8], stride: usize, bytes: usize) {
    let last = stride.checked_mul(TILE_COLUMNS - 1).and_then(|last| last.checked_add(bytes));
    assert!(last.is_some_and(|end| end <= x.len()), "sixteen columns of activations");
}

/// Loads both operands and adds their product to the sums.
macro_rules! multiply {
    ($registers:expr, $x:expr, $stride:expr, $w:expr) => {{
        check($x, $stride, $w.len() * 4);
        // SAFETY: `new` took the token and configured the tiles. The lines of activations were checked to lie within `x`; those of
        // weights are the elements of `w`.
        unsafe {
            asm!(
                "tileloadd tmm{a}, [{x} + {stride}*1]",
                "tileloadd tmm{b}, [{w} + {line}*1]",
                "tdpbssd tmm{sums}, tmm{a}, tmm{b}",
                a = const $registers[0],
                b = const $registers[1],
                sums = const SUMS,
                x = in(reg) $x.as_ptr(),
                stride = in(reg) $stride,
                w = in(reg) $w.as_ptr(),
                line = in(reg) size_of::<Line>(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }};
}

impl Tiles for TileRegisters {
    #[inline(always)]
    fn zero(&mut self) {
        // SAFETY: `new` took the token and configured the tiles.
        unsafe { asm!("tilezero tmm{sums}", sums = const SUMS, options(nomem, nostack, preserves_flags)) }
    }

    #[inline(always)]
    fn block(&mut self, x: &[i8], stride: usize, w: &[Line; REGISTERS]) {
        multiply!(BLOCK, x, stride, w);
    }

    #[inline(always)]
    fn pair(&mut self, x: &[i8], stride: usize, w: &[Line; 2 * REGISTERS]) {
        multiply!(PAIR, x, stride, w);
    }

    #[inline(always)]
    fn store(&mut self, sums: &mut Sums) {
        // SAFETY: `new` took the token and configured the tiles; the sums are sixteen lines of 64 bytes.
        unsafe {
            asm!(
                "tilestored [{to} + {line}*1], tmm{sums}",
                sums = const SUMS,
                to = in(reg) sums.as_mut_ptr(),
                line = in(reg) size_of_val(&sums[0]),
                options(nostack, preserves_flags),
            );
        }
    }
}
