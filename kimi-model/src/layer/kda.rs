//! Kimi Delta Attention.

use kimi_kernels::{Kernels, Scratch, Threads};

use super::Step;
use crate::arena::Arena;
use crate::config::KdaConfig;
use crate::error::Error;
use crate::layout::{Kda, OutputGate};
use crate::operand::Operand;
use crate::session::{KdaState, LOG_COLUMNS, shift_tail};

/// Epsilon under the root of the query and key normalisation, on the sum of squares.
const UNIT_EPSILON: f32 = 1e-6;

/// Columns that one task convolves.
const CONV_COLUMNS: usize = 16;

pub(super) fn floats(kda: &KdaConfig, w: usize) -> usize {
    let channels = w * kda.channels();
    // Wide passes keep what narrow ones log: three inputs, the decays and the betas.
    let unlogged = if w > LOG_COLUMNS { 4 * channels + w * kda.num_heads } else { 0 };
    // Query, key, value, gate, and the heads' outputs in two orders; the low-rank column.
    let pass = unlogged + 6 * channels + w * kda.head_dim;
    let replay = 2 * w.min(LOG_COLUMNS) * kda.channels() + (kda.short_conv_kernel_size - 1) * kda.channels();
    pass.max(replay)
}

pub(super) fn forward(
    step: &mut Step<'_>,
    layer: &Kda,
    memory: &mut KdaState,
    x: &[f32],
    out: &mut [f32],
) -> Result<(), Error> {
    let kda = step.config.kda.as_ref().expect("a model with KDA layers is configured for them");
    let (w, hidden, epsilon) = (step.columns, step.config.hidden_size, step.config.rms_norm_eps);
    let (heads, dim, channels) = (kda.num_heads, kda.head_dim, kda.channels());
    let Step { weights, cancel, phase, operands: [input, inner], .. } = step;
    let kernels = weights.kernels;
    let mut arena = Arena::new(phase);
    let KdaState { state, tails, log, shadow } = memory;

    // Narrow passes write what a commit replays straight into the log.
    let shadow = shadow.as_mut().filter(|_| w > LOG_COLUMNS);
    let ([q_in, k_in, v_in], decay, beta) = match &shadow {
        Some(_) => {
            let inputs = [(); 3].map(|()| arena.take(w * channels));
            (inputs, arena.take(w * channels), arena.take(w * heads))
        }
        None => {
            let inputs = log.inputs.each_mut().map(|input| &mut input[..w * channels]);
            (inputs, &mut log.decay[..w * channels], &mut log.beta[..w * heads])
        }
    };
    let [q, k, v] = [(); 3].map(|()| arena.take(w * channels));
    let gate = arena.take(w * channels);
    let low_rank = arena.take(w * dim);

    let mut x = Operand::new(kernels, &weights.threads, x, hidden, input)?;
    for (id, input) in layer.qkv.into_iter().zip([&mut *q_in, &mut *k_in, &mut *v_in]) {
        weights.matmul(id, &mut x, input, cancel)?;
    }
    weights.matmul(layer.decay[0], &mut x, low_rank, cancel)?;
    let mut low = Operand::new(kernels, &weights.threads, low_rank, dim, inner)?;
    weights.matmul(layer.decay[1], &mut low, decay, cancel)?;
    weights.matmul(layer.beta, &mut x, beta, cancel)?;
    match layer.gate {
        OutputGate::Full(id) => weights.matmul(id, &mut x, gate, cancel)?,
        OutputGate::LowRank([down, up]) => {
            weights.matmul(down, &mut x, low_rank, cancel)?;
            let mut low = Operand::new(kernels, &weights.threads, low_rank, dim, inner)?;
            weights.matmul(up, &mut low, gate, cancel)?;
        }
    }

    let threads = &weights.threads;
    let conv = Convolution { kernels, threads, channels };
    let tail = tails.len() / 3;
    for (i, (input, y)) in [(&*q_in, &mut *q), (&*k_in, &mut *k), (&*v_in, &mut *v)].into_iter().enumerate() {
        conv.run(&layer.taps[i], &tails[i * tail..][..tail], input, y);
    }
    threads.chunks(q, channels, |_, q| kernels.l2_norm(q, dim, UNIT_EPSILON, 1.0 / (dim as f32).sqrt()));
    threads.chunks(k, channels, |_, k| kernels.l2_norm(k, dim, UNIT_EPSILON, 1.0));
    kernels.sigmoid_all(beta);
    threads.chunks(decay, channels, |_, decay| {
        kernels.add(decay, &layer.dt_bias);
        for (decay, &rate) in decay.chunks_exact_mut(dim).zip(&layer.rates) {
            kernels.decay(decay, rate, kda.decay);
        }
    });

    let updates = Updates { kernels, heads, dim, q, k, v, decay, beta, columns: w };
    // Head after head, then turned to column after column.
    let by_head = arena.take(w * channels);
    match shadow {
        Some((shadow, shadow_tails)) => {
            threads.chunk_pairs((by_head, w * dim), (shadow, dim * dim), |head, out, next| {
                next.copy_from_slice(&state[head * dim * dim..][..dim * dim]);
                updates.run(head, next, &mut weights.scratch.piece(threads)[..dim], out);
            });
            for (i, input) in [&*q_in, &*k_in, &*v_in].into_iter().enumerate() {
                shift_tail(&tails[i * tail..][..tail], input, &mut shadow_tails[i * tail..][..tail]);
            }
        }
        None => threads.chunks(by_head, w * dim, |head, out| {
            let mut scratch = weights.scratch.piece(threads);
            let (next, u) = scratch[..dim * dim + dim].split_at_mut(dim * dim);
            next.copy_from_slice(&state[head * dim * dim..][..dim * dim]);
            updates.run(head, next, u, out);
        }),
    }
    let gated = arena.take(w * channels);
    threads.chunks(gated, channels, |c, gated| {
        for (head, gated) in gated.chunks_exact_mut(dim).enumerate() {
            kernels.rms_norm(&by_head[(head * w + c) * dim..][..dim], &layer.output_norm, epsilon, gated);
        }
        kernels.gate(gated, &gate[c * channels..][..channels]);
    });
    let mut gated = Operand::new(kernels, threads, gated, channels, inner)?;
    weights.matmul(layer.output, &mut gated, out, cancel)
}

