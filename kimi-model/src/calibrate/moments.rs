//! Sums of products of activations.

use std::sync::Arc;

use kimi_kernels::Threads;
use kimi_quant::quantize::block_values;

use crate::layout::{Attention, ExpertBank, FeedForward, Layout, MatrixId, OutputGate};
use crate::model::Model;

/// Sums of squares that one task takes.
const TASK_COLUMNS: usize = 1024;

/// What is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CalibrateOptions {
    /// Products of all inputs inside blocks of so many neighbours, which GPTQ needs; a multiple of 128. `None` gathers squares
    /// only, which weight the errors of a search.
    pub hessian_block: Option<usize>,
    /// Squares for each routed expert too.
    pub experts: bool,
}

/// The second moments of the inputs of a model's matrices, summed over some tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// 1 where only squares are summed.
    pub(super) block: usize,
    pub(super) windows: u64,
    pub(super) tokens: u64,
    pub(super) operands: Vec<OperandMoments>,
    /// For the first matrix of each operand its number.
    leads: Vec<Option<usize>>,
    pub(super) experts: Vec<ExpertMoments>,
}

/// What is multiplied by some matrices.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OperandMoments {
    pub(super) names: Vec<Arc<str>>,
    pub(super) cols: usize,
    /// The block diagonal of `sum of x x^T`, lower triangles only.
    pub(super) values: Vec<f64>,
}

/// What the experts of one layer see: sums of squares.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExpertMoments {
    pub(super) name: Arc<str>,
    layer: u32,
    /// Tokens of each expert.
    pub(super) tokens: Vec<u64>,
    pub(super) width: usize,
    pub(super) inner: usize,
    /// `experts x width`, for gate and up matrix.
    pub(super) input: Vec<f32>,
    /// `experts x inner`, for the down matrix.
    pub(super) product: Vec<f32>,
}

impl Moments {
    /// Of no tokens.
    pub fn new(model: &Model, options: &CalibrateOptions) -> Self {
        let layout = &model.layout;
        let block = options.hessian_block.unwrap_or(1);
        let mut leads = vec![None; layout.matrices.len()];
        let operands = operands(layout).into_iter().enumerate().map(|(i, ids)| {
            leads[ids[0].0] = Some(i);
            let matrix = |id: &MatrixId| &layout.matrices[id.0];
            let cols = matrix(&ids[0]).cols;
            let names = ids.iter().map(|id| matrix(id).name.clone()).collect();
            OperandMoments { names, cols, values: vec![0.0; values(cols, block)] }
        });
        let operands = operands.collect();
        let experts = layout.banks().filter(|_| options.experts).map(ExpertMoments::new).collect();
        Self { block, windows: 0, tokens: 0, operands, leads, experts }
    }

    /// Bytes that the moments of a model take.
    pub fn bytes(model: &Model, options: &CalibrateOptions) -> u64 {
        let (layout, block) = (&model.layout, options.hessian_block.unwrap_or(1));
        let trunk =
            operands(layout).into_iter().map(|ids| values(layout.matrices[ids[0].0].cols, block) as u64 * 8);
        let experts = layout.banks().filter(|_| options.experts);
        let experts = experts.map(|bank| bank.count as u64 * (8 + 4 * (bank.width + bank.inner) as u64));
        trunk.sum::<u64>() + experts.sum::<u64>()
    }

