//! `config.json`: what a checkpoint says about its own architecture.

mod activation;
pub(crate) mod fields;
mod rope;

use std::path::Path;

use kimi_kernels::Decay;
use kimi_quant::fp8;
use serde_json::{Map, Value};

use crate::error::ConfigError;
use fields::{Document, Fields};

pub use activation::Activation;
pub use rope::Rope;

/// The model types that this crate runs.
///
/// They only say what a file is. How the model computes is read from the other fields.
pub const MODEL_TYPES: [&str; 5] = ["kimi_k3", "kimi_linear", "kimi_k2", "kimi_k25", "deepseek_v3"];

/// The configuration of a Kimi text model.
///
/// Features are read from fields, never from the nested model type: K3's text part calls itself `kimi_linear`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The top-level `model_type`.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Entries of the vocabulary, rows of the embedding and of the output matrix.
    pub vocab_size: usize,
    /// Epsilon of every normalisation but the two low-rank ones of MLA.
    pub rms_norm_eps: f32,
    /// Attention and feed-forward of each layer, in order.
    pub layers: Vec<LayerConfig>,
    /// The KDA layers, when there are any.
    pub kda: Option<KdaConfig>,
    /// The MLA layers.
    pub mla: MlaConfig,
    /// Width of the dense feed-forward layers.
    pub intermediate_size: usize,
    /// The mixture-of-experts layers, when there are any.
    pub moe: Option<MoeConfig>,
    /// The gated activation of every feed-forward.
    pub activation: Activation,
    /// Layers per block of Attention Residuals; `None` is a plain residual stream.
    pub attn_res_block_size: Option<usize>,
    /// The longest sequence that the model was made for.
    pub max_position_embeddings: usize,
    /// The output matrix is the embedding.
    pub tie_word_embeddings: bool,
    /// Beginning-of-sequence token.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a generation.
    pub eos_token_ids: Vec<u32>,
    /// Fields that nothing here reads, as they stood in the file.
    pub unknown: Map<String, Value>,
}

/// What one layer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerConfig {
    /// Its attention.
    pub attention: AttentionKind,
    /// Its feed-forward.
    pub feed_forward: FeedForwardKind,
}

/// The two kinds of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the family has these two")]
pub enum AttentionKind {
    /// Kimi Delta Attention: recurrent.
    Kda,
    /// Multi-head latent attention.
    Mla,
}

/// The two kinds of feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the family has these two")]
pub enum FeedForwardKind {
    /// One gated MLP.
    Dense,
    /// Routed and shared experts.
    Moe,
}

/// Kimi Delta Attention.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct KdaConfig {
    /// Heads.
    pub num_heads: usize,
    /// Key and value channels of a head.
    pub head_dim: usize,
    /// Taps of the short convolutions.
    pub short_conv_kernel_size: usize,
    /// The decay gate: bounded when the file has `gate_lower_bound`, softplus when it has not.
    pub decay: Decay<f32>,
    /// The output gate is one full matrix; `None` when the file does not say and the tensors decide.
    pub use_full_rank_gate: Option<bool>,
}

impl KdaConfig {
    /// Channels of all heads together.
    pub fn channels(&self) -> usize {
        self.num_heads * self.head_dim
    }
}

/// Multi-head latent attention.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MlaConfig {
    /// Heads.
    pub num_heads: usize,
    /// Rank of the query compression; `None` projects queries in one step.
    pub q_lora_rank: Option<usize>,
    /// Width of the latent.
    pub kv_lora_rank: usize,
    /// Key channels of a head that come from the latent.
    pub qk_nope_head_dim: usize,
    /// Key channels that all heads share.
    pub qk_rope_head_dim: usize,
    /// Value channels of a head.
    pub v_head_dim: usize,
    /// Heads are gated before the output projection.
    pub output_gate: bool,
    /// The shared part of queries and keys is rotated; `None` has no position encoding.
    pub rope: Option<Rope>,
}

impl MlaConfig {
    /// Numbers kept per position: the latent and the shared key.
    pub fn row(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }
}

