//! The model laid out for execution: small vectors in memory, big matrices on the tape in the order of their use.

mod experts;
mod scales;

use std::sync::Arc;

use kimi_kernels::reference;
use kimi_paging::{Entry, Extent, Run};
use kimi_quant::Encoding;

use crate::checkpoint::{Checkpoint, StoredMatrix};
use crate::config::{AttentionKind, Config, FeedForwardKind, KdaConfig, MlaConfig, MoeConfig};
use crate::error::Error;
use crate::packed::TileCut;

pub(crate) use experts::{ExpertBank, ExpertStorage, MAX_PARTS};
pub(crate) use scales::BlockScales;

/// A matrix on the tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MatrixId(pub(crate) usize);

/// What the graph needs to know of a matrix on the tape.
#[derive(Debug, Clone)]
pub(crate) struct TapeMatrix {
    pub(crate) encoding: Encoding,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The tiles of a packed matrix.
    pub(crate) tiles: Option<TileCut>,
    /// The tensor, for errors and as the seed of checksums.
    pub(crate) name: Arc<str>,
    /// Bytes of what is read at least at a time: a row, or a tile.
    pub(crate) row_bytes: u64,
    /// Bytes of the whole matrix.
    pub(crate) bytes: u64,
    /// The scales of FP8, which are small and stay in memory.
    pub(crate) scales: Option<BlockScales>,
}

/// The whole model.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) layers: Vec<Layer>,
    /// The key of the mix before the output, with Attention Residuals.
    pub(crate) output_mix: Option<Vec<f32>>,
    pub(crate) final_norm: Vec<f32>,
    pub(crate) lm_head: MatrixId,
    pub(crate) embedding: StoredMatrix,
    pub(crate) embedding_entry: Entry,
    pub(crate) matrices: Vec<TapeMatrix>,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(crate) struct Layer {
    /// Keys of the mixes before attention and feed-forward, with Attention Residuals.
    pub(crate) mixes: Option<[Vec<f32>; 2]>,
    pub(crate) input_norm: Vec<f32>,
    pub(crate) post_attention_norm: Vec<f32>,
    pub(crate) attention: Attention,
    pub(crate) feed_forward: FeedForward,
}

#[derive(Debug)]
pub(crate) enum Attention {
    Kda(Kda),
    Mla(Mla),
}

#[derive(Debug)]
pub(crate) struct Kda {
    /// The projections of query, key and value.
    pub(crate) qkv: [MatrixId; 3],
    /// Their convolution taps, `K x channels` each.
    pub(crate) taps: [Vec<f32>; 3],
    pub(crate) decay: [MatrixId; 2],
    pub(crate) dt_bias: Vec<f32>,
    /// `exp(A_log)` of each head.
    pub(crate) rates: Vec<f32>,
    pub(crate) beta: MatrixId,
    pub(crate) gate: OutputGate,
    pub(crate) output_norm: Vec<f32>,
    pub(crate) output: MatrixId,
}

/// The gate on the output of KDA.
#[derive(Debug)]
pub(crate) enum OutputGate {
    Full(MatrixId),
    LowRank([MatrixId; 2]),
}

#[derive(Debug)]
pub(crate) struct Mla {
    /// Down to the low rank of the queries and its norm, where they are compressed.
    pub(crate) query_low_rank: Option<QueryLowRank>,
    /// Up from the low rank, or from the hidden state itself.
    pub(crate) query: MatrixId,
    pub(crate) latent: MatrixId,
    pub(crate) latent_norm: Vec<f32>,
    /// The key rows of `kv_b`, used transposed.
    pub(crate) key_up: MatrixId,
    /// The value rows of `kv_b`.
    pub(crate) value_up: MatrixId,
    pub(crate) gate: Option<MatrixId>,
    pub(crate) output: MatrixId,
}

#[derive(Debug)]
pub(crate) struct QueryLowRank {
    pub(crate) down: MatrixId,
    pub(crate) norm: Vec<f32>,
}

#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Mlp),
    Moe(Box<Moe>),
}

#[derive(Debug)]
pub(crate) struct Mlp {
    pub(crate) gate: MatrixId,
    pub(crate) up: MatrixId,
    pub(crate) down: MatrixId,
    pub(crate) width: usize,
}

#[derive(Debug)]
pub(crate) struct Moe {
    pub(crate) router: MatrixId,
    pub(crate) bias: Vec<f32>,
    /// Down to the latent, the norm of the experts' sum, and up again.
    pub(crate) latent: Option<Latent>,
    pub(crate) shared: Option<Mlp>,
    pub(crate) experts: ExpertBank,
}

