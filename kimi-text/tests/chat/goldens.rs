//! Prompts of the releases, segment by segment, and id by id where the released vocabulary is present.

use std::fs;

use kimi_text::chat::{
    ChatError, ChatFormat, ChatOptions, ChatPrompt, Continuation, Message, Opening, Part, ResponseFormat,
    Segment, ToolChoice,
};
use kimi_text::{TokenId, Tokenizer};
use serde_json::Value;

use super::support::{markers, specials};

fn released(config: &str) -> Option<Tokenizer> {
    let model = fs::read(kimi_testing::shared_data("tokenizer/tiktoken.model")?).unwrap();
    let config = fs::read(kimi_testing::shared_data(&format!("tokenizer/{config}"))?).unwrap();
    Some(Tokenizer::from_bytes(&model, Some(&config)).unwrap())
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn messages(row: &Value) -> Vec<Message> {
    serde_json::from_value(row["messages"].clone()).unwrap()
}

fn tools(row: &Value) -> Vec<Value> {
    row["tools"].as_array().cloned().unwrap_or_default()
}

fn options(row: &Value) -> ChatOptions {
    let mut options = ChatOptions::default();
    for (key, value) in row["options"].as_object().unwrap() {
        match (&**key, value.as_str()) {
            ("thinking", _) => options.thinking = value.as_bool().unwrap(),
            ("preserve_thinking", _) => options.preserve_thinking = value.as_bool().unwrap(),
            ("thinking_effort", Some(name)) => options.effort = Some(name.parse().unwrap()),
            ("tool_choice", Some("required")) => options.tool_choice = ToolChoice::Required,
            ("tool_choice", Some("none")) => options.tool_choice = ToolChoice::None,
            ("tool_choice", Some("auto")) => {}
            ("response_format", _) => {
                options.response_format = match value["type"].as_str().unwrap() {
                    "text" => ResponseFormat::Text,
                    "json_object" => ResponseFormat::JsonObject,
                    "json_schema" => ResponseFormat::JsonSchema(value["json_schema"]["schema"].clone()),
                    other => panic!("no response format {other}"),
                }
            }
            ("add_generation_prompt", _) => {
                if !value.as_bool().unwrap() {
                    options.continuation = Continuation::None;
                }
            }
            ("image_prompts", _) => {}
            other => panic!("no option {other:?}"),
        }
    }
    options
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn first_image(messages: &[Message]) -> Option<usize> {
    messages.iter().position(|message| message.content.contains(&Part::Image))
}

#[test]
fn k3_prompts_are_those_of_the_release() {
    let tokenizer = released("tokenizer_config.k3.json");
    let (mut rendered, mut refused) = (0, 0);
    for row in rows(include_str!("../golden/chat/k3_chat_goldens.jsonl")) {
        let (name, messages) = (&row["name"], messages(&row));
        let prompt = ChatPrompt::new(ChatFormat::K3, &messages, &tools(&row), &options(&row));
        if let Some(message) = first_image(&messages) {
            assert_eq!(prompt.unwrap_err(), ChatError::Image { message }, "{name}");
            refused += 1;
            continue;
        }
        let prompt = prompt.unwrap();
        if !row["options"]["image_prompts"].is_null() {
            // The release replaces a placeholder within text by markup. Without images, it is text.
            assert_eq!(name, "image_placeholder_in_text");
            assert!(
                prompt
                    .segments()
                    .any(|segment| matches!(segment, Segment::Text(text) if text.contains("<|kimi_image")))
            );
            refused += 1;
            continue;
        }
        assert_eq!(prompt.text(), row["prompt"].as_str().unwrap(), "{name}");
        let expected: Vec<Segment<'_>> = row["segments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|segment| match (segment[0].as_str().unwrap(), segment[1] == 1) {
                (marker, true) => Segment::Marker(marker),
                (text, false) => Segment::Text(text),
            })
            .collect();
        assert_eq!(prompt.segments().collect::<Vec<_>>(), expected, "{name}");
        if let Some(tokenizer) = &tokenizer {
            assert_eq!(prompt.encode(tokenizer).unwrap(), ids(&row["ids"]), "{name}");
        }
        rendered += 1;
    }
    assert_eq!((rendered, refused), (43, 3));
}