/// The mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MoeConfig {
    /// Routed experts in a layer.
    pub num_experts: usize,
    /// Routed experts that a token uses.
    pub num_experts_per_token: usize,
    /// Shared experts, stored as one MLP of their joint width.
    pub num_shared_experts: usize,
    /// Inner width of one expert.
    pub intermediate_size: usize,
    /// Width that routed experts read and write, when it is not the hidden size.
    pub latent_size: Option<usize>,
    /// The sum of the routed experts is normalised before it goes up to the hidden size.
    pub latent_norm: bool,
    /// Weights of the chosen experts are divided by their sum.
    pub renormalize: bool,
    /// Factor on the weights.
    pub routed_scaling_factor: f32,
    /// Groups of neighbouring experts.
    pub num_groups: usize,
    /// Groups of which a token's experts are chosen.
    pub topk_groups: usize,
}

/// Bounds that no released model comes near: they keep sizes from a hostile file out of trouble.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 12;
const MAX_EXPERTS: usize = 1 << 16;
const MAX_VOCAB: usize = 1 << 24;
const MAX_POSITIONS: usize = 1 << 40;

/// The most blocks of Attention Residuals; K3 has 8.
pub(crate) const MAX_BLOCKS: usize = 63;

/// Assumed where a file names no longest sequence: K3's own limit.
const DEFAULT_POSITIONS: usize = 1 << 20;

impl Config {
    /// Reads a `config.json`. `path` is named in errors.
    ///
    /// # Errors
    /// [`ConfigError`] naming the field: no JSON, a required field that is missing, a value of the wrong type or out of
    /// range, a feature that this crate does not compute.
    pub fn parse(json: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let document = Document::parse(json, path)?;
        let top = document.fields();
        let model_type: String = top.required("model_type")?;
        if !MODEL_TYPES.contains(&model_type.as_str()) {
            return Err(top.unsupported(
                "model_type",
                &model_type,
                &format!("known types: {}", MODEL_TYPES.join(", ")),
            ));
        }
        let text = top.nested("text_config")?.unwrap_or_else(|| document.fields());
        block_size_of_scales(&top)?;
        block_size_of_scales(&text)?;
        let positions = match text.optional_size("max_position_embeddings", MAX_POSITIONS)? {
            Some(positions) => positions,
            None => text.optional_size("model_max_length", MAX_POSITIONS)?.unwrap_or(DEFAULT_POSITIONS),
        };
        let tie = top.optional("tie_word_embeddings")?.or(text.optional("tie_word_embeddings")?);
        let (top_bos, text_bos) = (top.optional("bos_token_id")?, text.optional("bos_token_id")?);
        let (mut eos, text_eos) = (top.token_ids("eos_token_id")?, text.token_ids("eos_token_id")?);
        if eos.is_empty() {
            eos = text_eos;
        }
        let config = Self {
            model_type,
            hidden_size: text.size("hidden_size", MAX_WIDTH)?,
            vocab_size: text.size("vocab_size", MAX_VOCAB)?,
            rms_norm_eps: text.positive("rms_norm_eps")?,
            layers: layers(&text)?,
            kda: kda(&text)?,
            mla: mla(&text)?,
            intermediate_size: text.size("intermediate_size", MAX_WIDTH)?,
            moe: moe(&text)?,
            activation: activation::activation(&text)?,
            attn_res_block_size: block_size(&text)?,
            max_position_embeddings: positions,
            tie_word_embeddings: tie.unwrap_or(false),
            bos_token_id: top_bos.or(text_bos),
            eos_token_ids: eos,
            unknown: Map::new(),
        };
        Ok(Self { unknown: document.unread(), ..config })
    }

    /// How many layers have the given kind of attention.
    pub fn attention_layers(&self, kind: AttentionKind) -> usize {
        self.layers.iter().filter(|layer| layer.attention == kind).count()
    }
}

/// Scales of FP8 are those of blocks of 128 x 128; what else is quantized says so in the shapes of its tensors.
fn block_size_of_scales(fields: &Fields<'_>) -> Result<(), ConfigError> {
    let Some(quantization) = fields.nested("quantization_config")? else { return Ok(()) };
    match quantization.optional::<Vec<usize>>("weight_block_size")? {
        None => Ok(()),
        Some(size) if size == [fp8::BLOCK; 2] => Ok(()),
        Some(size) => {
            Err(quantization.unsupported("weight_block_size", &format!("{size:?}"), "known: [128, 128]"))
        }
    }
}

