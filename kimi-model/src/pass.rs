//! One forward pass over some tokens, and its commit.

use std::sync::atomic::AtomicBool;

use kimi_quant::MatrixView;

use crate::engine::{Engine, MAX_SOURCES, Workspace};
use crate::error::Error;
use crate::layer::{self, Memory, Step};
use crate::layout::{Attention, FeedForward};
use crate::model::Model;
use crate::operand::Operand;
use crate::packed::Tile;
use crate::session::{LOG_COLUMNS, Session};
use crate::weights::{Part, Weights, damaged};

/// Which logits a pass computes.
#[derive(Default)]
#[non_exhaustive]
pub enum Logits<'a> {
    /// None: the output matrix is not read.
    #[default]
    None,
    /// Those after the last token.
    Last,
    /// Those after every token, handed over in pieces and not kept.
    Each(&'a mut dyn LogitSink),
}

impl std::fmt::Debug for Logits<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Last => "Last",
            Self::Each(_) => "Each",
        })
    }
}

/// Takes logits as they are computed: a range of the vocabulary at a time, for all columns of the pass.
pub trait LogitSink: Send {
    /// `values[c, i]` is the logit of token `first_id + i` after column `c`; there are `ids` tokens in this piece.
    ///
    /// # Errors
    /// Any error ends the pass and is returned from it.
    fn piece(&mut self, first_id: usize, ids: usize, values: &[f32]) -> std::io::Result<()>;
}

/// Watches a pass.
pub trait Observer: Send {
    /// Layer `layer` of `layers` is done. `sums` is the residual sum of each column, `columns x hidden_size`; with Attention
    /// Residuals it restarts at the start of a block.
    fn layer(&mut self, layer: usize, layers: usize, sums: &[f32]) {
        let _ = (layer, layers, sums);
    }

    /// The experts that a layer chose: `columns x num_experts_per_token`, ascending in each column, and their weights.
    fn experts(&mut self, layer: usize, ids: &[u32], weights: &[f32]) {
        let _ = (layer, ids, weights);
    }
}

/// Sees nothing.
impl Observer for () {}

/// What a pass should compute and how it can be stopped.
#[derive(Default)]
#[non_exhaustive]
pub struct PassOptions<'a> {
    /// The logits to compute.
    pub logits: Logits<'a>,
    /// Another pass will follow: reading for it starts before this one ends.
    pub more: bool,
    /// Ends the pass with [`Error::Cancelled`] soon after it becomes true; checked before every tile.
    pub cancel: Option<&'a AtomicBool>,
    /// Watches the pass.
    pub observer: Option<&'a mut dyn Observer>,
}

impl std::fmt::Debug for PassOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PassOptions")
            .field("logits", &self.logits)
            .field("more", &self.more)
            .finish_non_exhaustive()
    }
}

/// A computed pass. Dropping it leaves the session as it was.
#[derive(Debug)]
pub struct Pass<'a> {
    engine: &'a mut Engine,
    session: &'a mut Session,
    columns: usize,
}

impl Pass<'_> {
    /// Tokens in the pass.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The logits after the last token, when they were asked for.
    pub fn logits(&self) -> &[f32] {
        &self.engine.work.logits
    }

    /// Keeps the first `count` tokens: the session stands after them.
    ///
    /// Passes of up to [`LOG_COLUMNS`](crate::session::LOG_COLUMNS) tokens keep any number, wider ones all or none.
    ///
    /// # Errors
    /// [`Error::Commit`] for a number that this pass cannot keep; the session is untouched then.
    pub fn commit(self, count: usize) -> Result<(), Error> {
        let Self { engine, session, columns } = self;
        let allowed = count <= columns && (columns <= LOG_COLUMNS || count == 0 || count == columns);
        if !allowed {
            return Err(Error::Commit { columns, count });
        }
        if count == 0 {
            return Ok(());
        }
        let Engine { model, weights, work, .. } = engine;
        let kda_layers = model.layout.layers.iter().filter_map(|layer| match &layer.attention {
            Attention::Kda(kda) => Some(kda),
            Attention::Mla(_) => None,
        });
        let Weights { kernels, threads, scratch, .. } = weights;
        let (means, phase) = ((*kernels, &*threads, &*scratch), &mut work.phase);
        if columns > LOG_COLUMNS {
            for state in &mut session.kda {
                let (shadow, tails) = state.shadow.as_mut().expect("wide passes run only with a shadow");
                std::mem::swap(&mut state.state, shadow);
                std::mem::swap(&mut state.tails, tails);
            }
        } else if let Some(kda) = &model.config.kda {
            threads.run(|| {
                for (layer, state) in kda_layers.zip(&mut session.kda) {
                    layer::replay(kda, layer, state, count, means, phase);
                }
            });
        }
        session.position += count;
        Ok(())
    }
}

