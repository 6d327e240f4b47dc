//! The formats of Kimi K2 and its kin: turns between im markers.
//!
//! A turn is `<|im_user|>`, `<|im_assistant|>` or `<|im_system|>`, a name, `<|im_middle|>`, a body and `<|im_end|>`. The
//! releases render one string and encode it at once, so text between two markers is encoded together here as well, but
//! as text: their ids are the same unless a message holds the name of a marker.

mod parser;

use serde_json::Value;

pub(super) use parser::K2Parser;

use super::k3::texts;
use super::{ChatError, ChatFormat, ChatOptions, ChatPrompt, Continuation, Message, Opening, Role, ToolCall};
use crate::json::{Spacing, restyle};

pub(super) const IM_END: &str = "<|im_end|>";
pub(super) const IM_USER: &str = "<|im_user|>";
pub(super) const IM_ASSISTANT: &str = "<|im_assistant|>";
pub(super) const IM_SYSTEM: &str = "<|im_system|>";
pub(super) const IM_MIDDLE: &str = "<|im_middle|>";
pub(super) const SECTION_BEGIN: &str = "<|tool_calls_section_begin|>";
pub(super) const SECTION_END: &str = "<|tool_calls_section_end|>";
pub(super) const CALL_BEGIN: &str = "<|tool_call_begin|>";
pub(super) const ARGUMENT_BEGIN: &str = "<|tool_call_argument_begin|>";
pub(super) const CALL_END: &str = "<|tool_call_end|>";
pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";

/// In what the formats of the family differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    /// What the system says when the conversation does not begin with it.
    pub(super) default_system: Option<&'static str>,
    /// How the model thinks.
    pub(super) thinking: Thinking,
    /// Whether speakers' names, calls and the ids of results appear.
    pub(super) full: bool,
    /// How the declaration of tools is spaced.
    pub(super) tools: Spacing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// Not at all.
    Never,
    /// Always; it writes the marker itself.
    Always,
    /// When asked to; the prompt has the marker.
    Optional,
    /// So, and the reasoning of earlier turns can be kept.
    Preservable,
}

/// Renders a conversation.
pub(super) fn render(
    format: ChatFormat,
    style: Style,
    messages: &[Message],
    tools: &[Value],
    options: &ChatOptions,
) -> Result<ChatPrompt, ChatError> {
    let mut renderer = Renderer { prompt: ChatPrompt::empty(), style };
    if !tools.is_empty() {
        renderer.begin(IM_SYSTEM, "tool_declare");
        renderer.prompt.join_text(&restyle(&Value::from(tools).to_string(), style.tools));
        renderer.prompt.push_marker(IM_END);
    }
    if let Some(text) = style.default_system
        && messages.first().is_none_or(|message| message.role != Role::System)
    {
        renderer.begin(IM_SYSTEM, "system");
        renderer.prompt.join_text(text);
        renderer.prompt.push_marker(IM_END);
    }
    // Reasoning counts until the model has answered; turns that call a tool are no answer yet.
    let answer = messages
        .iter()
        .rposition(|message| message.role == Role::Assistant && message.tool_calls.is_empty())
        .filter(|_| !(style.thinking == Thinking::Preservable && options.preserve_thinking));
    let thinking = options.thinking || style.thinking == Thinking::Always;
    for (at, message) in messages.iter().enumerate() {
        if !message.tools.is_empty() {
            return Err(ChatError::LateTools { message: at, format });
        }
        let show_reasoning = thinking && answer.is_none_or(|answer| at > answer);
        renderer.message(at, message, show_reasoning)?;
    }
    renderer.continuation(format, options)?;
    Ok(renderer.prompt)
}

struct Renderer {
    prompt: ChatPrompt,
    style: Style,
}

impl Renderer {
    fn begin(&mut self, role: &'static str, name: &str) {
        self.prompt.push_marker(role);
        self.prompt.join_text(name);
        self.prompt.push_marker(IM_MIDDLE);
    }

    fn message(&mut self, at: usize, message: &Message, show_reasoning: bool) -> Result<(), ChatError> {
        let (marker, role) = match message.role {
            Role::User => (IM_USER, "user"),
            Role::Assistant => (IM_ASSISTANT, "assistant"),
            Role::System => (IM_SYSTEM, "system"),
            Role::Tool => (IM_SYSTEM, "tool"),
        };
        let name = message.name.as_deref().filter(|name| self.style.full && !name.is_empty());
        self.begin(marker, name.unwrap_or(role));
        if message.role == Role::Assistant && self.style.thinking != Thinking::Never {
            let reasoning = message.reasoning.as_deref().filter(|_| show_reasoning);
            self.prompt.push_marker(THINK);
            self.prompt.join_text(reasoning.unwrap_or(""));
            self.prompt.push_marker(THINK_END);
        }
        if message.role == Role::Tool && self.style.full {
            let id = message.tool_call_id.as_deref().unwrap_or("");
            self.prompt.join_text(&format!("## Return of {id}\n"));
        }
        for text in texts(at, message) {
            self.prompt.join_text(text?);
        }
        if message.role == Role::Assistant && !message.tool_calls.is_empty() && self.style.full {
            self.calls(&message.tool_calls);
        }
        self.prompt.push_marker(IM_END);
        Ok(())
    }

    fn calls(&mut self, calls: &[ToolCall]) {
        self.prompt.push_marker(SECTION_BEGIN);
        for call in calls {
            self.prompt.push_marker(CALL_BEGIN);
            self.prompt.join_text(call.id.as_deref().unwrap_or(""));
            self.prompt.push_marker(ARGUMENT_BEGIN);
            self.prompt.join_text(&call.arguments);
            self.prompt.push_marker(CALL_END);
        }
        self.prompt.push_marker(SECTION_END);
    }

    fn continuation(&mut self, format: ChatFormat, options: &ChatOptions) -> Result<(), ChatError> {
        let (reasoning, answer) = match &options.continuation {
            Continuation::None => return Ok(()),
            Continuation::Assistant => (None, None),
            Continuation::Prefill { reasoning, answer } => (reasoning.as_deref(), answer.as_deref()),
        };
        let thinks = match self.style.thinking {
            Thinking::Never => false,
            Thinking::Always => true,
            Thinking::Optional | Thinking::Preservable => options.thinking,
        };
        if reasoning.is_some() && !thinks {
            return Err(ChatError::NoReasoning { format });
        }
        self.begin(IM_ASSISTANT, "assistant");
        let mut opening = Opening::Answer;
        // K2 Thinking writes the first marker itself, unless its turn has begun already.
        let has_think = match self.style.thinking {
            Thinking::Never => false,
            Thinking::Always => reasoning.is_some() || answer.is_some(),
            Thinking::Optional | Thinking::Preservable => true,
        };
        if has_think {
            self.prompt.push_marker(THINK);
            self.prompt.join_text(reasoning.unwrap_or(""));
            if answer.is_some() || !thinks {
                self.prompt.push_marker(THINK_END);
            } else {
                opening = Opening::Reasoning;
            }
        }
        self.prompt.join_text(answer.unwrap_or(""));
        self.prompt.open(opening);
        Ok(())
    }
}
