//! The gated MLP: dense layers and shared experts.

use super::{Step, columns};
use crate::arena::Arena;
use crate::error::Error;
use crate::layout::Mlp;

pub(super) fn floats(width: usize, w: usize) -> usize {
    2 * w * width
}

/// `down(situ(gate x, up x))`.
pub(super) fn forward(step: &mut Step<'_>, layer: &Mlp, x: &[f32], out: &mut [f32]) -> Result<(), Error> {
    let (w, hidden, situ) = (step.columns, step.config.hidden_size, step.config.situ);
    let Step { weights, cancel, phase, packed: [input, inner], .. } = step;
    let kernels = weights.kernels;
    let mut arena = Arena::new(phase);
    let (gate, up) = (arena.take(w * layer.width), arena.take(w * layer.width));

    let x = columns(kernels, &weights.threads, x, hidden, input)?;
    weights.matmul(layer.gate, x, gate, cancel)?;
    weights.matmul(layer.up, x, up, cancel)?;
    weights.threads.chunks(gate, layer.width, |c, gate| {
        kernels.situ(gate, &up[c * layer.width..][..layer.width], situ);
    });
    let h = columns(kernels, &weights.threads, gate, layer.width, inner)?;
    weights.matmul(layer.down, h, out, cancel)
}
