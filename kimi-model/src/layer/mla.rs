//! Multi-head latent attention, in its absorbed form: queries are brought down to the width of
//! the latents, and only the mixed latent of each head goes up again. Both halves of `kv_b` are multiplied exactly in either tier.

use kimi_kernels::{Columns, Kernels};

use super::{Step, to_columns};
use crate::arena::Arena;
use crate::config::MlaConfig;
use crate::error::Error;
use crate::kv::KvFormat;
use crate::layout::Mla;
use crate::operand::{Means, Operand};
use crate::session::{KV_BLOCK, KvCache};

/// Epsilon of the two low-rank norms: the default of the released norm class, not `rms_norm_eps`.
const LOW_RANK_EPSILON: f32 = 1e-6;

pub(super) fn floats(mla: &MlaConfig, w: usize) -> usize {
    let heads = mla.num_heads;
    let query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
    let values = heads * mla.v_head_dim;
    let low_rank = 2 * mla.q_lora_rank.unwrap_or(0);
    let angles = if mla.rope.is_some() { mla.qk_rope_head_dim } else { 0 };
    // The query before and after its norm, the heads' queries, the latent; absorbed queries and contexts; values in two
    // orders and their gate; cosines and sines; one row to be stored.
    w * (low_rank + query + mla.row() + heads * (mla.row() + mla.kv_lora_rank) + 3 * values + angles)
        + mla.row()
}