#[derive(Debug)]
pub(crate) struct Latent {
    pub(crate) down: MatrixId,
    pub(crate) norm: Option<Vec<f32>>,
    pub(crate) up: MatrixId,
}

impl Layout {
    /// Finds and checks every tensor of the model and reads the small ones.
    pub(crate) fn new(config: &Config, checkpoint: &Checkpoint) -> Result<Self, Error> {
        let mut tape = TapeBuilder { checkpoint, matrices: Vec::new(), entries: Vec::new() };
        let hidden = config.hidden_size;
        let layers =
            (0..config.layers.len()).map(|i| layer(config, &mut tape, i)).collect::<Result<Vec<_>, _>>()?;
        let embedding = checkpoint.matrix("model.embed_tokens", config.vocab_size, hidden)?;
        if embedding.scales.is_some() {
            return Err(Error::Tensor {
                dir: checkpoint.dir().to_path_buf(),
                tensor: embedding.name,
                reason: format!("an embedding is not read as {}", embedding.encoding),
            });
        }
        let lm_head = if config.tie_word_embeddings {
            tape.push(embedding.clone(), None)
        } else {
            tape.matrix("lm_head", config.vocab_size, hidden)?
        };
        let output_mix = match config.attn_res_block_size {
            Some(_) => Some(mix_key(checkpoint, "model.output_attn_res", hidden)?),
            None => None,
        };
        let final_norm = checkpoint.vector("model.norm.weight", &[hidden])?;
        let TapeBuilder { matrices, entries, .. } = tape;
        let embedding_entry = Entry::new(embedding.weights, embedding.row_bytes());
        Ok(Self { layers, output_mix, final_norm, lm_head, embedding, embedding_entry, matrices, entries })
    }

    /// The experts of the layers that have some.
    pub(crate) fn banks(&self) -> impl Iterator<Item = &ExpertBank> {
        self.layers.iter().filter_map(|layer| match &layer.feed_forward {
            FeedForward::Moe(moe) => Some(&moe.experts),
            FeedForward::Dense(_) => None,
        })
    }

    /// Bytes of a slot that holds any expert; 0 without experts.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.banks().map(ExpertBank::slot_bytes).max().unwrap_or(0)
    }

    /// Bytes of one expert of every layer.
    pub(crate) fn expert_bytes_of_one_each(&self) -> u64 {
        self.banks().map(ExpertBank::expert_bytes).sum()
    }

    /// Bytes of all matrices on the tape.
    pub(crate) fn tape_bytes(&self) -> u64 {
        self.matrices.iter().map(|matrix| matrix.bytes).sum()
    }

    /// Layers with experts, and the experts of a token in each.
    pub(crate) fn experts_per_round(&self, config: &Config) -> (usize, usize) {
        (self.banks().count(), config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_token))
    }

    /// Tells the place of a key's layer among those with experts.
    pub(crate) fn layer_of_key(&self) -> impl Fn(u64) -> usize + Send + Sync + 'static {
        let layers: Vec<u32> = self.banks().map(|bank| bank.layer).collect();
        move |key| layers.partition_point(|&layer| u64::from(layer) < key >> 32)
    }

    /// Experts of all layers.
    pub(crate) fn expert_count(&self) -> usize {
        self.banks().map(|bank| bank.count).sum()
    }

    /// The vectors held in memory, in a fixed order.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let layers = self.layers.iter().flat_map(Layer::vectors);
        layers.chain(self.output_mix.as_deref()).chain([&*self.final_norm])
    }

    /// Bytes of the vectors held in memory.
    pub(crate) fn vector_bytes(&self) -> u64 {
        let floats = self.vectors().map(<[f32]>::len).sum::<usize>();
        let scales = self.matrices.iter().filter_map(|matrix| matrix.scales.as_ref());
        floats as u64 * 4 + scales.map(|scales| scales.plane.len() as u64).sum::<u64>()
    }
}