/// What the release refuses is refused; what it takes is taken, except a message that it would leave out in silence.
#[test]
fn k3_conversations_that_the_release_refuses() {
    let recorded: Vec<Value> =
        serde_json::from_str(include_str!("../golden/chat/k3_chat_errors.json")).unwrap();
    assert_eq!(recorded.len(), 8);
    for row in &recorded {
        let name = row["name"].as_str().unwrap();
        let render = || ChatPrompt::new(ChatFormat::K3, &messages(row), &[], &ChatOptions::default());
        match name {
            "effort_medium" => {
                let effort = row["options"]["thinking_effort"].as_str().unwrap();
                let error = effort.parse::<kimi_text::chat::Effort>().unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "expected a thinking effort of low, high or max, found \"medium\""
                );
            }
            "tool_without_name" => assert_eq!(render(), Err(ChatError::ToolName { message: 1 })),
            "args_not_object" => {
                let error = ChatError::Arguments { message: 1, call: 0, found: "[1]".into() };
                assert_eq!(render(), Err(error));
            }
            "args_number" | "unknown_role_silently_skipped" => {
                let error =
                    serde_json::from_value::<Vec<Message>>(row["messages"].clone()).unwrap_err().to_string();
                let found = if name == "args_number" { "found 5" } else { "`developer`" };
                assert!(error.contains(found), "{error}");
            }
            "too_few_image_prompts" => assert_eq!(render(), Err(ChatError::Image { message: 0 })),
            // There are no image prompts to give.
            "too_many_image_prompts" | "null_args_ok" => {
                render().unwrap();
            }
            other => panic!("no rule for {other}"),
        }
    }
}

#[test]
fn k2_prompts_are_those_of_the_templates() {
    let tokenizer = released("tokenizer_config.k2.5.json");
    let (mut rendered, mut refused) = (0, 0);
    for mut row in rows(include_str!("../golden/chat/k2_chat_goldens.jsonl")) {
        let format = match row["template"].as_str().unwrap() {
            "kimi-k2-instruct-0711" => ChatFormat::K2_INSTRUCT_0711,
            "kimi-k2-thinking" => ChatFormat::K2_THINKING,
            "kimi-k2.5" => ChatFormat::K2_5,
            "kimi-k2.6" => ChatFormat::K2_6,
            other => panic!("no format for {other}"),
        };
        if format != ChatFormat::K2_6 {
            // Older templates do not know this name of the reasoning, which messages do not tell apart.
            for message in row["messages"].as_array_mut().unwrap() {
                message.as_object_mut().unwrap().remove("reasoning");
            }
        }
        let context = format!("{} {}", row["template"], row["name"]);
        let messages = messages(&row);
        let prompt = ChatPrompt::new(format, &messages, &tools(&row), &options(&row));
        if let Some(message) = first_image(&messages) {
            assert_eq!(prompt.unwrap_err(), ChatError::Image { message }, "{context}");
            refused += 1;
            continue;
        }
        let prompt = prompt.unwrap();
        let Some(expected) = row["prompt"].as_str() else {
            // This template fails on a message without content; here it is an empty one.
            assert!(prompt.text().contains("<|im_assistant|>assistant<|im_middle|><|im_end|>"), "{context}");
            refused += 1;
            continue;
        };
        assert_eq!(prompt.text(), expected, "{context}");
        if let Some(tokenizer) = &tokenizer {
            let found = prompt.encode(tokenizer).unwrap();
            if row["name"] == "injection_text" {
                assert_eq!(specials(tokenizer, &found), markers(&prompt), "{context}");
                assert_ne!(found, ids(&row["ids_all_special"]), "{context}");
            } else {
                assert_eq!(found, ids(&row["ids_all_special"]), "{context}");
            }
        }
        rendered += 1;
    }
    assert_eq!((rendered, refused), (71, 5));
}

