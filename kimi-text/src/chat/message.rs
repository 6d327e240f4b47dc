//! Messages, as chat APIs have them.

use serde::Deserialize;
use serde::de::Error;
use serde_json::Value;
use serde_json::value::RawValue;

use super::ChatEvent;
use crate::json::{Spacing, restyle};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "the formats have no other roles")]
pub enum Role {
    /// Whoever instructs the assistant.
    System,
    /// Whoever asks.
    User,
    /// The model.
    Assistant,
    /// A tool that the assistant called.
    Tool,
}

/// A part of what a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Text. The K3 format encodes each part by itself, so two parts can have other ids than their text joined.
    Text(String),
    /// An image. No format renders it here; it is kept so that its message can be named.
    Image,
    /// Something else, by its type.
    Other(String),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// What results refer to. K2 models write it (`functions.get_weather:0`); K3 models have none, and whoever runs
    /// the tools gives one.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments: a JSON object, as text. A model may have written something that is none; K3 takes that as
    /// it is, unless it is JSON of another type.
    pub arguments: String,
}

/// A message of a conversation.
///
/// It deserializes from the messages of an OpenAI-like API: `content` is a string, a list of parts or null;
/// `reasoning` is read for `reasoning_content`, `tool` for the `name` of a tool's result. Fields that are not
/// named here are ignored, a role that is not one of [`Role`] is an error.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Wire")]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The name of the speaker; for a result, that of the tool.
    pub name: Option<String>,
    /// What is said.
    pub content: Vec<Part>,
    /// What an assistant thought before it spoke.
    pub reasoning: Option<String>,
    /// Calls that an assistant makes.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a result answers.
    pub tool_call_id: Option<String>,
    /// Tools that become available with this system message, which then has no content (K3 only).
    pub tools: Vec<Value>,
}

impl Message {
    fn new(role: Role, content: Vec<Part>) -> Self {
        Self {
            role,
            name: None,
            content,
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tools: Vec::new(),
        }
    }

    /// An instruction to the assistant.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(Role::System, vec![Part::Text(text.into())])
    }

    /// What somebody asks.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(Role::User, vec![Part::Text(text.into())])
    }

    /// What the assistant said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new(Role::Assistant, vec![Part::Text(text.into())])
    }

    /// What a tool returned for the call of this id.
    pub fn tool_result(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        let content = vec![Part::Text(text.into())];
        Self { tool_call_id: Some(call_id.into()), ..Self::new(Role::Tool, content) }
    }

    /// The assistant's turn that these events tell: what has been said, to go on with the conversation.
    ///
    /// Reasoning, answer and calls are each put together in the order in which they came.
    pub fn from_events<'a>(events: impl IntoIterator<Item = &'a ChatEvent>) -> Self {
        let mut message = Self::new(Role::Assistant, Vec::new());
        let mut answer = String::new();
        for event in events {
            match event {
                ChatEvent::Reasoning(text) => message.reasoning.get_or_insert_default().push_str(text),
                ChatEvent::Answer(text) => answer.push_str(text),
                ChatEvent::ToolCallBegin { id, name, .. } => {
                    let (id, name) = (id.clone(), name.clone());
                    message.tool_calls.push(ToolCall { id, name, arguments: String::new() });
                }
                ChatEvent::ToolCallArguments { index, text } => {
                    if let Some(call) = message.tool_calls.get_mut(*index) {
                        call.arguments.push_str(text);
                    }
                }
                ChatEvent::ToolCallEnd { .. } => {}
            }
        }
        if !answer.is_empty() {
            message.content.push(Part::Text(answer));
        }
        message
    }
}

/// A message as it comes over the wire.
#[derive(Deserialize)]
struct Wire {
    role: Role,
    name: Option<String>,
    tool: Option<String>,
    content: Option<WireContent>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<WireCall>>,
    tool_call_id: Option<String>,
    tools: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected content that is a string or a list of parts")]
enum WireContent {
    Text(String),
    Parts(Vec<WirePart>),
}

#[derive(Deserialize)]
struct WirePart {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
    image: Option<Value>,
    image_url: Option<Value>,
}

#[derive(Deserialize)]
struct WireCall {
    id: Option<String>,
    function: WireFunction,
}

#[derive(Deserialize)]
struct WireFunction {
    name: String,
    arguments: Option<Box<RawValue>>,
}

impl TryFrom<Wire> for Message {
    type Error = serde_json::Error;

    fn try_from(wire: Wire) -> Result<Self, serde_json::Error> {
        let content = match wire.content {
            None => Vec::new(),
            Some(WireContent::Text(text)) => vec![Part::Text(text)],
            Some(WireContent::Parts(parts)) => parts.into_iter().map(Part::from).collect(),
        };
        let calls = wire.tool_calls.unwrap_or_default().into_iter().map(ToolCall::try_from);
        Ok(Self {
            role: wire.role,
            name: wire.tool.or(wire.name),
            content,
            reasoning: wire.reasoning_content.filter(|text| !text.is_empty()).or(wire.reasoning),
            tool_calls: calls.collect::<Result<_, _>>()?,
            tool_call_id: wire.tool_call_id,
            tools: wire.tools.unwrap_or_default(),
        })
    }
}

impl From<WirePart> for Part {
    fn from(part: WirePart) -> Self {
        let kind = part.kind.as_deref().unwrap_or(if part.text.is_some() { "text" } else { "" });
        match part.text {
            _ if part.image.is_some() || part.image_url.is_some() || kind.contains("image") => Self::Image,
            Some(text) if kind == "text" => Self::Text(text),
            _ => Self::Other(kind.to_string()),
        }
    }
}

impl TryFrom<WireCall> for ToolCall {
    type Error = serde_json::Error;

    fn try_from(call: WireCall) -> Result<Self, serde_json::Error> {
        let arguments = call.function.arguments.as_deref().map_or("null", RawValue::get);
        let arguments = match arguments.bytes().next() {
            Some(b'"') => serde_json::from_str(arguments)?,
            Some(b'{') => restyle(arguments, Spacing::Spaced),
            Some(b'n') => String::new(),
            _ => {
                let found = crate::vocabulary::excerpt(arguments.as_bytes());
                return Err(serde_json::Error::custom(format!(
                    "expected tool call arguments that are a JSON object or a string which holds one, found {found}"
                )));
            }
        };
        Ok(Self { id: call.id, name: call.function.name, arguments })
    }
}