impl Layer {
    /// The vectors held in memory, in a fixed order.
    fn vectors(&self) -> Vec<&[f32]> {
        let mut vectors: Vec<&[f32]> = vec![&self.input_norm, &self.post_attention_norm];
        vectors.extend(self.mixes.iter().flatten().map(Vec::as_slice));
        match &self.attention {
            Attention::Kda(kda) => {
                vectors.extend(kda.taps.iter().map(Vec::as_slice));
                vectors.extend([&*kda.dt_bias, &*kda.rates, &*kda.output_norm]);
            }
            Attention::Mla(mla) => {
                vectors.extend(mla.query_low_rank.as_ref().map(|low_rank| &*low_rank.norm));
                vectors.push(&mla.latent_norm);
            }
        }
        if let FeedForward::Moe(moe) = &self.feed_forward {
            vectors.push(&moe.bias);
            vectors.extend(moe.latent.as_ref().and_then(|latent| latent.norm.as_deref()));
        }
        vectors
    }
}

/// What the halves of `kv_b` are called in packed models, behind the name of the whole.
pub(crate) const KEY_PART: &str = "k";
pub(crate) const VALUE_PART: &str = "v";

/// Collects matrices in the order of their use.
struct TapeBuilder<'a> {
    checkpoint: &'a Checkpoint,
    matrices: Vec<TapeMatrix>,
    entries: Vec<Entry>,
}

impl TapeBuilder<'_> {
    /// Appends the matrix `base.weight`.
    fn matrix(&mut self, base: &str, rows: usize, cols: usize) -> Result<MatrixId, Error> {
        let stored = self.checkpoint.matrix(base, rows, cols)?;
        let scales = self.scales(&stored)?.map(|plane| BlockScales::whole(plane, stored.rows));
        Ok(self.push(stored, scales))
    }

    /// The scales of an FP8 matrix. Other encodings with planes of their own are for experts.
    fn scales(&self, stored: &StoredMatrix) -> Result<Option<Arc<[u8]>>, Error> {
        match (stored.scales, stored.encoding) {
            (None, _) => Ok(None),
            (Some(scales), Encoding::Fp8) => Ok(Some(self.checkpoint.bytes(scales)?.into())),
            (Some(_), encoding) => Err(Error::Tensor {
                dir: self.checkpoint.dir().to_path_buf(),
                tensor: stored.name.clone(),
                reason: format!("{encoding} is read for routed experts only"),
            }),
        }
    }

    fn push(&mut self, stored: StoredMatrix, scales: Option<BlockScales>) -> MatrixId {
        let entry = Entry::new(stored.weights, stored.row_bytes());
        self.push_entry(stored, entry, scales)
    }

    fn push_entry(&mut self, stored: StoredMatrix, entry: Entry, scales: Option<BlockScales>) -> MatrixId {
        let row_bytes = stored.row_bytes();
        let StoredMatrix { encoding, rows, cols, tiles, name, weights, .. } = stored;
        let matrix = TapeMatrix {
            encoding,
            rows,
            cols,
            tiles,
            name: name.into(),
            row_bytes,
            bytes: weights.len,
            scales,
        };
        self.matrices.push(matrix);
        self.entries.push(entry);
        MatrixId(self.matrices.len() - 1)
    }

    /// Appends the two halves of `kv_b`: of every head's rows first the keys, then the values.
    fn key_and_value_up(&mut self, base: &str, mla: &MlaConfig) -> Result<[MatrixId; 2], Error> {
        let (keys, values) = (mla.qk_nope_head_dim, mla.v_head_dim);
        if self.checkpoint.manifest().is_some() && !self.checkpoint.is_fp8(base) {
            let mut half = |part: &str, rows: usize| {
                let name = format!("{base}.weight.{part}");
                let stored = self.checkpoint.tiled(&name, mla.num_heads * rows, mla.kv_lora_rank)?;
                Ok::<_, Error>(self.push(stored, None))
            };
            return Ok([half(KEY_PART, keys)?, half(VALUE_PART, values)?]);
        }
        let stored = self.checkpoint.matrix(base, mla.num_heads * (keys + values), mla.kv_lora_rank)?;
        let row = stored.row_bytes();
        let plane = self.scales(&stored)?;
        let half = |first: usize, rows: usize| {
            let bytes = (mla.num_heads * rows) as u64 * row;
            let weights = Extent { len: bytes, ..stored.weights };
            let half = StoredMatrix { rows: mla.num_heads * rows, weights, ..stored.clone() };
            let run = Run {
                source: stored.weights.source,
                offset: stored.weights.offset + first as u64 * row,
                run_bytes: rows as u64 * row,
                stride: (keys + values) as u64 * row,
                count: mla.num_heads as u64,
            };
            let scales =
                plane.clone().map(|plane| BlockScales { plane, run: rows, stride: keys + values, first });
            (half, Entry::from_runs([run], row), scales)
        };
        let [(key, key_entry, key_scales), (value, value_entry, value_scales)] =
            [half(0, keys), half(keys, values)];
        Ok([self.push_entry(key, key_entry, key_scales), self.push_entry(value, value_entry, value_scales)])
    }
}

