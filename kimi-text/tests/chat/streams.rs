//! Events do not depend on how a turn arrives, and hold whatever does.

use kimi_text::chat::{ChatEvent, ChatFormat, Message, Opening};
use kimi_text::{Specials, TokenId};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::{joined, parse, parser, tokenizer};

/// Special tokens and texts that a turn is made of, in no order that makes sense.
fn parts(format: ChatFormat) -> impl Strategy<Value = Vec<String>> {
    let (markers, texts): (Vec<&str>, Vec<&str>) = if format == ChatFormat::K3 {
        (
            vec![
                "<|open|>",
                "<|open|>",
                "<|close|>",
                "<|sep|>",
                "<|sep|>",
                "[EOS]",
                "<|end_of_msg|>",
                "<|reserved_token_2100|>",
            ],
            vec![
                "think",
                "response",
                "tools",
                "call tool=\"f\" index=\"1\"",
                "argument key=\"s\" type=\"string\"",
                "argument key=\"n\" type=\"number\"",
                "argument key=\"o\"",
                "json type=\"object\"",
                "message role=\"assistant\"",
                "message role=\"user\"",
                "message",
                "call",
                "argument",
                "json",
                "thin",
                " key=\"",
                "5",
                "{\"a\": [1",
                "]}",
                "\n",
                " said \"so\"",
                "文😀",
                "true",
            ],
        )
    } else {
        (
            vec![
                "<think>",
                "</think>",
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
                "<|tool_call_begin|>",
                "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
                "<|im_end|>",
                "<|im_middle|>",
                "[BOS]",
            ],
            vec!["functions.f:0", "f", "{", "{\"a\": 1}", "}", " \n", "so", "文😀", ":1", "\"x\""],
        )
    };
    let marker = proptest::sample::select(markers).prop_map(str::to_string);
    let text = proptest::sample::select(texts).prop_map(str::to_string);
    proptest::collection::vec(prop_oneof![marker, text], 0..30)
}

fn turn() -> impl Strategy<Value = (ChatFormat, Opening, Vec<String>)> {
    (proptest::sample::select(vec![ChatFormat::K3, ChatFormat::K2_5]), any::<bool>()).prop_flat_map(
        |(format, thinks)| {
            let opening = if thinks { Opening::Reasoning } else { Opening::Answer };
            (Just(format), Just(opening), parts(format))
        },
    )
}

