//! The mixture of experts, on a latent or on the hidden state itself.

use kimi_kernels::Route;
use kimi_paging::{Budget, LeasedVec};

use super::{Step, mlp, to_columns};
use crate::arena::Arena;
use crate::config::{Config, MoeConfig};
use crate::error::Error;
use crate::layout::Moe;
use crate::operand::Operand;

/// The choices of the router in one pass.
#[derive(Debug)]
pub(crate) struct Routing {
    order: LeasedVec<(f32, u32)>,
    /// Per column, the chosen experts in ascending order and their weights.
    ids: LeasedVec<u32>,
    weights: LeasedVec<f32>,
    /// All chosen experts in ascending order.
    union: Vec<u32>,
    columns: usize,
    top_k: usize,
}

impl Routing {
    pub(crate) fn new(moe: Option<&MoeConfig>, w: usize, budget: &Budget) -> Result<Self, Error> {
        let (experts, top_k) = moe.map_or((0, 0), |moe| (moe.num_experts, moe.num_experts_per_token));
        Ok(Self {
            order: budget.zeroed(experts, "routing")?,
            ids: budget.zeroed(w * top_k, "routing")?,
            weights: budget.zeroed(w * top_k, "routing")?,
            union: Vec::with_capacity(w * top_k),
            columns: 0,
            top_k,
        })
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(moe: Option<&MoeConfig>, w: usize) -> u64 {
        moe.map_or(0, |moe| (moe.num_experts * 8 + w * moe.num_experts_per_token * 12) as u64)
    }
}

pub(super) fn floats(config: &Config, moe: &MoeConfig, w: usize) -> usize {
    let width = moe.latent_size.unwrap_or(config.hidden_size);
    let shared = mlp::floats(moe.num_shared_experts * moe.intermediate_size, w) + w * config.hidden_size;
    // Logits, the experts' input and sum (twice, for the norm); one expert's input and output, gate, up and their product.
    w * (moe.num_experts + 3 * width + 2 * width + 3 * moe.intermediate_size) + shared
}

pub(super) fn forward(step: &mut Step<'_>, layer: &Moe, x: &[f32], out: &mut [f32]) -> Result<(), Error> {
    let moe = step.config.moe.as_ref().expect("a model with experts is configured for them");
    let (w, hidden, epsilon, activation) =
        (step.columns, step.config.hidden_size, step.config.rms_norm_eps, step.config.activation);
    let (bank, width, inner_width) = (&layer.experts, layer.experts.width, layer.experts.inner);
    let Step { weights, index, cancel, phase, operands: [input, inner], routing, .. } = step;
    let kernels = weights.kernels;
    let mut arena = Arena::new(phase);

    // The router first: its experts are read while the matrices up to their use are multiplied.
    let logits = arena.take(w * moe.num_experts);
    let mut x_columns = Operand::new(kernels, &weights.threads, x, hidden, input)?;
    weights.matmul(layer.router, &mut x_columns, logits, cancel)?;
    routing.choose(moe, &layer.bias, logits, kernels);
    weights.request_experts(index, bank, &routing.union)?;

    let latent = match &layer.latent {
        Some(latent) => {
            let y = arena.take(w * width);
            weights.matmul(latent.down, &mut x_columns, y, cancel)?;
            &*y
        }
        None => x,
    };
    let shared = match &layer.shared {
        Some(shared) => {
            let sum = arena.take(w * hidden);
            let [gate, up] = [(); 2].map(|()| arena.take(w * shared.width));
            weights.matmul(shared.gate, &mut x_columns, gate, cancel)?;
            weights.matmul(shared.up, &mut x_columns, up, cancel)?;
            weights.threads.chunks(gate, shared.width, |c, gate| {
                activation.apply(kernels, gate, &up[c * shared.width..][..shared.width]);
            });
            let mut h = Operand::new(kernels, &weights.threads, gate, shared.width, inner)?;
            weights.matmul(shared.down, &mut h, sum, cancel)?;
            Some(&*sum)
        }
        None => None,
    };

    let sum = arena.take(w * width);
    sum.fill(0.0);
    let [expert_in, expert_out] = [(); 2].map(|()| arena.take(w * width));
    let [gate, up, product] = [(); 3].map(|()| arena.take(w * inner_width));
    let mut moments = weights.moments.take();
    let done = weights.experts(bank, &routing.union, cancel, |means, id, [w1, w3, w2]| {
        let threads = means.threads;
        let mut n = 0;
        for (c, _) in routing.users(id) {
            expert_in[n * width..][..width].copy_from_slice(&latent[c * width..][..width]);
            n += 1;
        }
        let mut x = Operand::new(kernels, threads, &expert_in[..n * width], width, inner)?;
        let (gate, up) = (&mut gate[..n * inner_width], &mut up[..n * inner_width]);
        means.product(w1, &mut x, gate)?;
        means.product(w3, &mut x, up)?;
        // Both lie row after row, which is as good as column after column to a pointwise gate.
        activation.apply(kernels, gate, up);
        let product = &mut product[..n * inner_width];
        to_columns(threads, gate, n, inner_width, product);
        if let Some(moments) = &mut moments {
            moments.add_expert(bank, id, &expert_in[..n * width], product);
        }
        let mut h = Operand::new(kernels, threads, product, inner_width, inner)?;
        let result = &mut expert_out[..n * width];
        means.product(w2, &mut h, result)?;
        let result_columns = &mut expert_in[..n * width];
        to_columns(threads, result, n, width, result_columns);
        for ((c, weight), result) in routing.users(id).zip(result_columns.chunks_exact(width)) {
            kernels.accumulate(&mut sum[c * width..][..width], weight, result);
        }
        Ok(())
    });
    weights.moments = moments;
    done?;

    match &layer.latent {
        Some(latent) => {
            let normed = match &latent.norm {
                Some(norm) => {
                    kernels.rms_norm(sum, norm, epsilon, expert_in);
                    &*expert_in
                }
                None => &*sum,
            };
            let mut up = Operand::new(kernels, &weights.threads, normed, width, inner)?;
            weights.matmul(latent.up, &mut up, out, cancel)?;
        }
        None => out.copy_from_slice(sum),
    }
    if let Some(shared) = shared {
        kernels.add(out, shared);
    }
    Ok(())
}

impl Routing {
    /// Chooses the experts of every column and collects their union.
    fn choose(&mut self, moe: &MoeConfig, bias: &[f32], logits: &[f32], kernels: kimi_kernels::Kernels) {
        let top_k = moe.num_experts_per_token;
        let route = Route {
            top_k,
            renormalize: moe.renormalize,
            scale: moe.routed_scaling_factor,
            groups: moe.num_groups,
            kept_groups: moe.topk_groups,
        };
        let columns = logits.len() / moe.num_experts;
        self.union.clear();
        for (c, logits) in logits.chunks_exact(moe.num_experts).enumerate() {
            let (ids, weights) =
                (&mut self.ids[c * top_k..][..top_k], &mut self.weights[c * top_k..][..top_k]);
            kernels.route(logits, bias, route, &mut self.order, ids, weights);
        }
        self.union.extend_from_slice(&self.ids[..columns * top_k]);
        self.union.sort_unstable();
        self.union.dedup();
        self.columns = columns;
    }

    /// The columns that chose an expert, and its weight in each.
    fn users(&self, id: u32) -> impl Iterator<Item = (usize, f32)> {
        let chosen = self.ids[..self.columns * self.top_k].chunks_exact(self.top_k).enumerate();
        chosen.filter_map(move |(c, ids)| {
            Some((c, self.weights[c * self.top_k + ids.binary_search(&id).ok()?]))
        })
    }

    /// The chosen experts and their weights, column after column.
    pub(crate) fn chosen(&self) -> (&[u32], &[f32]) {
        let count = self.columns * self.top_k;
        (&self.ids[..count], &self.weights[..count])
    }
}