fn layer(config: &Config, tape: &mut TapeBuilder<'_>, i: usize) -> Result<Layer, Error> {
    let (checkpoint, hidden) = (tape.checkpoint, config.hidden_size);
    let base = format!("model.layers.{i}");
    let mixes = match config.attn_res_block_size {
        None => None,
        Some(_) => Some([
            mix_key(checkpoint, &format!("{base}.self_attention_res"), hidden)?,
            mix_key(checkpoint, &format!("{base}.mlp_res"), hidden)?,
        ]),
    };
    let attention = match (config.layers[i].attention, &config.kda) {
        (AttentionKind::Kda, Some(kda_config)) => {
            Attention::Kda(kda(config, kda_config, tape, &format!("{base}.self_attn"))?)
        }
        _ => Attention::Mla(mla(config, tape, &format!("{base}.self_attn"))?),
    };
    let feed_forward = match (config.layers[i].feed_forward, &config.moe) {
        (FeedForwardKind::Moe, Some(moe_config)) => {
            FeedForward::Moe(Box::new(moe(config, moe_config, tape, &base, i)?))
        }
        _ => FeedForward::Dense(mlp(tape, &format!("{base}.mlp"), hidden, config.intermediate_size)?),
    };
    Ok(Layer {
        mixes,
        input_norm: checkpoint.vector(&format!("{base}.input_layernorm.weight"), &[hidden])?,
        post_attention_norm: checkpoint
            .vector(&format!("{base}.post_attention_layernorm.weight"), &[hidden])?,
        attention,
        feed_forward,
    })
}

/// The elementwise product of a mix's norm and projection.
///
/// Both are BF16 in releases, so the products are exact in float32.
fn mix_key(checkpoint: &Checkpoint, base: &str, hidden: usize) -> Result<Vec<f32>, Error> {
    let mut key = checkpoint.vector(&format!("{base}_norm.weight"), &[hidden])?;
    let projection = checkpoint.vector(&format!("{base}_proj.weight"), &[1, hidden])?;
    key.iter_mut().zip(projection).for_each(|(key, projection)| *key *= projection);
    Ok(key)
}

fn kda(config: &Config, kda: &KdaConfig, tape: &mut TapeBuilder<'_>, base: &str) -> Result<Kda, Error> {
    let (checkpoint, hidden, channels) = (tape.checkpoint, config.hidden_size, kda.channels());
    let mut qkv = [MatrixId(0); 3];
    let mut taps = [const { Vec::new() }; 3];
    for ((name, id), taps) in ["q", "k", "v"].into_iter().zip(&mut qkv).zip(&mut taps) {
        *id = tape.matrix(&format!("{base}.{name}_proj"), channels, hidden)?;
        let kernel = kda.short_conv_kernel_size;
        let stored = checkpoint.vector(&format!("{base}.{name}_conv1d.weight"), &[channels, 1, kernel])?;
        // On disk the taps of a channel lie together; the kernel wants the channels of a tap together.
        *taps = (0..kernel * channels).map(|at| stored[at % channels * kernel + at / channels]).collect();
    }
    let decay = [
        tape.matrix(&format!("{base}.f_a_proj"), kda.head_dim, hidden)?,
        tape.matrix(&format!("{base}.f_b_proj"), channels, kda.head_dim)?,
    ];
    let beta = tape.matrix(&format!("{base}.b_proj"), kda.num_heads, hidden)?;
    // A file that does not say which gate it has is known by its tensors.
    let full = kda.use_full_rank_gate.unwrap_or_else(|| checkpoint.has(&format!("{base}.g_proj.weight")));
    let gate = if full {
        OutputGate::Full(tape.matrix(&format!("{base}.g_proj"), channels, hidden)?)
    } else {
        OutputGate::LowRank([
            tape.matrix(&format!("{base}.g_a_proj"), kda.head_dim, hidden)?,
            tape.matrix(&format!("{base}.g_b_proj"), channels, kda.head_dim)?,
        ])
    };
    // One value per head; K3 pads the tensor to the width of a head.
    let rates = checkpoint.padded_vector(&format!("{base}.A_log"), kda.num_heads)?;
    Ok(Kda {
        qkv,
        taps,
        decay,
        dt_bias: checkpoint.vector(&format!("{base}.dt_bias"), &[channels])?,
        rates: rates.into_iter().map(reference::exp).collect(),
        beta,
        gate,
        output_norm: checkpoint.vector(&format!("{base}.o_norm.weight"), &[kda.head_dim])?,
        output: tape.matrix(&format!("{base}.o_proj"), hidden, channels)?,
    })
}

