//! The definition of every operation: plain scalar functions, one per operation.
//!
//! Every other implementation in this crate returns the same bits as these functions at `f32`. The same source at
//! `f64` is the yardstick that tests hold the `f32` results against. Users are welcome to test against it too.
//!
//! # Order of summation
//!
//! A sum over K runs in [`LANES`] virtual lanes: lane `j` takes the terms `k = j, j + 8, j + 16, ...` in ascending
//! order, each by one fused multiply-add, starting from zero. K is padded with zeros to a multiple of the lanes (a
//! padded term is `fma(0, 0, lane)`). The lanes are folded halves onto halves: `j + 4` onto `j`, then `j + 2`, then
//! `j + 1`. Sums along another axis (attention over positions, the KDA state over keys, experts) are one chain in
//! ascending order per output. `docs/kernels.md` in the repository says how the order was chosen.
//!
//! Functions that take `w` columns treat each column by itself: a column's result does not depend on its neighbours.

mod activation;
mod attention;
mod conv;
mod integer;
mod kda;
mod matmul;
mod mix;
mod norm;
mod real;
mod rotary;
mod router;
mod sum;

pub use activation::{Situ, gate, sigmoid_all, silu, situ, swiglu};
pub use attention::{AttentionState, attend_block, finish_attention, merge_blocks};
pub use conv::short_conv;
pub use integer::gemv_integer;
pub use kda::{Decay, decay, kda_step};
pub use matmul::{decode_row, gemm, gemv, gemv_transposed};
pub use mix::{accumulate, add, mix};
pub use norm::{l2_norm, rms_norm};
pub use real::{Real, exp, sigmoid, softplus, tanh};
pub use rotary::rotate;
pub use router::{Route, route};
pub use sum::{LANES, dot, fold};