fn block_size(text: &Fields<'_>) -> Result<Option<usize>, ConfigError> {
    let field = "attn_res_block_size";
    let size = text.optional_size(field, MAX_LAYERS)?;
    let layers = text.size("num_hidden_layers", MAX_LAYERS)?;
    match size {
        Some(size) if layers.div_ceil(size) > MAX_BLOCKS => {
            let reason = format!("{layers} layers would make more than {MAX_BLOCKS} blocks");
            Err(text.unsupported(field, &size.to_string(), &reason))
        }
        size => Ok(size),
    }
}

fn kda(text: &Fields<'_>) -> Result<Option<KdaConfig>, ConfigError> {
    let Some(linear) = text.nested("linear_attn_config")? else { return Ok(None) };
    let decay = match linear.optional::<f32>("gate_lower_bound")? {
        Some(lower_bound) if lower_bound < 0.0 && lower_bound.is_finite() => Decay::Bounded { lower_bound },
        Some(bound) => {
            return Err(linear.unsupported("gate_lower_bound", &bound.to_string(), "it must be negative"));
        }
        None => Decay::Softplus,
    };
    let config = KdaConfig {
        num_heads: linear.size("num_heads", MAX_WIDTH)?,
        head_dim: linear.size("head_dim", MAX_WIDTH)?,
        short_conv_kernel_size: linear.size("short_conv_kernel_size", 64)?,
        decay,
        use_full_rank_gate: linear.optional("use_full_rank_gate")?,
    };
    if config.num_heads * config.head_dim > MAX_WIDTH {
        return Err(text.unsupported(
            "linear_attn_config",
            "its width",
            "num_heads x head_dim is out of range",
        ));
    }
    Ok(Some(config))
}

fn mla(text: &Fields<'_>) -> Result<MlaConfig, ConfigError> {
    // Beside recurrent layers, which know positions, attention does without unless the file asks for it.
    let unrotated = text.optional("mla_use_nope")?.unwrap_or(text.holds("linear_attn_config"));
    let shared_width = text.size("qk_rope_head_dim", MAX_WIDTH)?;
    let rope = if unrotated { None } else { Some(rope::rope(text, shared_width)?) };
    let config = MlaConfig {
        num_heads: text.size("num_attention_heads", MAX_WIDTH)?,
        q_lora_rank: text.optional_size("q_lora_rank", MAX_WIDTH)?,
        kv_lora_rank: text.size("kv_lora_rank", MAX_WIDTH)?,
        qk_nope_head_dim: text.size("qk_nope_head_dim", MAX_WIDTH)?,
        qk_rope_head_dim: shared_width,
        v_head_dim: text.size("v_head_dim", MAX_WIDTH)?,
        output_gate: text.optional("mla_use_output_gate")?.unwrap_or(false),
        rope,
    };
    let widest = config.qk_nope_head_dim + config.qk_rope_head_dim.max(config.v_head_dim);
    if config.num_heads.saturating_mul(widest) > 4 * MAX_WIDTH {
        return Err(text.unsupported(
            "num_attention_heads",
            &config.num_heads.to_string(),
            "the heads are too wide",
        ));
    }
    Ok(config)
}

/// The names of one field: Kimi's own, and DeepSeek's.
const NUM_EXPERTS: [&str; 2] = ["num_experts", "n_routed_experts"];

