#![doc = include_str!("../README.md")]

mod arch;
mod columns;
mod dispatch;
mod error;
mod integer;
mod matmul;
mod ops;
pub mod reference;
mod threads;
mod vector;

pub use columns::Columns;
pub use dispatch::{Isa, Kernels, UnknownIsa};
pub use error::{ShapeError, ThreadsError};
pub use integer::{IntegerBuffers, IntegerColumns};
pub use reference::{AttentionState, Decay, LANES, Route, Situ};
pub use threads::{Scratch, Threads};