fn tools() -> [Value; 1] {
    [
        json!({"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "o": {"type": ["object", "null"]}}}}}),
    ]
}

/// The events when text comes as text, cut into parts of so many characters, and only special tokens as ids.
fn as_text(format: ChatFormat, opening: Opening, parts: &[String], chars: usize) -> Vec<ChatEvent> {
    let mut parser = parser(format, opening, &tools());
    let (mut events, mut new) = (Vec::new(), Vec::new());
    for part in parts {
        match tokenizer(format).special_id(part) {
            Some(id) => parser.push(id, &mut new).unwrap(),
            None => {
                let mut rest = &part[..];
                while !rest.is_empty() {
                    let end = rest.char_indices().nth(chars).map_or(rest.len(), |(at, _)| at);
                    parser.push_text(&rest[..end], &mut new);
                    rest = &rest[end..];
                }
            }
        }
        events.append(&mut new);
    }
    parser.finish(&mut events);
    assert!(parser.is_done());
    joined(events)
}

fn ids(format: ChatFormat, parts: &[String]) -> Vec<TokenId> {
    let mut ids = Vec::new();
    for part in parts {
        match tokenizer(format).special_id(part) {
            Some(id) => ids.push(id),
            None => tokenizer(format).encode_into(part, Specials::AsText, &mut ids),
        }
    }
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn parts_do_not_matter((format, opening, parts) in turn()) {
        let whole = parse(format, opening, &tools(), &ids(format, &parts));
        prop_assert_eq!(&joined(whole.clone()), &whole, "one list of events is joined already");

        let mut parser = parser(format, opening, &tools());
        let (mut events, mut new) = (Vec::new(), Vec::new());
        for id in ids(format, &parts) {
            parser.push(id, &mut new).unwrap();
            events.append(&mut new);
        }
        parser.finish(&mut events);
        prop_assert_eq!(&joined(events), &whole);
        for chars in [1, 2, 1000] {
            prop_assert_eq!(&as_text(format, opening, &parts, chars), &whole);
        }
    }

    #[test]
    fn events_are_in_order_and_no_marker_gets_out((format, opening, parts) in turn()) {
        let events = parse(format, opening, &tools(), &ids(format, &parts));
        let mut open = None;
        let mut calls = 0;
        for event in &events {
            match event {
                ChatEvent::Reasoning(text) | ChatEvent::Answer(text) => {
                    prop_assert!(open.is_none());
                    prop_assert!(!text.is_empty() && !text.contains("<|") && !text.contains("think>"), "{}", text);
                }
                ChatEvent::ToolCallBegin { index, .. } => {
                    prop_assert_eq!((open, *index), (None, calls));
                    open = Some(*index);
                    calls += 1;
                }
                ChatEvent::ToolCallArguments { index, text } => {
                    prop_assert_eq!(open, Some(*index));
                    prop_assert!(!text.is_empty() && !text.contains("<|"));
                }
                ChatEvent::ToolCallEnd { index, valid } => {
                    prop_assert_eq!(open.take(), Some(*index));
                    let arguments = &Message::from_events(&events).tool_calls[*index].arguments;
                    let object = serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object());
                    prop_assert_eq!(object, *valid, "{}", arguments);
                }
                other => panic!("no such event: {other:?}"),
            }
        }
        prop_assert!(open.is_none(), "every call ends");
    }

    #[test]
    fn bytes_that_are_no_text_do_not_stop_it(
        format in proptest::sample::select(vec![ChatFormat::K3, ChatFormat::K2_5]),
        ids in proptest::collection::vec(prop_oneof![0u32..256, 2048u32..2304], 0..60),
    ) {
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        parse(format, Opening::Answer, &[], &ids);
    }
}

#[test]
fn arguments_arrive_in_parts() {
    let markup = "<|open|>tools<|sep|><|open|>call tool=\"write\" index=\"1\"<|sep|>\
        <|open|>argument key=\"text\" type=\"string\"<|sep|>one \"two\"\nthree<|close|>argument<|sep|>";
    let mut parser = parser(ChatFormat::K3, Opening::Answer, &[]);
    let mut parts = Vec::new();
    for id in tokenizer(ChatFormat::K3).encode(markup, Specials::Parse) {
        let mut new = Vec::new();
        parser.push(id, &mut new).unwrap();
        parts.extend(new.into_iter().filter_map(|event| match event {
            ChatEvent::ToolCallArguments { text, .. } => Some(text),
            _ => None,
        }));
    }
    assert_eq!(parts.concat(), r#"{"text": "one \"two\"\nthree""#);
    assert!(parts.len() > 5, "{parts:?}");
}

#[test]
fn a_character_in_two_tokens_comes_out_whole() {
    let mut parser = parser(ChatFormat::K2_5, Opening::Answer, &[]);
    let mut events = Vec::new();
    let bytes = "文".as_bytes().iter().map(|&byte| {
        let bytes = [byte];
        (0..256)
            .map(TokenId)
            .find(|&id| tokenizer(ChatFormat::K2_5).token_bytes(id).unwrap() == bytes)
            .unwrap()
    });
    for id in bytes.clone() {
        assert!(events.is_empty());
        parser.push(id, &mut events).unwrap();
    }
    assert_eq!(events, [ChatEvent::Answer("文".into())]);
    parser.push(bytes.clone().next().unwrap(), &mut events).unwrap();
    parser.finish(&mut events);
    assert_eq!(events, [ChatEvent::Answer("文\u{fffd}".into())], "what is held back comes at the end");
}
