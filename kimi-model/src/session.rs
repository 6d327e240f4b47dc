//! One conversation: the state of every layer after the tokens committed so far.

use kimi_paging::{Budget, LeasedVec};

use crate::config::{AttentionKind, Config};
use crate::error::Error;
use crate::kv::{KvBlock, KvFormat, RowShape};

/// Passes of up to this many columns keep a log of their updates, so that any prefix can be committed.
pub const LOG_COLUMNS: usize = 8;

/// Positions in one block of latents: attention works block by block, and memory grows by blocks.
pub const KV_BLOCK: usize = 64;

/// The state after some tokens. Independent of every other session of the same model.
///
/// A pass computes from a session without changing it; [`Pass::commit`](crate::Pass::commit) does.
#[derive(Debug)]
pub struct Session {
    pub(crate) position: usize,
    pub(crate) capacity: usize,
    pub(crate) kda: Vec<KdaState>,
    pub(crate) kv: Vec<KvCache>,
    pub(crate) budget: Budget,
    /// In the order of their positions.
    saved: Vec<Saved>,
}

/// The recurrent state and the convolution tails of every layer after so many tokens.
#[derive(Debug)]
struct Saved {
    position: usize,
    layers: Vec<[LeasedVec<f32>; 2]>,
}

impl Session {
    pub(crate) fn new(config: &Config, sizes: &SessionSizes, budget: &Budget) -> Result<Self, Error> {
        let kda = (0..sizes.kda_layers).map(|_| KdaState::new(sizes, budget)).collect::<Result<_, _>>()?;
        let shape = RowShape { len: config.mla.row(), content: config.mla.kv_lora_rank };
        let kv = (0..sizes.mla_layers).map(|_| KvCache::new(shape, sizes.kv_format)).collect();
        Ok(Self {
            position: 0,
            capacity: sizes.positions,
            kda,
            kv,
            budget: budget.clone(),
            saved: Vec::new(),
        })
    }

    /// Tokens committed so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The most tokens that this session can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.position = 0;
        self.saved.clear();
        for kda in &mut self.kda {
            kda.state.fill(0.0);
            kda.tails.fill(0.0);
        }
        for cache in &mut self.kv {
            cache.blocks.clear();
        }
    }

    /// Keeps a copy of the recurrent state, so that [`rewind`](Self::rewind) can come back to this position. Latents are not
    /// copied: those of earlier positions never change.
    ///
    /// # Errors
    /// [`Error::Paging`] when the budget has no room for [`checkpoint_bytes`](Self::checkpoint_bytes).
    pub fn checkpoint(&mut self) -> Result<(), Error> {
        if self.saved.last().map_or(0, |saved| saved.position) == self.position {
            return Ok(());
        }
        let copy = |from: &[f32]| -> Result<_, Error> {
            let mut to = self.budget.zeroed(from.len(), "checkpoints")?;
            to.copy_from_slice(from);
            Ok(to)
        };
        let layers = self.kda.iter().map(|layer| Ok([copy(&layer.state)?, copy(&layer.tails)?]));
        let layers = layers.collect::<Result<_, Error>>()?;
        self.saved.push(Saved { position: self.position, layers });
        Ok(())
    }

    /// Goes back to the last checkpoint at or before `position`, or to the beginning, and returns where that is. Later
    /// checkpoints are gone. A position that has not been reached yet changes nothing.
    pub fn rewind(&mut self, position: usize) -> usize {
        if position >= self.position {
            return self.position;
        }
        self.saved.retain(|saved| saved.position <= position);
        match self.saved.last() {
            Some(saved) => {
                for (layer, [state, tails]) in self.kda.iter_mut().zip(&saved.layers) {
                    layer.state.copy_from_slice(state);
                    layer.tails.copy_from_slice(tails);
                }
            }
            None => {
                for layer in &mut self.kda {
                    layer.state.fill(0.0);
                    layer.tails.fill(0.0);
                }
            }
        }
        self.position = self.saved.last().map_or(0, |saved| saved.position);
        self.position
    }

    /// The positions of all checkpoints, ascending. The beginning needs none.
    pub fn checkpoints(&self) -> impl ExactSizeIterator<Item = usize> {
        self.saved.iter().map(|saved| saved.position)
    }

    /// Gives the memory of the checkpoint at `position` back, if there is one.
    pub fn forget(&mut self, position: usize) {
        self.saved.retain(|saved| saved.position != position);
    }

    /// Bytes that a checkpoint takes.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.kda.iter().map(|layer| layer.state.lease().bytes() + layer.tails.lease().bytes()).sum()
    }

    /// Makes room for the latents of `columns` more positions.
    pub(crate) fn reserve(&mut self, columns: usize) -> Result<(), Error> {
        let needed = self.position + columns;
        if needed > self.capacity {
            return Err(Error::ContextFull {
                capacity: self.capacity,
                position: self.position,
                tokens: columns,
            });
        }
        for cache in &mut self.kv {
            while cache.blocks.len() * KV_BLOCK < needed {
                cache.blocks.push(KvBlock::new(cache.format, cache.shape, KV_BLOCK, &self.budget)?);
            }
        }
        Ok(())
    }
}