/// Applies the first `count` logged columns of a narrow pass to a layer's state.
///
/// The arithmetic is that of the pass: convolution, normalisation, one step per column.
pub(crate) fn replay(
    kda: &KdaConfig,
    layer: &Kda,
    memory: &mut KdaState,
    count: usize,
    (kernels, threads, scratch): (Kernels, &Threads, &Scratch),
    phase: &mut [f32],
) {
    let (heads, dim, channels) = (kda.num_heads, kda.head_dim, kda.channels());
    let mut arena = Arena::new(phase);
    let KdaState { state, tails, log, .. } = memory;
    let [k, v] = [(); 2].map(|()| arena.take(count * channels));
    let conv = Convolution { kernels, threads, channels };
    let tail = tails.len() / 3;
    conv.run(&layer.taps[1], &tails[tail..2 * tail], &log.inputs[1][..count * channels], k);
    conv.run(&layer.taps[2], &tails[2 * tail..], &log.inputs[2][..count * channels], v);
    threads.chunks(k, channels, |_, k| kernels.l2_norm(k, dim, UNIT_EPSILON, 1.0));
    // The output of a step is not needed, so the key stands in for the query.
    let updates =
        Updates { kernels, heads, dim, q: k, k, v, decay: &log.decay, beta: &log.beta, columns: count };
    threads.chunks(state, dim * dim, |head, state| {
        let mut scratch = scratch.piece(threads);
        let (u, out) = scratch[..dim + count * dim].split_at_mut(dim);
        updates.run(head, state, u, out);
    });
    let next = arena.take(tail);
    for (i, input) in log.inputs.iter().enumerate() {
        shift_tail(&tails[i * tail..][..tail], &input[..count * channels], next);
        tails[i * tail..][..tail].copy_from_slice(next);
    }
}

/// The short convolution of several columns, a few columns to a task.
struct Convolution<'a> {
    kernels: Kernels,
    threads: &'a Threads,
    channels: usize,
}

impl Convolution<'_> {
    fn run(&self, taps: &[f32], tail: &[f32], input: &[f32], y: &mut [f32]) {
        // A task that is no shorter than the tail finds its own history in the input.
        let task = CONV_COLUMNS.max(tail.len() / self.channels) * self.channels;
        self.threads.chunks(y, task, |i, y| {
            let at = i * task;
            let tail = if i == 0 { tail } else { &input[at - tail.len()..at] };
            self.kernels.short_conv(taps, tail, &input[at..at + y.len()], self.channels, y);
        });
    }
}

/// Everything that moves a layer's state forward by some columns.
struct Updates<'a> {
    kernels: Kernels,
    heads: usize,
    dim: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
    columns: usize,
}

impl Updates<'_> {
    /// Steps one head through all columns; `out` is `columns x dim`.
    fn run(&self, head: usize, state: &mut [f32], u: &mut [f32], out: &mut [f32]) {
        for (c, out) in out.chunks_exact_mut(self.dim).enumerate().take(self.columns) {
            let at = c * self.heads + head;
            let [q, k, v, decay] =
                [self.q, self.k, self.v, self.decay].map(|values| &values[at * self.dim..][..self.dim]);
            let beta = self.beta[at];
            self.kernels.kda_step(state, q, k, v, decay, beta, u, out);
        }
    }
}
