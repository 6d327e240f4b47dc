#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod activations;
pub mod bf12;
mod dense;
mod error;
pub mod fp8;
pub mod int;
pub mod int4;
pub mod kv;
mod matrix;
pub mod metrics;
pub mod mxfp4;
pub mod quantize;
mod scale;

pub use bf12::Bf12View;
pub use dense::{DenseView, Element};
pub use error::{LayoutError, NotFinite};
pub use fp8::Fp8View;
pub use int::{IntFormat, IntView};
pub use int4::Int4View;
pub use matrix::{Encoding, MatrixView};
pub use mxfp4::Mxfp4View;
pub use scale::{Bf16, E8m0, F16};
