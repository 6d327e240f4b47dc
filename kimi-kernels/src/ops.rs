//! The operations that every instruction set computes from the one source in [`reference`](crate::reference).

use crate::Kernels;
use crate::dispatch::dispatch;
use crate::reference::{self, AttentionState, Decay, Route, Situ};

/// Passes the list of operations to `$callback`, behind `$context`. `kernels` are written over
/// [`Vector`](crate::vector::Vector). Those of `reference` are compiled once per instruction set from the same scalar
/// source: without reassociation the compiler may use wider registers, but never change a bit.
macro_rules! operations {
    ($callback:ident $($context:tt)*) => {
        $callback! {
            $($context)*
            kernels {
                fn matmul(w: MatrixView<'_>, x: Columns<'_>, y: &mut [f32], scratch: &mut [f32]);
                fn decode_row(w: MatrixView<'_>, row: usize, out: &mut [f32]);
                fn integer(w: MatrixView<'_>, x: IntegerColumns<'_>, y: &mut [f32]);
            }
            reference {
                fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]);
                fn l2_norm(x: &mut [f32], n: usize, epsilon: f32, scale: f32);
                fn sigmoid_all(x: &mut [f32]);
                fn silu(x: &mut [f32]);
                fn gate(x: &mut [f32], gate: &[f32]);
                fn situ(gate: &mut [f32], up: &[f32], constants: Situ<f32>);
                fn swiglu(gate: &mut [f32], up: &[f32]);
                fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]);
                fn short_conv(taps: &[f32], tail: &[f32], u: &[f32], channels: usize, y: &mut [f32]);
                fn decay(z: &mut [f32], rate: f32, form: Decay<f32>);
                fn kda_step(
                    state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], decay: &[f32], beta: f32, u: &mut [f32],
                    out: &mut [f32]
                );
                fn attend_block(
                    query: &[f32], rows: &[f32], scale: f32, scores: &mut [f32], context: &mut [f32]
                ) -> AttentionState<f32>;
                fn merge_blocks(
                    state: &mut AttentionState<f32>, context: &mut [f32], block: AttentionState<f32>, block_context: &[f32]
                );
                fn finish_attention(state: AttentionState<f32>, context: &mut [f32]);
                fn add(x: &mut [f32], y: &[f32]);
                fn accumulate(sum: &mut [f32], weight: f32, x: &[f32]);
                fn mix(sources: &[&[f32]], key: &[f32], epsilon: f32, scores: &mut [f32], out: &mut [f32]);
            }
        }
    };
}

macro_rules! methods {
    (
        kernels { $($kernels:tt)* }
        reference { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)?;)* }
    ) => {
        impl Kernels {
            $(
                #[doc = concat!("[`reference::", stringify!($name), "`].")]
                #[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
                pub fn $name(self, $($argument: $type),*) $(-> $output)? {
                    dispatch!(
                        self.backend,
                        scalar => reference::$name($($argument),*),
                        token => token.$name($($argument),*)
                    )
                }
            )*
        }
    };
}

operations!(methods);
pub(crate) use operations;

impl Kernels {
    /// [`reference::route`].
    pub fn route(
        self,
        logits: &[f32],
        bias: &[f32],
        route: Route<f32>,
        order: &mut [(f32, u32)],
        ids: &mut [u32],
        weights: &mut [f32],
    ) {
        reference::route(logits, bias, route, order, ids, weights);
    }
}
