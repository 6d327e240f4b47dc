#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod dense;
mod error;
mod matrix;
pub mod metrics;
pub mod mxfp4;
mod scale;

pub use dense::{DenseView, Element};
pub use error::{LayoutError, NotFinite};
pub use matrix::{Encoding, MatrixView};
pub use mxfp4::Mxfp4View;
pub use scale::{Bf16, E8m0};