impl Engine {
    /// Computes `tokens` from a session without changing it.
    ///
    /// # Errors
    /// [`Error`]: no tokens or too many, an id outside the vocabulary, a full context, a failed read, a number that is
    /// not finite (with its layer), cancellation. The session is as before; the engine can be used again.
    pub fn forward<'a>(
        &'a mut self,
        session: &'a mut Session,
        tokens: &[u32],
        options: PassOptions<'_>,
    ) -> Result<Pass<'a>, Error> {
        if tokens.is_empty() || tokens.len() > self.max_columns() {
            return Err(Error::PassWidth { columns: tokens.len(), max: self.max_columns() });
        }
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= self.model.config.vocab_size) {
            return Err(Error::Token { id, vocab_size: self.model.config.vocab_size });
        }
        session.reserve(tokens.len())?;
        if let Err(error) = self.compute(session, tokens, options) {
            self.weights.abandon();
            self.announced = false;
            return Err(error);
        }
        Ok(Pass { engine: self, session, columns: tokens.len() })
    }

    fn compute(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        options: PassOptions<'_>,
    ) -> Result<(), Error> {
        let never = AtomicBool::new(false);
        let PassOptions { mut logits, more, cancel, observer } = options;
        let cancel = cancel.unwrap_or(&never);
        let trunk = 0..self.model.layout.lm_head.0;
        if !self.announced {
            self.weights.announce(trunk.clone());
        }
        if !matches!(logits, Logits::None) {
            self.weights.announce(trunk.end..trunk.end + 1);
        }
        self.announced = more;
        if more {
            self.weights.announce(trunk);
        }
        let Self { model, weights, work, .. } = self;
        let threads = weights.threads.clone();
        threads.run(|| {
            let mut graph = Graph { model, weights, work, cancel, columns: tokens.len() };
            graph.layers(session, tokens, observer)?;
            graph.output(&mut logits)
        })
    }
}

/// The graph of one pass.
struct Graph<'a> {
    model: &'a Model,
    weights: &'a mut Weights,
    work: &'a mut Workspace,
    cancel: &'a AtomicBool,
    columns: usize,
}

