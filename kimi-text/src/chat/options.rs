//! How a conversation is to be rendered.

use std::str::FromStr;

use serde_json::Value;

use super::UnknownEffort;

/// How a conversation is rendered, and where the model goes on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ChatOptions {
    /// Whether the model thinks before it answers. Off, K3, K2.5 and K2.6 also leave out the reasoning of earlier
    /// turns; K2 Instruct never thinks and K2 Thinking always does. On by default.
    pub thinking: bool,
    /// How much K3 is told to think, when it thinks. Without one it is told nothing; see
    /// [`ChatFormat::default_effort`](super::ChatFormat::default_effort). Other formats do not say it.
    pub effort: Option<Effort>,
    /// What K3 is told about calling tools. Other formats do not say it.
    pub tool_choice: ToolChoice,
    /// What K3 is told about the form of its answer. Other formats do not say it.
    pub response_format: ResponseFormat,
    /// Whether K2.6 sees the reasoning of all its earlier turns, not only of those since its last answer. K3 always
    /// does, other formats never. Off by default.
    pub preserve_thinking: bool,
    /// Where the model goes on.
    pub continuation: Continuation,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            thinking: true,
            effort: None,
            tool_choice: ToolChoice::Auto,
            response_format: ResponseFormat::Text,
            preserve_thinking: false,
            continuation: Continuation::Assistant,
        }
    }
}

/// How much a model is told to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effort {
    /// A little.
    Low,
    /// Much. The released text also speaks of a medium effort, but the release refuses it.
    High,
    /// As much as it takes: what the released tokenizer asks for when nothing is said.
    Max,
}

impl Effort {
    /// The word in the prompt.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
            Self::Max => "max",
        }
    }
}

impl FromStr for Effort {
    type Err = UnknownEffort;

    fn from_str(name: &str) -> Result<Self, UnknownEffort> {
        [Self::Low, Self::High, Self::Max]
            .into_iter()
            .find(|effort| effort.name() == name)
            .ok_or_else(|| UnknownEffort { found: name.to_string() })
    }
}

/// What a model is told about calling tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ToolChoice {
    /// Nothing: it calls them as it sees fit.
    #[default]
    Auto,
    /// It must not.
    None,
    /// It must.
    Required,
}

/// What a model is told about the form of its answer. Nothing here enforces it.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Nothing.
    #[default]
    Text,
    /// JSON.
    JsonObject,
    /// JSON after this schema.
    JsonSchema(Value),
}

/// Where the model goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Continuation {
    /// Nowhere: the prompt ends with the last message.
    None,
    /// In a new turn of the assistant.
    Assistant,
    /// In a turn of the assistant that has begun. It goes on with the answer where there is one, else with the
    /// reasoning.
    Prefill {
        /// The beginning of the reasoning, all of it when there is an answer. Refused where there is no thinking.
        reasoning: Option<String>,
        /// The beginning of the answer.
        answer: Option<String>,
    },
}