/// The name of a field that the file uses; the first where it has neither.
fn spelling<'a>(text: &Fields<'_>, names: [&'a str; 2]) -> &'a str {
    names.into_iter().find(|name| text.holds(name)).unwrap_or(names[0])
}

fn moe(text: &Fields<'_>) -> Result<Option<MoeConfig>, ConfigError> {
    let Some(num_experts) = text.optional_size(spelling(text, NUM_EXPERTS), MAX_EXPERTS)? else {
        return Ok(None);
    };
    for (field, supported) in
        [("moe_router_activation_func", "sigmoid"), ("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")]
    {
        if let Some(value) = text.optional::<String>(field)?
            && value != supported
        {
            return Err(text.unsupported(field, &value, &format!("known: `{supported}`")));
        }
    }
    let groups = spelling(text, ["num_expert_group", "n_group"]);
    let num_groups = text.optional_size(groups, num_experts)?.unwrap_or(1);
    if !num_experts.is_multiple_of(num_groups) {
        let reason = format!("{num_experts} experts do not make so many groups");
        return Err(text.unsupported(groups, &num_groups.to_string(), &reason));
    }
    let topk_groups = text.optional_size("topk_group", num_groups)?.unwrap_or(num_groups);
    let per_token = spelling(text, ["num_experts_per_token", "num_experts_per_tok"]);
    let shared = spelling(text, ["num_shared_experts", "n_shared_experts"]);
    let config = MoeConfig {
        num_experts,
        num_experts_per_token: text.size(per_token, num_experts / num_groups * topk_groups)?,
        num_shared_experts: text.optional(shared)?.unwrap_or(0),
        intermediate_size: text.size("moe_intermediate_size", MAX_WIDTH)?,
        latent_size: text.optional_size("routed_expert_hidden_size", MAX_WIDTH)?,
        latent_norm: text.optional("latent_moe_use_norm")?.unwrap_or(false),
        renormalize: text.optional(spelling(text, ["moe_renormalize", "norm_topk_prob"]))?.unwrap_or(true),
        routed_scaling_factor: text.optional("routed_scaling_factor")?.unwrap_or(1.0),
        num_groups,
        topk_groups,
    };
    if config.num_shared_experts.saturating_mul(config.intermediate_size) > MAX_WIDTH {
        let found = config.num_shared_experts.to_string();
        return Err(text.unsupported(shared, &found, "the shared experts are too wide"));
    }
    if !config.routed_scaling_factor.is_finite() {
        return Err(text.unsupported(
            "routed_scaling_factor",
            "a value that is not finite",
            "it must be a number",
        ));
    }
    Ok(Some(config))
}

/// The kind of each layer. The two lists of the file count from 1 and must share out all layers.
fn layers(text: &Fields<'_>) -> Result<Vec<LayerConfig>, ConfigError> {
    let count = text.size("num_hidden_layers", MAX_LAYERS)?;
    let first_moe: usize = text.optional("first_k_dense_replace")?.unwrap_or(0);
    let frequency = text.optional_size("moe_layer_freq", MAX_LAYERS)?.unwrap_or(1);
    let has_experts = NUM_EXPERTS.into_iter().any(|name| text.holds(name));
    let mut attention = vec![None; count];
    match text.nested("linear_attn_config")? {
        None => attention.fill(Some(AttentionKind::Mla)),
        Some(linear) => {
            for (field, kind) in
                [("kda_layers", AttentionKind::Kda), ("full_attn_layers", AttentionKind::Mla)]
            {
                let list: Vec<usize> = linear.required(field)?;
                for number in list {
                    let slot = number.checked_sub(1).and_then(|layer| attention.get_mut(layer));
                    match slot {
                        Some(slot @ None) => *slot = Some(kind),
                        Some(Some(_)) => return Err(linear.layer(field, number, "is listed twice")),
                        None => {
                            let reason = format!("is outside 1 to {count} (the lists count from 1)");
                            return Err(linear.layer(field, number, &reason));
                        }
                    }
                }
            }
            if let Some(missing) = attention.iter().position(Option::is_none) {
                return Err(linear.layer(
                    "kda_layers",
                    missing + 1,
                    "is in neither list (the lists count from 1)",
                ));
            }
        }
    }
    let layers = attention.into_iter().enumerate().map(|(i, attention)| LayerConfig {
        attention: attention.expect("every layer was checked"),
        feed_forward: if has_experts && i >= first_moe && i.is_multiple_of(frequency) {
            FeedForwardKind::Moe
        } else {
            FeedForwardKind::Dense
        },
    });
    Ok(layers.collect())
}

#[cfg(test)]
mod tests;
