//! The exported functions. Each checks what it was given, calls safe code, and leaves a status; the header
//! `include/kimi_k3_inference.h` describes them for their users.
#![expect(
    unsafe_code,
    reason = "a C interface: unmangled names, and pointers that only the caller can vouch for"
)]

pub(crate) mod model;
pub(crate) mod options;
pub(crate) mod sampler;
pub(crate) mod session;
pub(crate) mod simple;
pub(crate) mod text;
pub(crate) mod types;
