//! What a model says, as it says it.

/// A step of an assistant's turn.
///
/// Texts are never empty. Neighbouring texts of one kind belong together; how they are parted says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatEvent {
    /// A part of the reasoning.
    Reasoning(String),
    /// A part of the answer.
    Answer(String),
    /// A call of a tool begins.
    ToolCallBegin {
        /// Its place among the calls of the turn, from 0.
        index: usize,
        /// Its id, where the model gives one.
        id: Option<String>,
        /// The tool.
        name: String,
    },
    /// A part of the arguments of a call, which is a part of a JSON object.
    ToolCallArguments {
        /// The place of the call.
        index: usize,
        /// The part.
        text: String,
    },
    /// A call ends.
    ToolCallEnd {
        /// The place of the call.
        index: usize,
        /// Whether the parts of its arguments, joined, are a JSON object. They are not when generation stopped within
        /// the call, and they need not be where a model writes JSON itself.
        valid: bool,
    },
}

/// Appends a text to the last event if it continues that one.
pub(super) fn push_text(events: &mut Vec<ChatEvent>, kind: fn(String) -> ChatEvent, text: &str) {
    if text.is_empty() {
        return;
    }
    let new = kind(String::new());
    match (events.last_mut(), new) {
        (Some(ChatEvent::Reasoning(last)), ChatEvent::Reasoning(_))
        | (Some(ChatEvent::Answer(last)), ChatEvent::Answer(_)) => last.push_str(text),
        _ => events.push(kind(text.to_string())),
    }
}

/// Appends a part of arguments to the last event if it continues that one.
pub(super) fn push_arguments(events: &mut Vec<ChatEvent>, call: usize, part: &str) {
    if part.is_empty() {
        return;
    }
    match events.last_mut() {
        Some(ChatEvent::ToolCallArguments { index, text }) if *index == call => text.push_str(part),
        _ => events.push(ChatEvent::ToolCallArguments { index: call, text: part.to_string() }),
    }
}
