//! The layers of the graph, each written for `w` columns.
//!
//! Activations are `w x width`, column after column. Every function computes one column as if it were alone.

mod kda;
mod mla;
mod mlp;
mod moe;

use std::sync::atomic::AtomicBool;

use kimi_kernels::Threads;
use kimi_paging::TensorIndex;

use crate::config::Config;
use crate::error::Error;
use crate::operand::OperandBuffers;
use crate::weights::Weights;

pub(crate) use kda::replay;
pub(crate) use moe::Routing;

/// What a layer works with during one pass.
pub(crate) struct Step<'a> {
    pub(crate) config: &'a Config,
    pub(crate) index: &'a TensorIndex,
    pub(crate) weights: &'a mut Weights,
    pub(crate) cancel: &'a AtomicBool,
    /// Working memory of at least [`phase_floats`] values.
    pub(crate) phase: &'a mut [f32],
    /// For a layer's input, and for whatever is multiplied inside the layer.
    pub(crate) operands: [&'a mut OperandBuffers; 2],
    pub(crate) routing: &'a mut Routing,
    /// Columns of the pass.
    pub(crate) columns: usize,
    /// Position of the first column.
    pub(crate) position: usize,
}

/// Values of working memory that any layer needs for `w` columns.
pub(crate) fn phase_floats(config: &Config, w: usize) -> usize {
    let kda = config.kda.as_ref().map_or(0, |kda| kda::floats(kda, w));
    let dense = mlp::floats(config.intermediate_size, w);
    let moe = config.moe.as_ref().map_or(0, |moe| moe::floats(config, moe, w));
    kda.max(dense).max(moe).max(mla::floats(&config.mla, w))
}

/// The longest column that is multiplied inside a layer, and the longest of all.
pub(crate) fn longest_columns(config: &Config) -> [usize; 2] {
    let kda = config.kda.as_ref().map_or(0, |kda| kda.channels().max(kda.head_dim));
    let mla = &config.mla;
    let mla = (mla.num_heads * mla.v_head_dim).max(mla.q_lora_rank.unwrap_or(0)).max(mla.kv_lora_rank);
    let moe = config.moe.as_ref().map_or(0, |moe| {
        let shared = moe.num_shared_experts * moe.intermediate_size;
        shared.max(moe.intermediate_size).max(moe.latent_size.unwrap_or(config.hidden_size))
    });
    let inner = kda.max(mla).max(moe).max(config.intermediate_size);
    [inner, inner.max(config.hidden_size)]
}

/// Turns results that lie row after row, `columns` values to a row, into columns of `rows` values.
pub(crate) fn to_columns(threads: &Threads, by_rows: &[f32], columns: usize, rows: usize, out: &mut [f32]) {
    threads.chunks(out, rows, |c, column| {
        for (value, of_columns) in column.iter_mut().zip(by_rows.chunks_exact(columns)) {
            *value = of_columns[c];
        }
    });
}

impl Step<'_> {
    /// The layer's attention or feed-forward on the normed input `x`, written to `out`; both are `w x hidden`.
    pub(crate) fn attention(
        &mut self,
        attention: &crate::layout::Attention,
        memory: Memory<'_>,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), Error> {
        match (attention, memory) {
            (crate::layout::Attention::Kda(layer), Memory::Kda(state)) => {
                kda::forward(self, layer, state, x, out)
            }
            (crate::layout::Attention::Mla(layer), Memory::Kv(cache)) => {
                mla::forward(self, layer, cache, x, out)
            }
            _ => unreachable!("sessions are made for the layers of their model"),
        }
    }

    /// The feed-forward part of a layer.
    pub(crate) fn feed_forward(
        &mut self,
        feed_forward: &crate::layout::FeedForward,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), Error> {
        match feed_forward {
            crate::layout::FeedForward::Dense(layer) => mlp::forward(self, layer, x, out),
            crate::layout::FeedForward::Moe(layer) => moe::forward(self, layer, x, out),
        }
    }
}

/// The part of a session that one layer remembers.
pub(crate) enum Memory<'a> {
    Kda(&'a mut crate::session::KdaState),
    Kv(&'a mut crate::session::KvCache),
}