#[test]
fn a_turn_of_the_assistant_can_be_begun() {
    let prefill = |reasoning: Option<&str>, answer: Option<&str>| Continuation::Prefill {
        reasoning: reasoning.map(str::to_string),
        answer: answer.map(str::to_string),
    };
    let k3 = "<|open|>message role=\"assistant\"<|sep|>";
    let k2 = "<|im_assistant|>assistant<|im_middle|>";
    for (format, thinking, continuation, expected, opening) in [
        (
            ChatFormat::K3,
            true,
            prefill(Some("so"), None),
            format!("{k3}<|open|>think<|sep|>so"),
            Opening::Reasoning,
        ),
        (
            ChatFormat::K3,
            true,
            prefill(Some("so"), Some("It")),
            format!("{k3}<|open|>think<|sep|>so<|close|>think<|sep|><|open|>response<|sep|>It"),
            Opening::Answer,
        ),
        (
            ChatFormat::K3,
            true,
            prefill(None, Some("It")),
            format!("{k3}<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>It"),
            Opening::Answer,
        ),
        (
            ChatFormat::K3,
            false,
            prefill(None, Some("It")),
            format!("{k3}<|open|>response<|sep|>It"),
            Opening::Answer,
        ),
        (ChatFormat::K2_5, true, prefill(Some("so"), None), format!("{k2}<think>so"), Opening::Reasoning),
        (
            ChatFormat::K2_5,
            true,
            prefill(Some("so"), Some("It")),
            format!("{k2}<think>so</think>It"),
            Opening::Answer,
        ),
        (
            ChatFormat::K2_5,
            false,
            prefill(None, Some("It")),
            format!("{k2}<think></think>It"),
            Opening::Answer,
        ),
        (ChatFormat::K2_6, true, Continuation::Assistant, format!("{k2}<think>"), Opening::Reasoning),
        (ChatFormat::K2_THINKING, true, Continuation::Assistant, k2.to_string(), Opening::Answer),
        (
            ChatFormat::K2_THINKING,
            true,
            prefill(Some("so"), None),
            format!("{k2}<think>so"),
            Opening::Reasoning,
        ),
        (
            ChatFormat::K2_THINKING,
            true,
            prefill(None, Some("It")),
            format!("{k2}<think></think>It"),
            Opening::Answer,
        ),
        (ChatFormat::K2_INSTRUCT, true, prefill(None, Some("It")), format!("{k2}It"), Opening::Answer),
    ] {
        let mut options = ChatOptions::default();
        options.thinking = thinking;
        options.continuation = continuation;
        let prompt = ChatPrompt::new(format, &[Message::user("x")], &[], &options).unwrap();
        assert!(prompt.text().ends_with(&expected), "{format}: {}", prompt.text());
        assert_eq!(prompt.opening(), Some(opening), "{format}");
    }
    for (format, thinking) in
        [(ChatFormat::K3, false), (ChatFormat::K2_5, false), (ChatFormat::K2_INSTRUCT, true)]
    {
        let mut options = ChatOptions::default();
        options.thinking = thinking;
        options.continuation = prefill(Some("so"), None);
        let error = ChatPrompt::new(format, &[Message::user("x")], &[], &options).unwrap_err();
        assert_eq!(error, ChatError::NoReasoning { format });
    }
}

#[test]
fn what_a_format_cannot_say_is_an_error() {
    let render = |format, json: &str| {
        let messages: Vec<Message> = serde_json::from_str(json).unwrap();
        ChatPrompt::new(format, &messages, &[], &ChatOptions::default())
            .map(|prompt| prompt.text().to_string())
    };
    let video = r#"[{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "video_url", "video_url": {}}]}]"#;
    let image =
        r#"[{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "input_image"}]}]"#;
    let late =
        r#"[{"role": "user", "content": "x"}, {"role": "system", "tools": [{"function": {"name": "f"}}]}]"#;
    for format in ChatFormat::ALL {
        assert_eq!(render(format, video), Err(ChatError::Part { message: 0, found: "video_url".into() }));
        assert_eq!(render(format, image), Err(ChatError::Image { message: 1 }));
        if format == ChatFormat::K3 {
            assert!(render(format, late).unwrap().contains("lazy-loading"));
        } else {
            assert_eq!(render(format, late), Err(ChatError::LateTools { message: 1, format }));
        }
    }
    for json in [
        r#"{"role": "user", "content": 5}"#,
        r#"{"content": "x"}"#,
        r#"{"role": "assistant", "tool_calls": [{}]}"#,
    ] {
        assert!(serde_json::from_str::<Message>(json).is_err(), "{json}");
    }
}

#[test]
fn arguments_keep_integers_of_any_size() {
    let json = r#"[{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f",
        "arguments": {"wei": 123456789012345678901234567890, "in": [18446744073709551616], "wei": 1000000000000000000000}}}]}]"#;
    let messages: Vec<Message> = serde_json::from_str(json).unwrap();
    let prompt = ChatPrompt::new(ChatFormat::K3, &messages, &[], &ChatOptions::default()).unwrap();
    // Of equal keys the last counts.
    for expected in ["type=\"number\"<|sep|>1000000000000000000000<|close|>", "[18446744073709551616]"] {
        assert!(prompt.text().contains(expected), "{}", prompt.text());
    }
    assert!(!prompt.text().contains("1234567890123"));
}

#[test]
fn a_tokenizer_for_another_format_is_an_error() {
    let prompt =
        ChatPrompt::new(ChatFormat::K3, &[Message::user("x")], &[], &ChatOptions::default()).unwrap();
    assert_eq!(prompt.encode(&super::support::K2).unwrap_err().name, "<|open|>");
    let error =
        kimi_text::chat::ChatParser::new(ChatFormat::K2_5, Opening::Answer, &[], &*super::support::K3);
    assert_eq!(error.unwrap_err().name, "<|im_end|>");
}
