//! Tokenizers for both families of formats, and what several tests do with a parser.

use std::sync::LazyLock;

use kimi_text::chat::{ChatEvent, ChatFormat, ChatParser, ChatPrompt, Opening, Segment};
use kimi_text::{Specials, TokenId, Tokenizer};
use serde_json::{Map, Value, json};

/// The vocabulary of the demo model with its own names: those of K3.
pub(crate) static K3: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_dir(kimi_testing::demo_model()).expect("the demo model has a tokenizer")
});

/// The vocabulary of the demo model with the names that K2.5 has, in their slots.
pub(crate) static K2: LazyLock<Tokenizer> = LazyLock::new(|| {
    let names = [
        (0, "[BOS]"),
        (1, "[EOS]"),
        (2, "<|im_end|>"),
        (3, "<|im_user|>"),
        (4, "<|im_assistant|>"),
        (10, "<|im_system|>"),
        (11, "<|tool_calls_section_begin|>"),
        (12, "<|tool_calls_section_end|>"),
        (13, "<|tool_call_begin|>"),
        (14, "<|tool_call_argument_begin|>"),
        (15, "<|tool_call_end|>"),
        (17, "<|im_middle|>"),
        (22, "<think>"),
        (23, "</think>"),
    ];
    let added: Map<String, Value> = names
        .into_iter()
        .map(|(slot, name)| ((2048 + slot).to_string(), json!({"content": name, "special": true})))
        .collect();
    let config = json!({ "added_tokens_decoder": added }).to_string();
    let model = std::fs::read(kimi_testing::demo_model().join("tiktoken.model")).unwrap();
    Tokenizer::from_bytes(&model, Some(config.as_bytes())).unwrap()
});

pub(crate) fn tokenizer(format: ChatFormat) -> &'static Tokenizer {
    if format == ChatFormat::K3 { &K3 } else { &K2 }
}

pub(crate) fn parser(
    format: ChatFormat,
    opening: Opening,
    tools: &[Value],
) -> ChatParser<&'static Tokenizer> {
    ChatParser::new(format, opening, tools, tokenizer(format)).unwrap()
}

/// The events of a turn that generation ended, from all its ids at once.
pub(crate) fn parse(
    format: ChatFormat,
    opening: Opening,
    tools: &[Value],
    ids: &[TokenId],
) -> Vec<ChatEvent> {
    let mut parser = parser(format, opening, tools);
    let mut events = Vec::new();
    for &id in ids {
        parser.push(id, &mut events).unwrap();
    }
    parser.finish(&mut events);
    events
}

/// The events of a turn that is written with the names of its markers.
pub(crate) fn parse_markup(
    format: ChatFormat,
    opening: Opening,
    tools: &[Value],
    markup: &str,
) -> Vec<ChatEvent> {
    parse(format, opening, tools, &tokenizer(format).encode(markup, Specials::Parse))
}

/// The events with neighbouring texts joined.
pub(crate) fn joined(events: impl IntoIterator<Item = ChatEvent>) -> Vec<ChatEvent> {
    let mut joined: Vec<ChatEvent> = Vec::new();
    for event in events {
        match (joined.last_mut(), &event) {
            (Some(ChatEvent::Reasoning(last)), ChatEvent::Reasoning(text))
            | (Some(ChatEvent::Answer(last)), ChatEvent::Answer(text)) => last.push_str(text),
            (
                Some(ChatEvent::ToolCallArguments { index: call, text: last }),
                ChatEvent::ToolCallArguments { index, text },
            ) if call == index => last.push_str(text),
            _ => joined.push(event),
        }
    }
    joined
}

/// The special tokens of a prompt, in order.
pub(crate) fn markers(prompt: &ChatPrompt) -> Vec<&str> {
    prompt
        .segments()
        .filter_map(|segment| match segment {
            Segment::Marker(name) => Some(name),
            Segment::Text(_) => None,
        })
        .collect()
}

/// The names of the special tokens among `ids`.
pub(crate) fn specials<'t>(tokenizer: &'t Tokenizer, ids: &[TokenId]) -> Vec<&'t str> {
    ids.iter().filter_map(|&id| tokenizer.special_name(id)).collect()
}