/// What a session costs, known before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionSizes {
    pub(crate) kda_layers: usize,
    pub(crate) mla_layers: usize,
    /// Floats of one layer's recurrent state.
    pub(crate) state: usize,
    /// Floats of one layer's convolution inputs of one column: query, key and value.
    pub(crate) inputs: usize,
    /// Columns that the convolutions look back.
    pub(crate) tail_columns: usize,
    /// Floats of one layer's decays of one column.
    pub(crate) channels: usize,
    pub(crate) heads: usize,
    pub(crate) log_columns: usize,
    pub(crate) shadow: bool,
    pub(crate) positions: usize,
    pub(crate) kv_row: usize,
    pub(crate) kv_format: KvFormat,
}

impl SessionSizes {
    /// For sessions of up to `positions` tokens in passes of up to `width` columns.
    pub(crate) fn new(config: &Config, width: usize, positions: usize, kv_format: KvFormat) -> Self {
        let (state, channels, taps, heads) = config.kda.as_ref().map_or((0, 0, 1, 0), |kda| {
            (kda.channels() * kda.head_dim, kda.channels(), kda.short_conv_kernel_size, kda.num_heads)
        });
        Self {
            kda_layers: config.attention_layers(AttentionKind::Kda),
            mla_layers: config.attention_layers(AttentionKind::Mla),
            state,
            inputs: 3 * channels,
            tail_columns: taps - 1,
            channels,
            heads,
            log_columns: width.min(LOG_COLUMNS),
            shadow: width > LOG_COLUMNS,
            positions,
            kv_row: config.mla.row(),
            kv_format,
        }
    }

    /// Bytes of the recurrent state and the convolution tails.
    pub(crate) fn state_bytes(&self) -> u64 {
        (self.kda_layers * (self.state + self.tail_columns * self.inputs)) as u64 * 4
    }

    /// Bytes of the log of narrow passes.
    pub(crate) fn log_bytes(&self) -> u64 {
        (self.kda_layers * self.log_columns * (self.inputs + self.channels + self.heads)) as u64 * 4
    }

    /// Bytes of the second state that wide passes write.
    pub(crate) fn shadow_bytes(&self) -> u64 {
        if self.shadow { self.state_bytes() } else { 0 }
    }

    /// Bytes of a session that is full.
    pub(crate) fn bytes(&self) -> u64 {
        let fixed = self.state_bytes() + self.log_bytes() + self.shadow_bytes();
        fixed.saturating_add(self.kv_bytes())
    }

    /// Bytes of the latents of all positions, in whole blocks.
    pub(crate) fn kv_bytes(&self) -> u64 {
        let positions = self.positions.checked_next_multiple_of(KV_BLOCK).unwrap_or(usize::MAX);
        let position_bytes = self.mla_layers * self.kv_format.row_bytes(self.kv_row);
        (positions as u64).saturating_mul(position_bytes as u64)
    }
}

/// The memory of one KDA layer.
#[derive(Debug)]
pub(crate) struct KdaState {
    /// `heads x head_dim x head_dim`, indexed by head, key, value.
    pub(crate) state: LeasedVec<f32>,
    /// For each of query, key and value the last inputs of its convolution, oldest first.
    pub(crate) tails: LeasedVec<f32>,
    /// What a narrow pass did: convolution inputs, decays and betas of each column.
    pub(crate) log: KdaLog,
    /// State and tails after a wide pass.
    pub(crate) shadow: Option<(LeasedVec<f32>, LeasedVec<f32>)>,
}

