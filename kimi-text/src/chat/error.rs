//! What can be wrong with a conversation, and with a tokenizer for it.

use super::ChatFormat;

/// A conversation that a format cannot say. Messages and calls count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A message holds an image, and images are not supported.
    #[error("message {message}: images are not supported")]
    Image {
        /// The message.
        message: usize,
    },
    /// A message holds something that is neither text nor an image.
    #[error("message {message}: expected parts of type \"text\", found {found:?}")]
    Part {
        /// The message.
        message: usize,
        /// The type of the part.
        found: String,
    },
    /// A tool's result that says neither which tool it is from nor which call it answers.
    #[error("message {message}: expected the name of a tool, or a call before it that this result answers")]
    ToolName {
        /// The message.
        message: usize,
    },
    /// The arguments of a call are JSON, but no object.
    #[error("message {message}, call {call}: expected arguments in a JSON object, found {found:?}")]
    Arguments {
        /// The message.
        message: usize,
        /// The call in it.
        call: usize,
        /// How the arguments begin.
        found: String,
    },
    /// A message declares tools, and the format can only declare them before the conversation.
    #[error("message {message}: format {format} cannot declare tools within a conversation")]
    LateTools {
        /// The message.
        message: usize,
        /// The format.
        format: ChatFormat,
    },
    /// The turn to continue has reasoning, and the format has none or it is switched off.
    #[error("format {format} has no reasoning to continue, or it is switched off")]
    NoReasoning {
        /// The format.
        format: ChatFormat,
    },
}

/// A tokenizer without a special token that the format needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a tokenizer with the special token {name}")]
pub struct MissingMarker {
    /// The name of the token.
    pub name: &'static str,
}

/// An effort that the models do not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a thinking effort of low, high or max, found {found:?}")]
pub struct UnknownEffort {
    /// What was asked for.
    pub found: String,
}
