//! What a prompt says about a turn of the assistant is what the parser reads.

use kimi_text::chat::{ChatFormat, ChatOptions, ChatPrompt, Continuation, Message, Part};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::support::{parse, tokenizer};

fn text() -> impl Strategy<Value = String> {
    let parts = vec![
        "the ",
        "answer",
        " \n",
        "文字",
        "😀",
        "e\u{301}",
        "\"",
        "\\",
        "\u{1}",
        "{\"a\": 1}",
        "<|open|>think<|sep|>",
        "<|end_of_msg|>",
        "<|im_end|>",
        "</think>",
        "&quot;",
        "ep|>",
    ];
    prop_oneof![
        proptest::collection::vec(proptest::sample::select(parts), 0..8).prop_map(|parts| parts.concat()),
        any::<String>()
    ]
}

/// JSON whose numbers Python writes as they are.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            object(inner).prop_map(Value::Object),
        ]
    })
}

fn object(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    proptest::collection::vec((text(), value), 0..4).prop_map(|entries| entries.into_iter().collect())
}

/// A turn of the assistant, as an API has it. K2 models name a tool in the id of a call.
fn assistant() -> impl Strategy<Value = Message> {
    let call = ("[a-zA-Z_\"& <|>-]{0,12}", object(value()));
    (text(), text(), proptest::collection::vec(call, 0..4)).prop_map(|(reasoning, answer, calls)| {
        let calls: Vec<Value> = calls
            .into_iter()
            .enumerate()
            .map(|(index, (name, arguments))| {
                json!({"id": format!("functions.{name}:{index}"), "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        let message = json!({"role": "assistant", "content": answer, "reasoning_content": reasoning, "tool_calls": calls});
        serde_json::from_value(message).unwrap()
    })
}

/// The turn as the format can say it.
fn sayable(format: ChatFormat, turn: &Message) -> Message {
    let mut turn = turn.clone();
    turn.content.retain(|part| *part != Part::Text(String::new()));
    turn.reasoning = turn.reasoning.filter(|text| match format {
        ChatFormat::K3 => !text.trim().is_empty(),
        ChatFormat::K2_INSTRUCT => false,
        _ => !text.is_empty(),
    });
    if format == ChatFormat::K3 {
        turn.tool_calls.iter_mut().for_each(|call| call.id = None);
    }
    turn
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_turn_is_read_as_it_was_written(
        format in proptest::sample::select(vec![ChatFormat::K3, ChatFormat::K2_6, ChatFormat::K2_INSTRUCT]),
        turns in proptest::collection::vec((text(), assistant()), 1..4),
    ) {
        let messages: Vec<Message> =
            turns.into_iter().flat_map(|(asked, turn)| [Message::user(asked), turn]).collect();
        let mut options = ChatOptions::default();
        options.preserve_thinking = true;
        for (at, turn) in messages.iter().enumerate().skip(1).step_by(2) {
            options.continuation = Continuation::Assistant;
            let before = ChatPrompt::new(format, &messages[..at], &[], &options).unwrap();
            options.continuation = Continuation::None;
            let after = ChatPrompt::new(format, &messages[..=at], &[], &options).unwrap();

            let tokenizer = tokenizer(format);
            let (start, whole) = (before.encode(tokenizer).unwrap(), after.encode(tokenizer).unwrap());
            prop_assert!(whole.starts_with(&start), "a prompt is the beginning of what comes of it");
            let events = parse(format, before.opening().unwrap(), &[], &whole[start.len()..]);
            prop_assert_eq!(Message::from_events(&events), sayable(format, turn));
        }
    }
}