pub(super) fn forward(
    step: &mut Step<'_>,
    layer: &Mla,
    cache: &mut KvCache,
    x: &[f32],
    out: &mut [f32],
) -> Result<(), Error> {
    let (w, hidden, mla, position) = (step.columns, step.config.hidden_size, &step.config.mla, step.position);
    let (heads, nope, latent, row) = (mla.num_heads, mla.qk_nope_head_dim, mla.kv_lora_rank, mla.row());
    let key_width = nope + mla.qk_rope_head_dim;
    let value_width = heads * mla.v_head_dim;
    let Step { weights, cancel, phase, operands: [input, inner], .. } = step;
    let kernels = weights.kernels;
    let mut arena = Arena::new(phase);
    let q = arena.take(w * heads * key_width);

    let mut x = Operand::new(kernels, &weights.threads, x, hidden, input)?;
    match &layer.query_low_rank {
        Some(low_rank) => {
            let rank = low_rank.norm.len();
            let [column, normed] = [(); 2].map(|()| arena.take(w * rank));
            weights.matmul(low_rank.down, &mut x, column, cancel)?;
            kernels.rms_norm(column, &low_rank.norm, LOW_RANK_EPSILON, normed);
            let mut low = Operand::new(kernels, &weights.threads, normed, rank, inner)?;
            weights.matmul(layer.query, &mut low, q, cancel)?;
        }
        None => weights.matmul(layer.query, &mut x, q, cancel)?,
    }

    let angles = Angles::new(mla, position, w, &mut arena);

    let rows = arena.take(w * row);
    weights.matmul(layer.latent, &mut x, rows, cancel)?;
    let kept = arena.take(row);
    for (c, new) in rows.chunks_exact(row).enumerate() {
        kernels.rms_norm(&new[..latent], &layer.latent_norm, LOW_RANK_EPSILON, &mut kept[..latent]);
        kept[latent..].copy_from_slice(&new[latent..]);
        angles.rotate(kernels, c, &mut kept[latent..]);
        cache.store(position + c, kept);
    }

    // Per column and head: the absorbed query, then the query's share of the common key.
    let queries = arena.take(w * heads * row);
    let own = |i: usize| &q[i * key_width..][..key_width];
    weights.threads.chunks(queries, row, |i, query| {
        query[..latent].fill(0.0);
        query[latent..].copy_from_slice(&own(i)[nope..]);
        angles.rotate(kernels, i / heads, &mut query[latent..]);
    });
    weights.tiles(layer.key_up, cancel, |multiplier, first, view| {
        let Means { kernels, threads, scratch, .. } = multiplier.means;
        let mut result = Ok(());
        let failed = std::sync::Mutex::new(&mut result);
        threads.chunks(queries, row, |i, query| {
            let (start, end) = overlap(i % heads * nope, nope, first, view.rows());
            if start < end {
                let part = view.slice_rows(start - first..end - first);
                let head = i % heads * nope;
                let x = &own(i)[start - head..end - head];
                let done =
                    kernels.gemv_transposed(&mut scratch.piece(threads), part, x, &mut query[..latent]);
                if let Err(error) = done {
                    **failed.lock().expect("no task panics") = Err(error);
                }
            }
        });
        Ok(result?)
    })?;

    let format = cache.format;
    if format == KvFormat::I4 {
        weights.threads.chunks(queries, row, |_, query| {
            let (content, key) = query.split_at_mut(latent);
            format.turn(content);
            format.turn(key);
        });
    }

    // Head after head, so that the contexts of one head are columns of a product.
    let contexts = arena.take(heads * w * latent);
    let mut scale = 1.0 / (key_width as f32).sqrt();
    if let Some(rope) = &mla.rope {
        scale = (f64::from(scale) * rope.attention_scale) as f32;
    }
    let (threads, scratch) = (&weights.threads, &weights.scratch);
    threads.chunks(contexts, latent, |i, context| {
        let (head, c) = (i / w, i % w);
        let query = &queries[(c * heads + head) * row..][..row];
        let mut piece = scratch.piece(threads);
        let (scores, rest) = piece.split_at_mut(KV_BLOCK);
        let (block_context, decoded) = rest.split_at_mut(latent);
        let mut state = None;
        let mut block = 0;
        while let Some(rows) = cache.rows(block, position + c + 1, decoded) {
            block += 1;
            let scores = &mut scores[..rows.len() / row];
            match &mut state {
                None => state = Some(kernels.attend_block(query, rows, scale, scores, context)),
                Some(state) => {
                    let block = kernels.attend_block(query, rows, scale, scores, block_context);
                    kernels.merge_blocks(state, context, block, block_context);
                }
            }
        }
        kernels.finish_attention(state.expect("a column attends at least to itself"), context);
        format.turn_back(context);
    });

    let by_head = arena.take(w * value_width);
    let width = mla.v_head_dim;
    weights.tiles(layer.value_up, cancel, |multiplier, first, view| {
        let Means { kernels, threads, scratch, .. } = multiplier.means;
        let mut result = Ok(());
        let failed = std::sync::Mutex::new(&mut result);
        threads.chunks(by_head, width * w, |head, out| {
            let (start, end) = overlap(head * width, width, first, view.rows());
            if start < end {
                let part = view.slice_rows(start - first..end - first);
                let out = &mut out[(start - head * width) * w..(end - head * width) * w];
                let x = Columns::new(&contexts[head * w * latent..][..w * latent], latent);
                let done = x.and_then(|x| kernels.matmul_serial(&mut scratch.piece(threads), part, x, out));
                if let Err(error) = done {
                    **failed.lock().expect("no task panics") = Err(error);
                }
            }
        });
        Ok(result?)
    })?;

    let values = arena.take(w * value_width);
    to_columns(&weights.threads, by_head, w, value_width, values);
    if let Some(id) = layer.gate {
        let gate = arena.take(w * value_width);
        weights.matmul(id, &mut x, gate, cancel)?;
        weights.threads.chunks(values, value_width, |c, values| {
            kernels.gate(values, &gate[c * value_width..][..value_width]);
        });
    }
    let mut values = Operand::new(kernels, &weights.threads, values, value_width, inner)?;
    weights.matmul(layer.output, &mut values, out, cancel)
}

/// Cosines and sines of the columns of a pass, where the model rotates.
struct Angles<'a> {
    /// `columns x pairs` each.
    table: Option<[&'a [f32]; 2]>,
    pairs: usize,
}

impl<'a> Angles<'a> {
    fn new(mla: &MlaConfig, position: usize, columns: usize, arena: &mut Arena<'a>) -> Self {
        let pairs = mla.qk_rope_head_dim / 2;
        let table = mla.rope.as_ref().map(|rope| {
            let [cos, sin] = [(); 2].map(|()| arena.take(columns * pairs));
            let of_columns = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
            for (c, (cos, sin)) in of_columns.enumerate() {
                rope.angles(position + c, cos, sin);
            }
            [&*cos, &*sin]
        });
        Self { table, pairs }
    }

    /// Rotates values of one column.
    fn rotate(&self, kernels: Kernels, column: usize, x: &mut [f32]) {
        if let Some(table) = self.table {
            let [cos, sin] = table.map(|values| &values[column * self.pairs..][..self.pairs]);
            kernels.rotate(x, cos, sin);
        }
    }
}

/// The rows of a head, `start..start + len`, that lie in a tile of `rows` rows from `first` on.
fn overlap(start: usize, len: usize, first: usize, rows: usize) -> (usize, usize) {
    (start.max(first), (start + len).min(first + rows))
}