impl Graph<'_> {
    /// Embeds the tokens and runs all layers; the residual sums are left in the workspace.
    fn layers(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<(), Error> {
        let (model, w) = (self.model, self.columns);
        let (config, layout) = (&model.config, &model.layout);
        self.embed(tokens)?;
        let position = session.position;
        let (mut kda, mut kv) = (session.kda.iter_mut(), session.kv.iter_mut());
        self.work.blocks_kept = 0;
        for (i, layer) in layout.layers.iter().enumerate() {
            let memory = match layer.attention {
                Attention::Kda(_) => Memory::Kda(kda.next().expect("a state for every KDA layer")),
                Attention::Mla(_) => Memory::Kv(kv.next().expect("a cache for every MLA layer")),
            };
            self.mix(layer.mixes.as_ref().map(|mixes| &mixes[0]));
            let restart = config.attn_res_block_size.is_some_and(|size| i.is_multiple_of(size));
            if restart {
                self.keep_block();
            }
            self.norm(&layer.input_norm);
            self.run(|step, x, out| step.attention(&layer.attention, memory, x, out), position)?;
            self.add_output(restart);

            self.mix(layer.mixes.as_ref().map(|mixes| &mixes[1]));
            self.norm(&layer.post_attention_norm);
            self.run(|step, x, out| step.feed_forward(&layer.feed_forward, x, out), position)?;
            self.add_output(false);

            let sums = &self.work.sums[..w * config.hidden_size];
            if let Some(at) = sums.iter().position(|value| !value.is_finite()) {
                return Err(Error::NotFinite { layer: i, position: position + at / config.hidden_size });
            }
            if let Some(observer) = &mut observer {
                if let FeedForward::Moe(_) = layer.feed_forward {
                    let (ids, weights) = self.work.routing.chosen();
                    observer.experts(i, ids, weights);
                }
                observer.layer(i, layout.layers.len(), sums);
            }
        }
        Ok(())
    }

    /// The rows of the embedding, read one by one.
    fn embed(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let embedding = &self.model.layout.embedding;
        let source = self.model.checkpoint.index().source(embedding.weights.source);
        let bytes = &mut self.work.embedding_row[..];
        for (sum, &id) in self.work.sums.chunks_exact_mut(embedding.cols).zip(tokens) {
            let (rows, cols) = (embedding.rows, embedding.cols);
            // A row, or the tile that it lies in.
            let unit = embedding.tiles.map_or(1, |cut| cut.rows);
            let (number, row) = (id as usize / unit, id as usize % unit);
            source.read_once(embedding.weights.offset + number as u64 * bytes.len() as u64, bytes)?;
            let view = match embedding.tiles {
                None => MatrixView::new(embedding.encoding, [1, cols], bytes)?,
                Some(cut) => {
                    let first = number * cut.rows;
                    let tile =
                        Tile { encoding: embedding.encoding, rows: cut.rows.min(rows - first), cols, first };
                    let seed = self.weights.checker.next(&embedding.name);
                    tile.view(bytes, seed)
                        .map_err(|problem| damaged(&self.weights.dir, &embedding.name, number, problem))?
                }
            };
            view.decode_row(row, sum);
            self.weights.counter.add(Part::Other, bytes.len() as u64);
        }
        Ok(())
    }

    /// The input of a sublayer: the mix of the kept blocks and the running sum, or the sum alone.
    fn mix(&mut self, key: Option<&Vec<f32>>) {
        let (hidden, w, epsilon) =
            (self.model.config.hidden_size, self.columns, self.model.config.rms_norm_eps);
        let (kernels, threads) = (self.weights.kernels, &self.weights.threads);
        let Workspace { sums, mixed, blocks, blocks_kept, .. } = &mut *self.work;
        let (sums, mixed) = (&sums[..w * hidden], &mut mixed[..w * hidden]);
        match key {
            Some(key) if *blocks_kept > 0 => threads.chunks(mixed, hidden, |c, mixed| {
                let mut sources = [&[][..]; MAX_SOURCES];
                let mut scores = [0.0; MAX_SOURCES];
                let count = *blocks_kept + 1;
                for (source, block) in sources.iter_mut().zip(blocks.chunks_exact(w * hidden)) {
                    *source = &block[c * hidden..][..hidden];
                }
                sources[count - 1] = &sums[c * hidden..][..hidden];
                kernels.mix(&sources[..count], key, epsilon, &mut scores[..count], mixed);
            }),
            _ => mixed.copy_from_slice(sums),
        }
    }

    /// Stores the running sum as a block.
    fn keep_block(&mut self) {
        let len = self.columns * self.model.config.hidden_size;
        let Workspace { sums, blocks, blocks_kept, .. } = &mut *self.work;
        blocks[*blocks_kept * len..][..len].copy_from_slice(&sums[..len]);
        *blocks_kept += 1;
    }

    fn norm(&mut self, weight: &[f32]) {
        let (hidden, w, epsilon) =
            (self.model.config.hidden_size, self.columns, self.model.config.rms_norm_eps);
        let Workspace { mixed, normed, .. } = &mut *self.work;
        let kernels = self.weights.kernels;
        self.weights.threads.chunks(&mut normed[..w * hidden], hidden, |c, normed| {
            kernels.rms_norm(&mixed[c * hidden..][..hidden], weight, epsilon, normed);
        });
    }

    /// Runs a sublayer on the normed input.
    fn run(
        &mut self,
        sublayer: impl FnOnce(&mut Step<'_>, &[f32], &mut [f32]) -> Result<(), Error>,
        position: usize,
    ) -> Result<(), Error> {
        let len = self.columns * self.model.config.hidden_size;
        let Workspace { normed, output, phase, operands: [input, inner], routing, .. } = &mut *self.work;
        let mut step = Step {
            config: &self.model.config,
            index: self.model.checkpoint.index(),
            weights: self.weights,
            cancel: self.cancel,
            phase,
            operands: [input, inner],
            routing,
            columns: self.columns,
            position,
        };
        sublayer(&mut step, &normed[..len], &mut output[..len])
    }

    /// Adds a sublayer's output to the running sum, or starts the sum anew with it.
    fn add_output(&mut self, restart: bool) {
        let len = self.columns * self.model.config.hidden_size;
        let Workspace { sums, output, .. } = &mut *self.work;
        if restart {
            sums[..len].copy_from_slice(&output[..len]);
        } else {
            self.weights.kernels.add(&mut sums[..len], &output[..len]);
        }
    }

    /// The final mix, the final norm and the logits that were asked for.
    fn output(&mut self, logits: &mut Logits<'_>) -> Result<(), Error> {
        let (model, hidden) = (self.model, self.model.config.hidden_size);
        if matches!(logits, Logits::None) && self.weights.moments.is_none() {
            return Ok(());
        }
        self.mix(model.layout.output_mix.as_ref());
        self.norm(&model.layout.final_norm);
        let (id, rows) = (model.layout.lm_head, model.config.vocab_size);
        if let Some(moments) = &mut self.weights.moments {
            moments.add(&self.weights.threads, id, &self.work.normed[..self.columns * hidden]);
        }
        match logits {
            Logits::None => Ok(()),
            Logits::Last => {
                let Workspace { normed, operands: [input, _], logits, .. } = &mut *self.work;
                let mut last = Operand::last(&normed[..self.columns * hidden], hidden, input)?;
                self.weights.matmul(id, &mut last, &mut logits[..rows], self.cancel)?;
                match logits.iter().all(|logit| logit.is_finite()) {
                    true => Ok(()),
                    false => Err(Error::NotFiniteLogits),
                }
            }
            Logits::Each(sink) => {
                let Workspace { normed, operands: [input, _], phase, .. } = &mut *self.work;
                let w = self.columns;
                let x = &normed[..w * hidden];
                let mut x = Operand::new(self.weights.kernels, &self.weights.threads, x, hidden, input)?;
                self.weights.tiles(id, self.cancel, |multiplier, first, view| {
                    multiplier.pieces(view, &mut x, |threads, start, by_rows| {
                        let ids = by_rows.len() / w;
                        let values = &mut phase[..by_rows.len()];
                        layer::to_columns(threads, by_rows, w, ids, values);
                        if !values.iter().all(|logit| logit.is_finite()) {
                            return Err(Error::NotFiniteLogits);
                        }
                        sink.piece(first + start, ids, values).map_err(Error::Sink)
                    })
                })
            }
        }
    }
}