    /// Windows gathered so far.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Tokens gathered so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(super) fn count(&mut self, tokens: usize) {
        self.windows += 1;
        self.tokens += tokens as u64;
    }

    /// Matrices of the model that these are of.
    pub(super) fn matrices(&self) -> usize {
        self.leads.len()
    }

    /// Adds columns that matrix `id` is multiplied with.
    pub(crate) fn add(&mut self, threads: &Threads, id: MatrixId, x: &[f32]) {
        let Some(at) = self.leads[id.0] else { return };
        let OperandMoments { cols, values, .. } = &mut self.operands[at];
        let (cols, block) = (*cols, self.block);
        if block == 1 {
            threads.chunks(values, TASK_COLUMNS, |task, sums| {
                for column in x.chunks_exact(cols) {
                    add_squares(sums, &column[task * TASK_COLUMNS..]);
                }
            });
            return;
        }
        let mut rest = &mut values[..];
        for first in (0..cols).step_by(block) {
            let n = block.min(cols - first);
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(n * n);
            rest = behind;
            threads.chunks(here, n, |i, row| {
                for column in x.chunks_exact(cols) {
                    let column = &column[first..first + n];
                    let factor = f64::from(column[i]);
                    for (sum, &value) in row[..=i].iter_mut().zip(column) {
                        *sum += factor * f64::from(value);
                    }
                }
            });
        }
    }

    /// Adds what one expert of a layer reads, and what its down matrix is multiplied with: as many columns of each.
    pub(crate) fn add_expert(&mut self, bank: &ExpertBank, expert: u32, input: &[f32], product: &[f32]) {
        let Some(moments) = self.experts.iter_mut().find(|moments| moments.layer == bank.layer) else {
            return;
        };
        let ExpertMoments { width, inner, .. } = *moments;
        let expert = expert as usize;
        moments.tokens[expert] += (input.len() / width) as u64;
        for (sums, x, len) in [(&mut moments.input, input, width), (&mut moments.product, product, inner)] {
            let sums = &mut sums[expert * len..][..len];
            for column in x.chunks_exact(len) {
                sums.iter_mut().zip(column).for_each(|(sum, &value)| *sum += value * value);
            }
        }
    }
}

fn add_squares(sums: &mut [f64], x: &[f32]) {
    sums.iter_mut().zip(x).for_each(|(sum, &value)| *sum += f64::from(value) * f64::from(value));
}

impl ExpertMoments {
    fn new(bank: &ExpertBank) -> Self {
        let (count, width, inner) = (bank.count, bank.width, bank.inner);
        Self {
            name: bank.name.clone(),
            layer: bank.layer,
            tokens: vec![0; count],
            width,
            inner,
            input: vec![0.0; count * width],
            product: vec![0.0; count * inner],
        }
    }
}

fn values(cols: usize, block: usize) -> usize {
    block_values(cols, block).expect("a block of a matrix in memory")
}

/// The matrices on the tape that have moments, those of the same input together.
fn operands(layout: &Layout) -> Vec<Vec<MatrixId>> {
    let mut operands = Vec::new();
    for layer in &layout.layers {
        match &layer.attention {
            Attention::Kda(kda) => {
                let [decay_down, decay_up] = kda.decay;
                let mut input = kda.qkv.to_vec();
                input.extend([decay_down, kda.beta]);
                let mut others = vec![vec![decay_up], vec![kda.output]];
                match kda.gate {
                    OutputGate::Full(gate) => input.push(gate),
                    OutputGate::LowRank([down, up]) => {
                        input.push(down);
                        others.push(vec![up]);
                    }
                }
                operands.push(input);
                operands.append(&mut others);
            }
            Attention::Mla(mla) => {
                let low_rank = mla.query_low_rank.as_ref();
                let mut input = vec![low_rank.map_or(mla.query, |low| low.down), mla.latent];
                input.extend(mla.gate);
                operands.push(input);
                operands.extend(low_rank.map(|_| vec![mla.query]));
                operands.push(vec![mla.output]);
            }
        }
        match &layer.feed_forward {
            FeedForward::Dense(mlp) => operands.extend([vec![mlp.gate, mlp.up], vec![mlp.down]]),
            FeedForward::Moe(moe) => {
                let (latent, shared) = (moe.latent.as_ref(), moe.shared.as_ref());
                let mut input = vec![moe.router];
                input.extend(latent.map(|latent| latent.down));
                input.extend(shared.into_iter().flat_map(|shared| [shared.gate, shared.up]));
                operands.push(input);
                operands.extend(shared.map(|shared| vec![shared.down]));
                operands.extend(latent.map(|latent| vec![latent.up]));
            }
        }
    }
    operands.push(vec![layout.lm_head]);
    operands
}
