//! The gated MLP: dense layers and shared experts.

use super::Step;
use crate::arena::Arena;
use crate::error::Error;
use crate::layout::Mlp;
use crate::operand::Operand;

pub(super) fn floats(width: usize, w: usize) -> usize {
    2 * w * width
}

/// `down(activation(gate x, up x))`.
pub(super) fn forward(step: &mut Step<'_>, layer: &Mlp, x: &[f32], out: &mut [f32]) -> Result<(), Error> {
    let (w, hidden, activation) = (step.columns, step.config.hidden_size, step.config.activation);
    let Step { weights, cancel, phase, operands: [input, inner], .. } = step;
    let kernels = weights.kernels;
    let mut arena = Arena::new(phase);
    let (gate, up) = (arena.take(w * layer.width), arena.take(w * layer.width));

    let mut x = Operand::new(kernels, &weights.threads, x, hidden, input)?;
    weights.matmul(layer.gate, &mut x, gate, cancel)?;
    weights.matmul(layer.up, &mut x, up, cancel)?;
    weights.threads.chunks(gate, layer.width, |c, gate| {
        activation.apply(kernels, gate, &up[c * layer.width..][..layer.width]);
    });
    let mut h = Operand::new(kernels, &weights.threads, gate, layer.width, inner)?;
    weights.matmul(layer.down, &mut h, out, cancel)
}
