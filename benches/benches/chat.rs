//! Conversations to ids, and generated ids to events.
//!
//! `cargo bench -p kimi-benches --bench chat` (add `-- --test` for each bench once). With the released vocabulary where it
//! is present, else with that of the demo model. Rendering and encoding count the bytes of the prompt, parsing counts ids.

use std::fs;
use std::hint::black_box;

use criterion::{Criterion, Throughput};
use kimi_text::chat::{
    ChatFormat, ChatOptions, ChatParser, ChatPrompt, Continuation, Message, Opening, ToolCall,
};
use kimi_text::{Specials, Tokenizer};
use serde_json::{Map, Value, json};

/// Turns of the user in the conversation.
const TURNS: usize = 50;

/// The special tokens of each family, by their places after the ranks in the releases.
const K3_NAMES: [(u32, &str); 4] = [(2, "<|end_of_msg|>"), (3, "<|open|>"), (4, "<|close|>"), (5, "<|sep|>")];
const K2_NAMES: [(u32, &str); 12] = [
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

fn vocabulary() -> (&'static str, Vec<u8>) {
    let (name, path) = match kimi_testing::shared_data("tokenizer/tiktoken.model") {
        Some(path) => ("released", path),
        None => ("demo", kimi_testing::demo_model().join("tiktoken.model")),
    };
    (name, fs::read(path).expect("the vocabulary can be read"))
}

fn tokenizer(model: &[u8], names: &[(u32, &str)]) -> Tokenizer {
    let ranks = Tokenizer::from_bytes(model, None).expect("the vocabulary is one").vocabulary().len() as u32;
    let added: Map<String, Value> =
        names.iter().map(|(slot, name)| ((ranks + slot).to_string(), json!({"content": name}))).collect();
    let config = json!({ "added_tokens_decoder": added }).to_string();
    Tokenizer::from_bytes(model, Some(config.as_bytes())).expect("the names are those of slots")
}

fn tools() -> Vec<Value> {
    (0..20)
        .map(|at| {
            json!({"type": "function", "function": {
                "name": format!("tool_{at}"),
                "description": "Reads a file, or a part of it, and returns its lines with their numbers.",
                "parameters": {"type": "object", "required": ["path"], "properties": {
                    "path": {"type": "string", "description": "Where the file lies."},
                    "from": {"type": "integer"}, "lines": {"type": "integer"}, "text": {"type": "string"}
                }}
            }})
        })
        .collect()
}

/// Questions, answers with reasoning, calls and results, about as long as those of a coding assistant.
fn conversation() -> Vec<Message> {
    let text = include_str!("../../kimi-text/README.md");
    let mut messages = vec![Message::system("Answer briefly. Use the tools where they help.")];
    for turn in 0..TURNS {
        let mut asks = Message::assistant("Let me look at it first.");
        asks.reasoning = Some(text.chars().skip(turn * 20).take(400).collect());
        let part: String = text.chars().skip(turn * 10).take(600).collect();
        asks.tool_calls = vec![ToolCall {
            id: Some(format!("functions.tool_3:{turn}")),
            name: "tool_3".into(),
            arguments: json!({"path": "src/lib.rs", "from": turn, "lines": [1, 2.5, true], "text": part})
                .to_string(),
        }];
        messages.extend([
            Message::user(format!("What does line {turn} of this file say?\n{}", &text[..200])),
            asks,
            Message::tool_result(format!("functions.tool_3:{turn}"), text),
            Message::assistant(text),
        ]);
    }
    messages
}

fn main() {
    let (vocabulary, model) = vocabulary();
    let (messages, tools) = (conversation(), tools());
    let mut criterion = Criterion::default().configure_from_args();
    for (format, names) in [(ChatFormat::K3, &K3_NAMES[..]), (ChatFormat::K2_6, &K2_NAMES)] {
        let tokenizer = tokenizer(&model, names);
        let mut options = ChatOptions::default();
        options.preserve_thinking = true;
        let prompt =
            ChatPrompt::new(format, &messages, &tools, &options).expect("the format can say all this");

        let mut group = criterion.benchmark_group(format!("chat/{format}/{vocabulary}"));
        group.throughput(Throughput::Bytes(prompt.text().len() as u64));
        group.bench_function("render", |bencher| {
            bencher.iter(|| ChatPrompt::new(format, black_box(&messages), &tools, &options));
        });
        group.bench_function("encode", |bencher| bencher.iter(|| black_box(&prompt).encode(&tokenizer)));
        // What encoding cannot be faster than: the same bytes as one text.
        group.bench_function("encode-as-one-text", |bencher| {
            bencher.iter(|| tokenizer.encode(black_box(prompt.text()), Specials::AsText));
        });

        // The last turn with a call: everything after the prompt for it.
        let call = messages.len() - 3;
        let before = ChatPrompt::new(format, &messages[..call], &tools, &options)
            .map(|prompt| prompt.encode(&tokenizer).expect("the names are all there").len())
            .expect("the format can say all this");
        options.continuation = Continuation::None;
        let whole = ChatPrompt::new(format, &messages[..=call], &tools, &options).expect("as before");
        let turn = whole.encode(&tokenizer).expect("the names are all there").split_off(before);
        group.throughput(Throughput::Elements(turn.len() as u64));
        for (name, keep) in [("parse", true), ("parse-stream", false)] {
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    let mut parser =
                        ChatParser::new(format, Opening::Reasoning, &tools, &tokenizer).expect("as before");
                    let mut events = Vec::new();
                    let mut told = 0;
                    for &id in black_box(&turn) {
                        parser.push(id, &mut events).expect("the id is one");
                        if !keep {
                            told += events.drain(..).count();
                        }
                    }
                    parser.finish(&mut events);
                    told + events.len()
                });
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