fn mla(config: &Config, tape: &mut TapeBuilder<'_>, base: &str) -> Result<Mla, Error> {
    let (checkpoint, hidden, mla) = (tape.checkpoint, config.hidden_size, &config.mla);
    let heads = mla.num_heads;
    let key_width = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
    let (query_low_rank, query) = match mla.q_lora_rank {
        Some(rank) => {
            let down = tape.matrix(&format!("{base}.q_a_proj"), rank, hidden)?;
            let norm = checkpoint.vector(&format!("{base}.q_a_layernorm.weight"), &[rank])?;
            let up = tape.matrix(&format!("{base}.q_b_proj"), heads * key_width, rank)?;
            (Some(QueryLowRank { down, norm }), up)
        }
        None => (None, tape.matrix(&format!("{base}.q_proj"), heads * key_width, hidden)?),
    };
    let latent = tape.matrix(&format!("{base}.kv_a_proj_with_mqa"), mla.row(), hidden)?;
    let [key_up, value_up] = tape.key_and_value_up(&format!("{base}.kv_b_proj"), mla)?;
    let gate = match mla.output_gate {
        true => Some(tape.matrix(&format!("{base}.g_proj"), heads * mla.v_head_dim, hidden)?),
        false => None,
    };
    Ok(Mla {
        query_low_rank,
        query,
        latent,
        latent_norm: checkpoint.vector(&format!("{base}.kv_a_layernorm.weight"), &[mla.kv_lora_rank])?,
        key_up,
        value_up,
        gate,
        output: tape.matrix(&format!("{base}.o_proj"), hidden, heads * mla.v_head_dim)?,
    })
}

fn mlp(tape: &mut TapeBuilder<'_>, base: &str, hidden: usize, width: usize) -> Result<Mlp, Error> {
    Ok(Mlp {
        gate: tape.matrix(&format!("{base}.gate_proj"), width, hidden)?,
        up: tape.matrix(&format!("{base}.up_proj"), width, hidden)?,
        down: tape.matrix(&format!("{base}.down_proj"), hidden, width)?,
        width,
    })
}

fn moe(
    config: &Config,
    moe: &MoeConfig,
    tape: &mut TapeBuilder<'_>,
    layer: &str,
    number: usize,
) -> Result<Moe, Error> {
    let (checkpoint, hidden) = (tape.checkpoint, config.hidden_size);
    // The module has two names in the family: Kimi's and DeepSeek's.
    let mut names = ["block_sparse_moe", "mlp"].map(|name| format!("{layer}.{name}")).into_iter();
    let base = names
        .find(|base| checkpoint.has(&format!("{base}.gate.weight")))
        .unwrap_or_else(|| format!("{layer}.block_sparse_moe"));
    let router = tape.matrix(&format!("{base}.gate"), moe.num_experts, hidden)?;
    let down = match moe.latent_size {
        Some(latent) => Some(tape.matrix(&format!("{base}.routed_expert_down_proj"), latent, hidden)?),
        None => None,
    };
    let shared = match moe.num_shared_experts * moe.intermediate_size {
        0 => None,
        width => Some(mlp(tape, &format!("{base}.shared_experts"), hidden, width)?),
    };
    let width = moe.latent_size.unwrap_or(hidden);
    let latent = match (down, moe.latent_size) {
        (Some(down), Some(latent)) => {
            let norm = match moe.latent_norm {
                true => Some(checkpoint.vector(&format!("{base}.routed_expert_norm.weight"), &[latent])?),
                false => None,
            };
            let up = tape.matrix(&format!("{base}.routed_expert_up_proj"), hidden, latent)?;
            Some(Latent { down, norm, up })
        }
        _ => None,
    };
    Ok(Moe {
        router,
        bias: checkpoint.vector(&format!("{base}.gate.e_score_correction_bias"), &[moe.num_experts])?,
        latent,
        shared,
        experts: ExpertBank::new(checkpoint, &base, number, moe, width)?,
    })
}
