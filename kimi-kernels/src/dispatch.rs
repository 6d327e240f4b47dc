//! Which instruction set runs the kernels.

use std::fmt;
use std::str::FromStr;

use crate::arch;

/// An instruction set that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: the reference itself, on any processor.
    Scalar,
    /// AVX2 with FMA (x86-64 since Haswell and Excavator).
    Avx2,
    /// AVX2 with FMA and AVX-VNNI (x86-64 since Alder Lake and Zen 5).
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL (x86-64 since Skylake-X and Zen 4).
    Avx512,
    /// The same with VNNI (since Cascade Lake and Zen 4).
    Avx512Vnni,
    /// The same with AMX-INT8 (since Sapphire Rapids) for many columns of the fast tier. It was never run on a processor, so it is there
    /// only for who asks for it: [`Kernels::detect`] and [`Kernels::available`] leave it out.
    Amx,
    /// NEON (every AArch64 processor).
    Neon,
    /// NEON, and the byte dot products of SVE at any vector length (AArch64 with SVE, such as A64FX).
    Sve,
    /// NEON with its byte dot products (AArch64 since Armv8.2, such as Cortex-A76 and Neoverse N1).
    NeonDotprod,
    /// The same with products of byte matrices (since Armv8.6, such as Neoverse V1 and N2).
    NeonI8mm,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Self; 10] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Amx,
        Self::Neon,
        Self::Sve,
        Self::NeonDotprod,
        Self::NeonI8mm,
    ];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::Sve => "sve",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no instruction set of [`Isa::ALL`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownIsa(String);

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown instruction set `{}`; known: {}", self.0, Isa::ALL.map(Isa::name).join(", "))
    }
}

impl std::error::Error for UnknownIsa {}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

/// The kernels of one instruction set: a handle that exists only where the processor has it.
///
/// Results do not depend on the choice: every handle returns the bits of [`reference`](crate::reference).
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    pub(crate) backend: Backend,
}

/// A token per instruction set; only detection makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Backend {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(arch::x86_64::Avx2),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(arch::x86_64::AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx512(arch::x86_64::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(arch::x86_64::Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    Amx(arch::x86_64::Amx),
    #[cfg(target_arch = "aarch64")]
    Neon(arch::aarch64::Neon),
    #[cfg(target_arch = "aarch64")]
    Sve(arch::aarch64::Sve),
    #[cfg(target_arch = "aarch64")]
    NeonDotprod(arch::aarch64::NeonDotprod),
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(arch::aarch64::NeonI8mm),
}

/// Evaluates `$scalar` without an instruction set, else `$vector` with `$token` bound to the token.
macro_rules! dispatch {
    ($backend:expr, scalar => $scalar:expr, $token:ident => $vector:expr) => {
        match $backend {
            $crate::dispatch::Backend::Scalar => $scalar,
            #[cfg(target_arch = "x86_64")]
            $crate::dispatch::Backend::Avx2($token) => $vector,
            #[cfg(target_arch = "x86_64")]
            $crate::dispatch::Backend::AvxVnni($token) => $vector,
            #[cfg(target_arch = "x86_64")]
            $crate::dispatch::Backend::Avx512($token) => $vector,
            #[cfg(target_arch = "x86_64")]
            $crate::dispatch::Backend::Avx512Vnni($token) => $vector,
            #[cfg(target_arch = "x86_64")]
            $crate::dispatch::Backend::Amx($token) => $vector,
            #[cfg(target_arch = "aarch64")]
            $crate::dispatch::Backend::Neon($token) => $vector,
            #[cfg(target_arch = "aarch64")]
            $crate::dispatch::Backend::Sve($token) => $vector,
            #[cfg(target_arch = "aarch64")]
            $crate::dispatch::Backend::NeonDotprod($token) => $vector,
            #[cfg(target_arch = "aarch64")]
            $crate::dispatch::Backend::NeonI8mm($token) => $vector,
        }
    };
}
pub(crate) use dispatch;

impl Kernels {
    /// The fastest kernels of this processor; never [`Isa::Amx`].
    pub fn detect() -> Self {
        let tested = Isa::ALL.into_iter().rev().filter(|&isa| isa != Isa::Amx);
        tested.filter_map(Self::with_isa).next().expect("scalar kernels run everywhere")
    }

    /// The kernels of one instruction set, or `None` where this processor lacks it. [`Isa::Amx`] asks the system for the use of tiles, for the
    /// whole process.
    pub fn with_isa(isa: Isa) -> Option<Self> {
        let backend = match isa {
            Isa::Scalar => Backend::Scalar,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Backend::Avx2(arch::x86_64::Avx2::detect()?),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Backend::AvxVnni(arch::x86_64::AvxVnni::detect()?),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Backend::Avx512(arch::x86_64::Avx512::detect()?),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Backend::Avx512Vnni(arch::x86_64::Avx512Vnni::detect()?),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Backend::Amx(arch::x86_64::Amx::detect()?),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Backend::Neon(arch::aarch64::Neon::detect()?),
            #[cfg(target_arch = "aarch64")]
            Isa::Sve => Backend::Sve(arch::aarch64::Sve::detect()?),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => Backend::NeonDotprod(arch::aarch64::NeonDotprod::detect()?),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Backend::NeonI8mm(arch::aarch64::NeonI8mm::detect()?),
            // Of another architecture.
            #[allow(unreachable_patterns, reason = "reachable where an instruction set is missing above")]
            _ => return None,
        };
        Some(Self { backend })
    }

    /// The kernels of every instruction set that this processor has, but [`Isa::Amx`].
    pub fn available() -> impl Iterator<Item = Self> {
        Isa::ALL.into_iter().filter(|&isa| isa != Isa::Amx).filter_map(Self::with_isa)
    }

    /// The instruction set.
    pub fn isa(self) -> Isa {
        match self.backend {
            Backend::Scalar => Isa::Scalar,
            #[cfg(target_arch = "x86_64")]
            Backend::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Backend::AvxVnni(_) => Isa::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512(_) => Isa::Avx512,
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512Vnni(_) => Isa::Avx512Vnni,
            #[cfg(target_arch = "x86_64")]
            Backend::Amx(_) => Isa::Amx,
            #[cfg(target_arch = "aarch64")]
            Backend::Neon(_) => Isa::Neon,
            #[cfg(target_arch = "aarch64")]
            Backend::Sve(_) => Isa::Sve,
            #[cfg(target_arch = "aarch64")]
            Backend::NeonDotprod(_) => Isa::NeonDotprod,
            #[cfg(target_arch = "aarch64")]
            Backend::NeonI8mm(_) => Isa::NeonI8mm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        let error = "sse9".parse::<Isa>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown instruction set `sse9`; known: scalar, avx2, avx-vnni, avx512, avx512-vnni, amx, neon, sve, \
             neon-dotprod, neon-i8mm"
        );
    }

    #[test]
    fn scalar_is_always_there_and_detection_finds_the_last_available() {
        assert_eq!(Kernels::available().next().map(Kernels::isa), Some(Isa::Scalar));
        assert_eq!(Kernels::available().last().map(Kernels::isa), Some(Kernels::detect().isa()));
    }
}
