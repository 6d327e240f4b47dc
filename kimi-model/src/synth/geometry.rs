//! The tensors of a model of any geometry, as a release lays them out.

use std::path::Path;

use kimi_kernels::Decay;
use kimi_paging::Dtype;
use kimi_quant::{Encoding, fp8, int4, mxfp4};
use serde_json::Value;

use super::configs;
use super::random::{CODE_STD, E4M3_STD};
use super::storage::Storage;
use super::tensor::{Fill, PAGE_BYTES, SPARSE_ROWS, Tensor};
use crate::checkpoint::FP8_SCALES;
use crate::config::{AttentionKind, Config, FeedForwardKind, KdaConfig, MoeConfig};
use crate::error::ConfigError;

/// Rows that a BF16 or FP8 matrix of an expert has in a sparse model.
const SPARSE_EXPERT_ROWS: usize = 2;

/// Widths are an eighth of the release's in the small geometry.
const MINI: usize = 8;

/// The shape of a model: its configuration, as a file and understood.
#[derive(Debug, Clone)]
pub struct Geometry {
    config: Config,
    storage: Storage,
    json: Vec<u8>,
}

/// The names of the built-in geometries.
pub const GEOMETRIES: [&str; 5] = ["k3", "k3-mini", "kimi-linear", "moonlight", "k2"];

impl Geometry {
    /// Kimi K3 as released, without its vision tower: 93 layers, 896 experts, 2.78 trillion parameters, 1.56 TB.
    pub fn k3() -> Self {
        Self::built_in(&configs::k3(1, 896))
    }

    /// Kimi K3 with all 93 layers, widths and heads divided by eight, and 112 experts of which a token uses 16: 5.2 GB. Head
    /// sizes and vocabulary are those of the release.
    pub fn k3_mini() -> Self {
        Self::built_in(&configs::k3(MINI, 112))
    }

    /// One of [`GEOMETRIES`]: K3, K3 in small, Kimi-Linear-48B-A3B (98 GB), Moonlight-16B-A3B (32 GB), and the text part of K2.5 with
    /// INT4 experts (594 GB).
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "k3" => Some(Self::k3()),
            "k3-mini" => Some(Self::k3_mini()),
            "kimi-linear" => Some(Self::built_in(&configs::kimi_linear())),
            "moonlight" => Some(Self::built_in(&configs::moonlight())),
            "k2" => Some(Self::built_in(&configs::k2())),
            _ => None,
        }
    }

    fn built_in(json: &Value) -> Self {
        let json = format!("{json:#}\n").into_bytes();
        Self::from_json(&json, Path::new("config.json")).expect("the built-in geometries are sound")
    }

    /// The geometry of a `config.json`, which a model gets as it is. `path` is named in errors.
    ///
    /// # Errors
    /// [`ConfigError`] as from [`Config::parse`], for a `quantization_config` that is not known, and for experts whose widths are no
    /// multiples of 32 where MXFP4 or INT4 would store them.
    pub fn from_json(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let config = Config::parse(json, path)?;
        let fields = serde_json::from_slice(json)
            .map_err(|source| ConfigError::Json { file: path.to_path_buf(), source })?;
        let storage = Storage::new(&config, &fields, path)?;
        let in_groups = matches!(storage.experts, Encoding::Mxfp4 | Encoding::Int4);
        let has_experts =
            in_groups && config.layers.iter().any(|layer| layer.feed_forward == FeedForwardKind::Moe);
        if let Some(moe) = config.moe.filter(|_| has_experts) {
            let widths = [
                ("moe_intermediate_size", moe.intermediate_size),
                ("routed_expert_hidden_size", moe.latent_size.unwrap_or(config.hidden_size)),
            ];
            for (field, width) in widths {
                if !width.is_multiple_of(mxfp4::GROUP_SIZE) {
                    let reason = format!("{width} is no multiple of 32, as {} experts need", storage.experts);
                    let (file, field) = (path.to_path_buf(), field.to_owned());
                    return Err(ConfigError::Invalid { file, field, reason });
                }
            }
        }
        Ok(Self { config, storage, json: json.to_vec() })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The bytes of its `config.json`.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// Files with tensors: one per layer, and one with embedding, output matrix and what else stands beside the layers.
    pub fn shards(&self) -> usize {
        self.config.layers.len() + 1
    }

    /// The name of a file, counted from 0.
    pub fn shard_name(&self, shard: usize) -> String {
        format!("model-{:05}-of-{:06}.safetensors", shard + 1, self.shards())
    }

    /// The tensors of a file, counted from 0, in the order in which they lie in it: by falling element size, so that every
    /// one is aligned, and matrices in the order of their use.
    ///
    /// With `sparse`, big matrices are mostly holes.
    pub fn tensors(&self, shard: usize, sparse: bool) -> Vec<Tensor> {
        let Self { config, storage, .. } = self;
        let prefix = storage.prefix.to_owned();
        let mut list = List { config, storage: *storage, sparse, prefix, tensors: Vec::new() };
        if shard < self.config.layers.len() {
            list.prefix = format!("{}model.layers.{shard}.", storage.prefix);
            list.layer(shard);
        } else {
            list.ends();
        }
        // The sort is stable.
        list.tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bits()));
        list.tensors
    }
}

