//! Everything that can go wrong between a folder and its next token.

use std::path::PathBuf;

use kimi_kernels::{Isa, ThreadsError};

use crate::plan::Plan;

/// A `config.json` or `generation_config.json` that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is there and cannot be read.
    #[error("{}: cannot be read", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not JSON.
    #[error("{}: not valid JSON", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// Where parsing stopped and why.
        source: serde_json::Error,
    },
    /// The file holds JSON, but no object.
    #[error("{}: expected a JSON object", file.display())]
    NotAnObject {
        /// The file.
        file: PathBuf,
    },
    /// A field without which the model is not defined.
    #[error("{}: required field `{field}` is missing", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The field, dots between nested names.
        field: String,
    },
    /// A field with a value that cannot be used.
    #[error("{}: field `{field}`: {reason}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The field, dots between nested names.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Options or logits that nothing can be sampled with.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// An option out of its range.
    #[error("{option} is {value}, it must be {allowed}")]
    Range {
        /// The option.
        option: &'static str,
        /// Its value.
        value: f32,
        /// What would be right.
        allowed: &'static str,
    },
    /// A bias that cannot be added.
    #[error("logit_bias of token id {id}: {reason}")]
    Bias {
        /// The token.
        id: u32,
        /// What is wrong.
        reason: String,
    },
    /// More alternatives than are reported.
    #[error("logprobs is {count}, it must be {max} or less")]
    Logprobs {
        /// Alternatives asked for.
        count: usize,
        /// Alternatives allowed.
        max: usize,
    },
    /// A logit that is not a number or infinite.
    #[error("the logit of token id {id} is {value}")]
    Logit {
        /// The lowest token that has one.
        id: u32,
        /// The logit.
        value: f32,
    },
    /// Every token is forbidden.
    #[error("no token can be chosen: every logit is minus infinity")]
    NothingLeft,
}

/// Anything that stops a model from opening or a pass from finishing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no model.
    #[error("{}: {found}; a model is a folder with config.json and safetensors files, or one file of `kimi-cli pack --single-file`", path.display())]
    NoModel {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The configuration cannot be read.
    #[error("{}: cannot be read; a model folder needs a config.json", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration cannot be run.
    #[error(transparent)]
    Format(#[from] ConfigError),
    /// The files cannot be read, or memory is short.
    #[error(transparent)]
    Paging(#[from] kimi_paging::Error),
    /// A tensor that the configuration calls for is nowhere in the checkpoint.
    #[error("{}: tensor `{tensor}` is missing", dir.display())]
    MissingTensor {
        /// The folder.
        dir: PathBuf,
        /// The full name.
        tensor: String,
    },
    /// A tensor that cannot be used.
    #[error("{}: tensor `{tensor}`: {reason}", dir.display())]
    Tensor {
        /// The folder.
        dir: PathBuf,
        /// The full name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The manifest of a packed model that cannot be used.
    #[error("{}: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A model that cannot be packed, or not there.
    #[error("{}: {reason}", dir.display())]
    Pack {
        /// The folder.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file of moments that cannot be used.
    #[error("{}: {reason}", path.display())]
    Calibration {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A damaged tile of a packed model.
    #[error("{}: tensor `{tensor}`, tile {tile}: {reason}; `kimi-cli verify` checks the whole model", file.display())]
    Tile {
        /// The file, or the folder.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The number of the tile, from 0; of experts that of the expert.
        tile: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The limit is below what the model needs.
    #[error("the model needs {:.1} MB, {:.1} MB are allowed:\n{plan}", *needed as f64 / 1e6, plan.limit_bytes as f64 / 1e6)]
    DoesNotFit {
        /// Bytes needed at least.
        needed: u64,
        /// What they are for.
        plan: Box<Plan>,
    },
    /// The processor lacks an instruction set that was asked for.
    #[error("this processor has no {isa}")]
    UnsupportedIsa {
        /// The instruction set.
        isa: Isa,
    },
    /// The compute threads could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadsError),
    /// A pass of no tokens or of too many.
    #[error("a pass takes 1 to {max} tokens, not {columns}")]
    PassWidth {
        /// Tokens given.
        columns: usize,
        /// Tokens allowed.
        max: usize,
    },
    /// A token id that the model does not know.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    Token {
        /// The id.
        id: u32,
        /// Entries of the vocabulary.
        vocab_size: usize,
    },
    /// The session cannot hold more tokens.
    #[error("the context is full: {position} of {capacity} tokens are taken and {tokens} more do not fit")]
    ContextFull {
        /// Tokens that the session can hold.
        capacity: usize,
        /// Tokens that it holds.
        position: usize,
        /// Tokens that were to be added.
        tokens: usize,
    },
    /// A number of tokens that a pass cannot keep.
    #[error("a pass of {columns} tokens cannot keep {count} of them")]
    Commit {
        /// Tokens of the pass.
        columns: usize,
        /// Tokens to keep.
        count: usize,
    },
    /// A layer computed a number that is not finite.
    #[error("layer {layer} computed a number that is not finite at position {position}")]
    NotFinite {
        /// The layer, from 0.
        layer: usize,
        /// The position of the token.
        position: usize,
    },
    /// The output matrix gave a logit that is not finite.
    #[error("the output layer computed a logit that is not finite")]
    NotFiniteLogits,
    /// A matrix does not fit its bytes: a fault of this crate or of a file that changed while it was read.
    #[error(transparent)]
    Layout(#[from] kimi_quant::LayoutError),
    /// Operands that do not fit each other: a fault of this crate.
    #[error(transparent)]
    Shape(#[from] kimi_kernels::ShapeError),
    /// Whoever takes the logits failed.
    #[error("logits could not be handed over")]
    Sink(#[source] std::io::Error),
    /// Two models that cannot be compared.
    #[error("the models differ: tokens, layers and width are {shape:?} and {expected:?}")]
    Vocabularies {
        /// Tokens, layers and width of the one.
        shape: [usize; 3],
        /// The same of the other.
        expected: [usize; 3],
    },
    /// There is nothing to go on from.
    #[error("the prompt is empty; give a text or ids")]
    EmptyPrompt,
    /// Stop texts that cannot be used.
    #[error("stop texts cannot be used: {reason}")]
    StopText {
        /// Why.
        reason: &'static str,
    },
    /// A tokenizer that cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] kimi_text::LoadError),
    /// A generated id that the tokenizer does not know.
    #[error(transparent)]
    UnknownToken(#[from] kimi_text::UnknownToken),
    /// A transcript that is not that of a session.
    #[error("the session has read {position} tokens, its transcript has {tokens}")]
    Transcript {
        /// Tokens of the transcript.
        tokens: usize,
        /// Tokens that the session has read.
        position: usize,
    },
    /// A saved session that cannot be used.
    #[error(transparent)]
    State(#[from] crate::state::StateError),
    /// Somebody asked for the end.
    #[error("cancelled")]
    Cancelled,
    /// Options or logits that nothing can be sampled with.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
}
