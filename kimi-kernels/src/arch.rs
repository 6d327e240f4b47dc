//! Kernels of single instruction sets. Each module holds a token that only detection makes; nothing else in this
//! crate is unsafe.

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64 {
    pub(crate) mod avx2;
}
