#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod dense;
mod error;
pub mod int;
mod matrix;
pub mod metrics;
pub mod mxfp4;
pub mod quantize;
mod scale;

pub use dense::{DenseView, Element};
pub use error::{LayoutError, NotFinite};
pub use matrix::{Encoding, MatrixView};
pub use mxfp4::Mxfp4View;
pub use int::{IntFormat, IntView};
pub use scale::{Bf16, E8m0, F16};
