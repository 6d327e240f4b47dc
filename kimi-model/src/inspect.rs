//! What is inside a checkpoint.

use std::collections::BTreeMap;

use kimi_paging::Dtype;
use serde::Serialize;

use crate::checkpoint::Checkpoint;
use crate::config::{AttentionKind, FeedForwardKind};
use crate::files::is_file_tensor;
use crate::model::Model;

/// Tensors, weights and bytes of one part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct PartSize {
    /// Tensors.
    pub tensors: u64,
    /// Weights that they hold; scales are not counted.
    pub weights: u64,
    /// Bytes stored.
    pub bytes: u64,
}

impl PartSize {
    fn add(&mut self, weights: u64, bytes: u64) {
        self.tensors += 1;
        self.weights += weights;
        self.bytes += bytes;
    }
}

/// A summary of a model and its files.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The model's type.
    pub model_type: String,
    /// Layers in all.
    pub layers: usize,
    /// Layers of Kimi Delta Attention.
    pub kda_layers: usize,
    /// Layers of multi-head latent attention.
    pub mla_layers: usize,
    /// Layers with experts.
    pub moe_layers: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Routed experts of a token.
    pub experts_per_token: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Files with tensors.
    pub files: usize,
    /// Sizes by part: `trunk`, `experts`, `embedding`, `head`, `vision`, `other`, and of a single file `files`.
    pub parts: BTreeMap<&'static str, PartSize>,
    /// Sizes by type as the files spell it.
    pub dtypes: BTreeMap<String, PartSize>,
    /// Sizes by encoding, of a packed model: matrices and, three to an expert, those of the experts.
    pub encodings: BTreeMap<String, PartSize>,
    /// What a packed model was made with; empty for others.
    pub recipe: BTreeMap<String, String>,
    /// A packed model that keeps every bit of its source.
    pub lossless: Option<bool>,
    /// Everything.
    pub total: PartSize,
    /// Bytes that a token needs: the trunk, its experts and the output matrix, with nothing kept in memory.
    pub bytes_per_token: u64,
    /// Tensors that the index file does not list.
    pub unlisted_tensors: usize,
    /// Memory of the tensor index.
    pub index_bytes: usize,
    /// Fields of the configuration that nothing here reads, dots between nested names.
    pub unknown_config_fields: Vec<String>,
}

/// Planes that hold no weights.
const SCALES: [&str; 3] = [".weight_scale", ".weight_scale_inv", ".weight_shape"];

impl Summary {
    /// Summarises a model; every tensor of its files is counted.
    pub fn new(model: &Model) -> Self {
        let (config, index) = (&model.config, model.checkpoint.index());
        let mut parts = BTreeMap::<&'static str, PartSize>::new();
        let mut dtypes = BTreeMap::<String, PartSize>::new();
        let mut encodings = BTreeMap::<String, PartSize>::new();
        let mut total = PartSize::default();
        let manifest = model.checkpoint.manifest();
        for (name, info) in index.iter() {
            let elements: u64 = info.shape.iter().product();
            let packed = manifest.and_then(|manifest| {
                let matrix = manifest.matrices.get(&name);
                let matrix = matrix.map(|info| (&info.encoding, 1, info.rows as u64 * info.cols as u64));
                let bank = manifest.experts.get(&name).map(|info| {
                    let experts = info.count as u64;
                    (&info.encoding, 3 * experts, 3 * experts * info.inner as u64 * info.width as u64)
                });
                matrix.or(bank)
            });
            if let Some((encoding, matrices, weights)) = packed {
                let size = encodings.entry(encoding.clone()).or_default();
                size.tensors += matrices;
                size.weights += weights;
                size.bytes += info.bytes;
            }
            let weights = match info.dtype {
                _ if is_file_tensor(&name) => 0,
                _ if packed.is_some() => packed.map_or(0, |(_, _, weights)| weights),
                Dtype::U8 if name.ends_with(".weight_packed") => 2 * elements,
                Dtype::I32 if name.ends_with(".weight_packed") => 8 * elements,
                _ if SCALES.iter().any(|end| name.ends_with(end)) => 0,
                _ => elements,
            };
            for size in [
                parts.entry(part(&name, model.checkpoint.prefix())).or_default(),
                dtypes.entry(info.dtype.to_string()).or_default(),
                &mut total,
            ] {
                size.add(weights, info.bytes);
            }
        }
        let kind = |kind| config.attention_layers(kind);
        let moe_layers =
            config.layers.iter().filter(|layer| layer.feed_forward == FeedForwardKind::Moe).count();
        let per_token = config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_token);
        Self {
            model_type: config.model_type.clone(),
            layers: config.layers.len(),
            kda_layers: kind(AttentionKind::Kda),
            mla_layers: kind(AttentionKind::Mla),
            moe_layers,
            experts: config.moe.as_ref().map_or(0, |moe| moe.num_experts),
            experts_per_token: per_token,
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
            files: index.sources().len(),
            parts,
            dtypes,
            encodings,
            recipe: manifest.map_or_else(BTreeMap::new, |manifest| {
                let preset = manifest.preset.iter().map(|name| ("preset".to_owned(), name.clone()));
                manifest.recipe.clone().into_iter().chain(preset).collect()
            }),
            lossless: manifest.map(|manifest| manifest.lossless),
            total,
            bytes_per_token: model.layout.tape_bytes()
                + per_token as u64 * model.layout.expert_bytes_of_one_each(),
            unlisted_tensors: index.unindexed(),
            index_bytes: index.heap_bytes(),
            unknown_config_fields: dotted(&config.unknown),
        }
    }
}

/// The paths of all fields of an object.
fn dotted(object: &serde_json::Map<String, serde_json::Value>) -> Vec<String> {
    let paths = object.iter().flat_map(|(key, value)| match value {
        serde_json::Value::Object(nested) if !nested.is_empty() => {
            dotted(nested).into_iter().map(|path| format!("{key}.{path}")).collect()
        }
        _ => vec![key.clone()],
    });
    paths.collect()
}

/// The part that a tensor belongs to, by its name.
fn part(name: &str, prefix: &str) -> &'static str {
    if is_file_tensor(name) {
        return "files";
    }
    if Checkpoint::is_vision(name) {
        return "vision";
    }
    match name.strip_prefix(prefix) {
        Some(name)
            if name.starts_with("model.layers.")
                && (name.contains(".experts.") || name.ends_with(".experts")) =>
        {
            "experts"
        }
        Some(name) if name.starts_with("model.layers.") => "trunk",
        Some("model.embed_tokens.weight") => "embedding",
        Some("lm_head.weight") => "head",
        _ => "other",
    }
}
