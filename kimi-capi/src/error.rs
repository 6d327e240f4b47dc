//! Everything that a call can fail with.

use std::path::PathBuf;

use kimi_model::Error as ModelError;
use kimi_paging::Error as PagingError;

use crate::status::Status;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{what} is a null pointer")]
    Null { what: &'static str },
    #[error("{what}: {reason}")]
    Argument { what: &'static str, reason: String },
    #[error("{found}, a handle of a {expected} is needed")]
    Handle { expected: &'static str, found: &'static str },
    #[error("the {what} is in use by this very thread: it was called from inside a callback")]
    Busy { what: &'static str },
    #[error("{needed} {unit} are needed, there is room for {room}")]
    BufferTooSmall { needed: usize, room: usize, unit: &'static str },
    #[error("{bytes} bytes of KV cache are less than the {block_bytes} of its smallest block")]
    KvCache { bytes: u64, block_bytes: u64 },
    #[error("{}: has no tiktoken.model, so it takes ids only", path.display())]
    NoTokenizer { path: PathBuf },
    #[error("there are no logits: feed tokens first")]
    NoLogits,
    #[error("no more handles can be given out")]
    NoHandles,
    #[error("an earlier call failed inside the {what} with a fault of this library: free it")]
    Poisoned { what: &'static str },
    #[error("a fault of this library: {0}")]
    Panic(String),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    UnknownToken(#[from] kimi_text::UnknownToken),
}

impl Error {
    pub(crate) fn argument(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Argument { what, reason: reason.into() }
    }

    /// What a caller can tell errors apart by.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Null { .. } | Self::Argument { .. } | Self::NoLogits => Status::InvalidArgument,
            Self::UnknownToken(_) => Status::InvalidArgument,
            Self::Handle { .. } => Status::InvalidHandle,
            Self::Busy { .. } => Status::Busy,
            Self::BufferTooSmall { .. } => Status::BufferTooSmall,
            Self::KvCache { .. } => Status::DoesNotFit,
            Self::NoTokenizer { .. } => Status::NoTokenizer,
            Self::NoHandles => Status::Failed,
            Self::Poisoned { .. } | Self::Panic(_) => Status::Internal,
            Self::Model(error) => model_status(error),
        }
    }

    /// The message with all its causes.
    pub(crate) fn message(&self) -> String {
        let mut message = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            message.push_str(": ");
            message.push_str(&error.to_string());
            cause = error.source();
        }
        message
    }
}

fn model_status(error: &ModelError) -> Status {
    match error {
        ModelError::DoesNotFit { .. } | ModelError::Paging(PagingError::OverBudget { .. }) => {
            Status::DoesNotFit
        }
        ModelError::Config { .. }
        | ModelError::Format(_)
        | ModelError::Manifest { .. }
        | ModelError::Tokenizer(_)
        | ModelError::MissingTensor { .. }
        | ModelError::Tensor { .. }
        | ModelError::Tile { .. }
        | ModelError::Paging(
            PagingError::Shard { .. }
            | PagingError::Index { .. }
            | PagingError::Tape { .. }
            | PagingError::ShortRead { .. },
        ) => Status::Corrupt,
        ModelError::NoModel { .. }
        | ModelError::EmptyPrompt
        | ModelError::StopText { .. }
        | ModelError::Sampler(_)
        | ModelError::Token { .. }
        | ModelError::UnsupportedIsa { .. } => Status::InvalidArgument,
        ModelError::ContextFull { .. } => Status::ContextFull,
        ModelError::Cancelled => Status::Cancelled,
        _ => Status::Failed,
    }
}