/// The updates of up to [`LOG_COLUMNS`] columns of one layer.
#[derive(Debug)]
pub(crate) struct KdaLog {
    /// For each of query, key and value: `columns x channels`.
    pub(crate) inputs: [LeasedVec<f32>; 3],
    /// `columns x channels`.
    pub(crate) decay: LeasedVec<f32>,
    /// `columns x heads`.
    pub(crate) beta: LeasedVec<f32>,
}

impl KdaState {
    fn new(sizes: &SessionSizes, budget: &Budget) -> Result<Self, Error> {
        let tails = sizes.tail_columns * sizes.inputs;
        let log = |floats: usize| budget.zeroed(sizes.log_columns * floats, "update log");
        Ok(Self {
            state: budget.zeroed(sizes.state, "recurrent state")?,
            tails: budget.zeroed(tails, "recurrent state")?,
            log: KdaLog {
                inputs: [log(sizes.channels)?, log(sizes.channels)?, log(sizes.channels)?],
                decay: log(sizes.channels)?,
                beta: log(sizes.heads)?,
            },
            shadow: match sizes.shadow {
                true => {
                    Some((budget.zeroed(sizes.state, "shadow state")?, budget.zeroed(tails, "shadow state")?))
                }
                false => None,
            },
        })
    }
}

/// The latents of one MLA layer: rows of the normed latent followed by the shared key.
#[derive(Debug)]
pub(crate) struct KvCache {
    pub(crate) shape: RowShape,
    pub(crate) format: KvFormat,
    pub(crate) blocks: Vec<KvBlock>,
}

impl KvCache {
    fn new(shape: RowShape, format: KvFormat) -> Self {
        Self { shape, format, blocks: Vec::new() }
    }

    /// Stores the row of one position, which must have been reserved; what is left of its values is undefined.
    pub(crate) fn store(&mut self, position: usize, row: &mut [f32]) {
        self.blocks[position / KV_BLOCK].store(self.shape, position % KV_BLOCK, row);
    }

    /// Floats of scratch that reading a block takes.
    pub(crate) fn scratch(row: usize, format: KvFormat) -> usize {
        if format == KvFormat::F32 { 0 } else { KV_BLOCK * row }
    }

    /// The rows of block `i` among positions `0..count`, turned as the format has them; `None` past the last.
    pub(crate) fn rows<'a>(&'a self, i: usize, count: usize, scratch: &'a mut [f32]) -> Option<&'a [f32]> {
        let rows = count.checked_sub(i * KV_BLOCK).filter(|&rows| rows > 0)?.min(KV_BLOCK);
        Some(self.blocks[i].read(self.shape, rows, scratch))
    }
}

/// Moves the last columns of `tail` followed by `inputs` into `next`; all have `channels` values per column.
pub(crate) fn shift_tail(tail: &[f32], inputs: &[f32], next: &mut [f32]) {
    let from_inputs = inputs.len().min(next.len());
    let from_tail = next.len() - from_inputs;
    next[..from_tail].copy_from_slice(&tail[tail.len() - from_tail..]);
    next[from_tail..].copy_from_slice(&inputs[inputs.len() - from_inputs..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_keep_the_last_columns() {
        let mut next = [0.0; 3];
        shift_tail(&[1.0, 2.0, 3.0], &[4.0], &mut next);
        assert_eq!(next, [2.0, 3.0, 4.0]);
        shift_tail(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0, 7.0], &mut next);
        assert_eq!(next, [5.0, 6.0, 7.0]);
        shift_tail(&[1.0, 2.0, 3.0], &[], &mut next);
        assert_eq!(next, [1.0, 2.0, 3.0]);
    }

    #[test]
    fn rows_come_in_blocks_up_to_the_count() {
        let budget = Budget::unlimited();
        for format in KvFormat::ALL {
            let shape = RowShape { len: 2, content: 1 };
            let blocks = (0..2).map(|_| KvBlock::new(format, shape, KV_BLOCK, &budget).unwrap()).collect();
            let mut cache = KvCache { shape, format, blocks };
            cache.store(65, &mut [0.0, 7.0]);
            let mut scratch = vec![f32::NAN; KvCache::scratch(2, format)];
            let mut rows = |i, count| cache.rows(i, count, &mut scratch).map(<[f32]>::to_vec);
            assert_eq!(rows(0, 1).unwrap().len(), 2);
            assert_eq!(rows(0, 64).unwrap().len(), 128);
            assert_eq!(rows(1, 64), None);
            assert_eq!(rows(1, 66).unwrap(), [0.0, 0.0, 0.0, 7.0]);
        }
    }
}