/// Collects the tensors of a file.
///
/// Matrices have a standard deviation of one by the root of their inputs, so that normed inputs give outputs of about one at
/// any width and depth. In a sparse model every matrix has its first rows, and only outputs of these rows are other than zero:
/// a matrix that reads them finds values in its first columns, and is scaled for that number of inputs.
struct List<'a> {
    config: &'a Config,
    storage: Storage,
    sparse: bool,
    prefix: String,
    tensors: Vec<Tensor>,
}

impl List<'_> {
    /// The tensors beside the layers.
    fn ends(&mut self) {
        let Config { hidden_size: hidden, vocab_size: vocab, .. } = *self.config;
        // Logits with a standard deviation of two, about that of a trained model.
        let head = 2.0 * std_for(hidden);
        if self.config.tie_word_embeddings {
            self.dense("model.embed_tokens.weight", [vocab, hidden], head);
        } else {
            self.dense("model.embed_tokens.weight", [vocab, hidden], 1.0);
            self.dense("lm_head.weight", [vocab, hidden], head);
        }
        self.norm("model.norm", hidden);
        if self.config.attn_res_block_size.is_some() {
            self.residual("model.output_attn_res");
        }
    }

    fn layer(&mut self, layer: usize) {
        let config = self.config;
        let hidden = config.hidden_size;
        match (config.layers[layer].attention, &config.kda) {
            (AttentionKind::Kda, Some(kda)) => self.kda(kda),
            _ => self.mla(),
        }
        match (config.layers[layer].feed_forward, &config.moe) {
            (FeedForwardKind::Moe, Some(moe)) => self.moe(moe),
            _ => self.mlp("mlp", config.intermediate_size),
        }
        self.norm("input_layernorm", hidden);
        self.norm("post_attention_layernorm", hidden);
        if config.attn_res_block_size.is_some() {
            self.residual("self_attention_res");
            self.residual("mlp_res");
        }
    }

    fn kda(&mut self, kda: &KdaConfig) {
        let (hidden, channels, dim) = (self.config.hidden_size, kda.channels(), kda.head_dim);
        for part in ["q", "k", "v"] {
            self.matrix(&format!("self_attn.{part}_proj"), [channels, hidden], hidden);
        }
        let taps = kda.short_conv_kernel_size;
        for part in ["q", "k", "v"] {
            let name = format!("self_attn.{part}_conv1d.weight");
            self.vector(&name, Dtype::F32, &[channels, 1, taps], 0.0, std_for(taps));
        }
        self.matrix("self_attn.f_a_proj", [dim, hidden], hidden);
        self.matrix("self_attn.f_b_proj", [channels, dim], self.outputs_of(hidden, dim));
        self.matrix("self_attn.b_proj", [kda.num_heads, hidden], hidden);
        // Where the file does not say: as the release with that decay.
        let full = kda.use_full_rank_gate.unwrap_or(kda.decay != Decay::Softplus);
        if !full {
            self.matrix("self_attn.g_a_proj", [dim, hidden], hidden);
            self.matrix("self_attn.g_b_proj", [channels, dim], self.outputs_of(hidden, dim));
        } else {
            self.matrix("self_attn.g_proj", [channels, hidden], hidden);
        }
        self.matrix("self_attn.o_proj", [hidden, channels], self.outputs_of(hidden, channels));
        // Decays around 0.8 a token, some near 1 and some near 0.
        self.vector("self_attn.dt_bias", Dtype::F32, &[channels], -3.0, 1.0);
        self.vector("self_attn.o_norm.weight", Dtype::F32, &[dim], 1.0, 0.1);
        // One value per head, padded to the width of a head as released.
        let fill = Fill::Normal { mean: 0.0, std: 0.5, count: kda.num_heads as u64 };
        self.push("self_attn.A_log", Dtype::F32, &[kda.num_heads.max(dim)], fill);
    }

    fn mla(&mut self) {
        let (hidden, mla) = (self.config.hidden_size, &self.config.mla);
        let (heads, values) = (mla.num_heads, mla.num_heads * mla.v_head_dim);
        let latent = mla.kv_lora_rank;
        let key_width = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
        match mla.q_lora_rank {
            Some(query) => {
                self.matrix("self_attn.q_a_proj", [query, hidden], hidden);
                // Behind a norm the sum of squares is that of all columns, however few are other than zero.
                self.matrix("self_attn.q_b_proj", [heads * key_width, query], query);
            }
            None => self.matrix("self_attn.q_proj", [heads * key_width, hidden], hidden),
        }
        self.matrix("self_attn.kv_a_proj_with_mqa", [mla.row(), hidden], hidden);
        let head = mla.qk_nope_head_dim + mla.v_head_dim;
        // Each head has its keys first, then its values.
        let first_rows = [0, mla.qk_nope_head_dim];
        self.matrix_with("self_attn.kv_b_proj", [heads * head, latent], latent, &first_rows);
        if mla.output_gate {
            self.matrix("self_attn.g_proj", [values, hidden], hidden);
        }
        self.matrix("self_attn.o_proj", [hidden, values], self.outputs_of(latent, values));
        if let Some(query) = mla.q_lora_rank {
            self.norm("self_attn.q_a_layernorm", query);
        }
        self.norm("self_attn.kv_a_layernorm", latent);
    }

    fn mlp(&mut self, base: &str, width: usize) {
        let hidden = self.config.hidden_size;
        self.matrix(&format!("{base}.gate_proj"), [width, hidden], hidden);
        self.matrix(&format!("{base}.up_proj"), [width, hidden], hidden);
        self.matrix(&format!("{base}.down_proj"), [hidden, width], self.outputs_of(hidden, width));
    }

    fn moe(&mut self, moe: &MoeConfig) {
        let Storage { module, names, experts, .. } = self.storage;
        let hidden = self.config.hidden_size;
        let gate = format!("{module}.gate.weight");
        self.dense(&gate, [moe.num_experts, hidden], 2.0 * std_for(hidden));
        let bias = format!("{module}.gate.e_score_correction_bias");
        // Enough to decide a choice now and then.
        self.vector(&bias, Dtype::F32, &[moe.num_experts], 0.0, 0.1);
        if let Some(latent) = moe.latent_size {
            self.matrix(&format!("{module}.routed_expert_down_proj"), [latent, hidden], hidden);
        }
        if moe.num_shared_experts > 0 {
            self.mlp(&format!("{module}.shared_experts"), moe.num_shared_experts * moe.intermediate_size);
        }
        let width = moe.latent_size.unwrap_or(hidden);
        if moe.latent_size.is_some() {
            // As in MLA where there is a norm before.
            let inputs = if moe.latent_norm { width } else { self.outputs_of(moe.intermediate_size, width) };
            self.matrix(&format!("{module}.routed_expert_up_proj"), [hidden, width], inputs);
            if moe.latent_norm {
                self.norm(&format!("{module}.routed_expert_norm"), width);
            }
        }
        let inner = moe.intermediate_size;
        // Of a sparse latent only the first values are other than zero.
        let inputs = if moe.latent_size.is_some() { self.outputs_of(hidden, width) } else { width };
        // What a sparse expert has of its gate and up matrix: a page of codes, or two rows.
        let kept_rows = match experts {
            Encoding::Mxfp4 | Encoding::Int4 => (2 * PAGE_BYTES as usize).div_ceil(width),
            _ => SPARSE_EXPERT_ROWS,
        };
        let inner_inputs = if self.sparse { kept_rows.min(inner) } else { inner };
        let [gate, up, down] = names;
        // In the order of their names.
        let mut matrices = [
            (gate, [inner, width], inputs),
            (up, [inner, width], inputs),
            (down, [width, inner], inner_inputs),
        ];
        matrices.sort_by_key(|(name, ..)| *name);
        for expert in 0..moe.num_experts {
            for (name, shape, inputs) in matrices {
                self.expert(&format!("{module}.experts.{expert}.{name}"), shape, inputs);
            }
        }
    }

    /// A norm in front of a mix and the vector that its result is multiplied by.
    fn residual(&mut self, base: &str) {
        let hidden = self.config.hidden_size;
        self.norm(&format!("{base}_norm"), hidden);
        self.dense(&format!("{base}_proj.weight"), [1, hidden], std_for(hidden));
    }

    fn norm(&mut self, base: &str, width: usize) {
        self.vector(&format!("{base}.weight"), Dtype::Bf16, &[width], 1.0, 0.1);
    }

    fn vector(&mut self, name: &str, dtype: Dtype, shape: &[usize], mean: f32, std: f32) {
        let count = shape.iter().map(|&n| n as u64).product();
        self.push(name, dtype, shape, Fill::Normal { mean, std, count });
    }

    /// A BF16 matrix that has all its values in a sparse model too.
    fn dense(&mut self, name: &str, shape: [usize; 2], std: f32) {
        self.vector(name, Dtype::Bf16, &shape, 0.0, std);
    }

    /// The BF16 matrix `base.weight` that reads `inputs` values other than zero.
    fn matrix(&mut self, base: &str, shape: [usize; 2], inputs: usize) {
        self.matrix_with(base, shape, inputs, &[0]);
    }

    /// As [`matrix`](Self::matrix); a sparse model has the rows from each of `first_rows` on.
    fn matrix_with(&mut self, base: &str, [rows, cols]: [usize; 2], inputs: usize, first_rows: &[usize]) {
        let kept = sparse_rows(cols);
        self.rows_of(self.storage.trunk, base, [rows, cols], inputs, first_rows, kept);
    }

    /// A BF16 or FP8 matrix; a sparse model has `kept` rows from each of `first_rows` on.
    fn rows_of(
        &mut self,
        encoding: Encoding,
        base: &str,
        [rows, cols]: [usize; 2],
        inputs: usize,
        first_rows: &[usize],
        kept: usize,
    ) {
        let row = if encoding == Encoding::Fp8 {
            self.push(&format!("{base}.weight"), Dtype::F8E4M3, &[rows, cols], Fill::E4m3);
            cols as u64
        } else {
            self.dense(&format!("{base}.weight"), [rows, cols], std_for(inputs));
            2 * cols as u64
        };
        if self.sparse {
            let range = |&first: &usize| first as u64 * row..(first + kept).min(rows) as u64 * row;
            let matrix = self.tensors.last_mut().expect("it was just appended");
            matrix.keep(first_rows.iter().map(range));
        }
        if encoding == Encoding::Fp8 {
            let blocks = [rows.div_ceil(fp8::BLOCK), cols.div_ceil(fp8::BLOCK)];
            let scale = std_for(inputs) / E4M3_STD;
            self.vector(&format!("{base}.{FP8_SCALES}"), Dtype::F32, &blocks, scale, scale / 8.0);
        }
    }

    /// The matrix `base` of an expert.
    fn expert(&mut self, base: &str, shape: [usize; 2], inputs: usize) {
        match self.storage.experts {
            Encoding::Mxfp4 => self.mxfp4(base, shape, inputs),
            Encoding::Int4 => self.int4(base, shape, inputs),
            encoding => self.rows_of(encoding, base, shape, inputs, &[0], SPARSE_EXPERT_ROWS),
        }
    }

    /// The INT4 matrix `base` that reads `inputs` values other than zero.
    fn int4(&mut self, base: &str, [rows, cols]: [usize; 2], inputs: usize) {
        self.push(&format!("{base}.weight_packed"), Dtype::I32, &[rows, cols / 8], Fill::Integers);
        let scale = std_for(inputs) / CODE_STD;
        let scales = [rows, cols / int4::GROUP_SIZE];
        self.vector(&format!("{base}.weight_scale"), Dtype::Bf16, &scales, scale, scale / 8.0);
        if self.sparse {
            // Holes are the lowest code, so they have a scale of zero: scales are kept where codes are.
            let count = self.tensors.len();
            for (plane, bytes) in self.tensors[count - 2..].iter_mut().zip([PAGE_BYTES, PAGE_BYTES / 8]) {
                plane.keep(std::iter::once(0..bytes.min(plane.bytes())));
            }
        }
        let shape = Fill::Pair([rows as i32, cols as i32]);
        self.push(&format!("{base}.weight_shape"), Dtype::I32, &[2], shape);
    }

    /// The MXFP4 matrix `base` that reads `inputs` values other than zero.
    fn mxfp4(&mut self, base: &str, [rows, cols]: [usize; 2], inputs: usize) {
        // The scale 2^-k with k = ceil(log2(CODE_STD sqrt(inputs))).
        let square = (CODE_STD * CODE_STD) as usize * inputs;
        let k = square.next_power_of_two().ilog2().div_ceil(2);
        let byte = 127 - k as u8;
        self.push(&format!("{base}.weight_packed"), Dtype::U8, &[rows, cols / 2], Fill::Codes);
        let scales = [rows, cols / mxfp4::GROUP_SIZE];
        self.push(&format!("{base}.weight_scale"), Dtype::U8, &scales, Fill::Scales { byte });
        if self.sparse {
            // A page of scales covers the rows of a page of codes.
            let count = self.tensors.len();
            for plane in &mut self.tensors[count - 2..] {
                plane.keep(std::iter::once(0..PAGE_BYTES.min(plane.bytes())));
            }
        }
    }

    fn push(&mut self, name: &str, dtype: Dtype, shape: &[usize], fill: Fill) {
        self.tensors.push(Tensor::new(format!("{}{name}", self.prefix), dtype, shape, fill));
    }

    /// Of `width` outputs of a matrix with `cols` columns, those that are other than zero.
    fn outputs_of(&self, cols: usize, width: usize) -> usize {
        if self.sparse { sparse_rows(cols).min(width) } else { width }
    }
}

/// Rows that a matrix has in a sparse model: [`SPARSE_ROWS`] or a page, whichever is more.
fn sparse_rows(cols: usize) -> usize {
    (PAGE_BYTES as usize).div_ceil(2 * cols).max(SPARSE_ROWS)
}

/// The standard deviation that gives outputs of one from `inputs` inputs of one.
fn std_for(inputs: usize) -> f32 {
    1.0 / (inputs as f32).sqrt()
}
