//! Turns as models write them when they go wrong, and as they should be.

use kimi_text::TokenId;
use kimi_text::chat::{ChatEvent, ChatFormat, Opening};
use serde_json::{Value, json};

use super::support::{parse_markup, parser, tokenizer};

/// The events in short: `r:` reasoning, `a:` answer, `name(arguments)`, with `!` when the arguments are no object.
fn told(format: ChatFormat, opening: Opening, tools: &[Value], markup: &str) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for event in parse_markup(format, opening, tools, markup) {
        match event {
            ChatEvent::Reasoning(text) => told.push(format!("r:{text}")),
            ChatEvent::Answer(text) => told.push(format!("a:{text}")),
            ChatEvent::ToolCallBegin { id, name, .. } => {
                let id = id.map_or_else(String::new, |id| format!("{id}="));
                told.push(format!("{id}{name}("));
            }
            ChatEvent::ToolCallArguments { text, .. } => told.last_mut().unwrap().push_str(&text),
            ChatEvent::ToolCallEnd { valid, .. } => {
                told.last_mut().unwrap().push_str(if valid { ")" } else { ")!" });
            }
            other => panic!("no such event: {other:?}"),
        }
    }
    told
}

const CALL: &str = "<|open|>call tool=\"f\" index=\"1\"<|sep|>";

#[test]
fn k3_turns() {
    let close = |name: &str| format!("<|close|>{name}<|sep|>");
    let open = |name: &str| format!("<|open|>{name}<|sep|>");
    let argument = |key: &str, kind: &str| format!("<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>");
    let (think, response, tools) = (close("think"), open("response"), open("tools"));
    let end = close("argument") + &close("call") + &close("tools") + &close("message") + "<|end_of_msg|>";
    for (what, markup, expected) in [
        (
            "as it should be",
            format!(
                "so{think}{response}It{}{tools}{CALL}{}Paris{end}after",
                close("response"),
                argument("k", "string")
            ),
            &["r:so", "a:It", r#"f({"k": "Paris"})"#][..],
        ),
        (
            "thinking is not closed before an answer",
            format!("so{response}It<|end_of_msg|>"),
            &["r:so", "a:It"],
        ),
        (
            "thinking is not closed before a call",
            format!("so{tools}{CALL}{}1{end}", argument("k", "number")),
            &["r:so", r#"f({"k": 1})"#],
        ),
        (
            "no tools element",
            format!("so{CALL}{}1{end}", argument("k", "number")),
            &["r:so", r#"f({"k": 1})"#],
        ),
        ("no response element", format!("so{think}\n It is \n<|end_of_msg|>"), &["r:so", "a:It is \n"]),
        (
            "white space between elements",
            format!("so{think}\n\n{response} It{}\n<|end_of_msg|>", close("response")),
            &["r:so", "a: It"],
        ),
        (
            "an element within its like",
            format!("so{}on{think}{response}a{response}b<|end_of_msg|>", open("think")),
            &["r:soon", "a:ab"],
        ),
        (
            "thinking again",
            format!("so{think}{response}It{}more{think}{response}is", open("think")),
            &["r:so", "a:It", "r:more", "a:is"],
        ),
        ("closed what is not open", format!("so{}{}on", close("response"), close("call")), &["r:soon"]),
        (
            "markers as words",
            format!("the <|open|> and the <|close|>, or <|sep|>{think}"),
            &["r:the  and the , or "],
        ),
        (
            "a tag that does not exist",
            format!("a<|open|>b c=\"d\"<|sep|>e{}", close("b")),
            &["r:ab c=\"d\"eb"],
        ),
        ("a tag that is cut off", format!("so{think}<|open|>respon"), &["r:so"]),
        ("other special tokens", "a[EOS]b<|media_pad|>c<|reserved_token_2100|>d".to_string(), &["r:abcd"]),
        (
            "somebody else's turn",
            format!("so{think}{response}It<|open|>message role=\"user\"<|sep|>and"),
            &["r:so", "a:It"],
        ),
        (
            "its own turn again",
            format!("so<|open|>message role=\"assistant\"<|sep|>{response}It"),
            &["r:so", "a:It"],
        ),
        ("no arguments", format!("{CALL}{}", close("call")), &["f({})"]),
        (
            "a name to unescape",
            format!("<|open|>call tool=\"a&quot;b&amp;&lt;\"<|sep|>{}", close("call")),
            &["a\"b&&lt;({})"],
        ),
        ("a call without a name", format!("<|open|>call index=\"1\"<|sep|>{}", close("call")), &["({})"]),
        (
            "arguments that are not closed",
            format!(
                "{CALL}{}a{}b{CALL}{}c<|end_of_msg|>",
                argument("k", "string"),
                argument("l", "string"),
                argument("m", "string")
            ),
            &[r#"f({"k": "a", "l": "b"})"#, r#"f({"m": "c"})"#],
        ),
        (
            "an object instead of arguments",
            format!("{CALL}\n{{\"k\": 1}}{}", close("call")),
            &[r#"f({"k": 1})"#],
        ),
        (
            "an object in its element",
            format!("{CALL}<|open|>json type=\"object\"<|sep|>{{\"k\": [}}{}", close("call")),
            &["f({\"k\": [})!"],
        ),
        ("cut off in a string", format!("{CALL}{}Par", argument("k", "string")), &["f({\"k\": \"Par)!"]),
        ("cut off in a number", format!("{CALL}{}12", argument("k", "number")), &["f({\"k\": 12)!"]),
        (
            "cut off between arguments",
            format!("{CALL}{}1{}", argument("k", "number"), close("argument")),
            &["f({\"k\": 1)!"],
        ),
        (
            "a number that is none",
            format!("{CALL}{}1 apple{end}", argument("k", "number")),
            &[r#"f({"k": "1 apple"})"#],
        ),
        (
            "markers in an argument",
            format!("{CALL}{}a <|open|> b{end}", argument("k", "string")),
            &[r#"f({"k": "a  b"})"#],
        ),
        ("an argument of no call", format!("{}x{}", argument("k", "string"), close("argument")), &["r:x"]),
        ("nothing", String::new(), &[]),
    ] {
        assert_eq!(told(ChatFormat::K3, Opening::Reasoning, &[], &markup), expected, "{what}");
    }
}

#[test]
fn k2_turns() {
    let section = "<|tool_calls_section_begin|>";
    let call = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>";
    let end = "<|tool_call_end|><|tool_calls_section_end|><|im_end|>";
    let args = r#"{"k": [1, "x"]}"#;
    let f = &*format!("functions.f:0=f({args})");
    for (what, markup, expected) in [
        (
            "as it should be",
            format!("so</think>It {section}{call}{args}{end}after"),
            &["r:so", "a:It ", f][..],
        ),
        ("thinking is not closed before a call", format!("so{section}{call}{args}{end}"), &["r:so", f]),
        ("no section", format!("so{call}{args}<|tool_call_end|>"), &["r:so", f]),
        ("no end of the call", format!("so</think>{section}{call}{args}<|im_end|>"), &["r:so", f]),
        ("no end before the next", format!("{section}{call}{args}{call}{args}{end}"), &[f, f]),
        (
            "no marker before the arguments",
            format!("{section}<|tool_call_begin|>functions.f:0{args}{end}"),
            &[f],
        ),
        (
            "white space around",
            format!(
                "</think>{section}\n<|tool_call_begin|> functions.f:0 <|tool_call_argument_begin|> {args}<|tool_call_end|>\n{end}"
            ),
            &[f],
        ),
        ("no arguments", format!("{section}{call}{end}"), &["functions.f:0=f({})"]),
        ("only an id", format!("{section}<|tool_call_begin|>functions.f:0{end}"), &["functions.f:0=f({})"]),
        (
            "no id",
            format!("{section}<|tool_call_begin|><|tool_call_argument_begin|>{args}{end}"),
            &[&*format!("({args})")],
        ),
        (
            "another form of id",
            format!("{section}<|tool_call_begin|>g<|tool_call_argument_begin|>{{}}{end}"),
            &["g=g({})"],
        ),
        (
            "a name with a colon",
            format!("{section}<|tool_call_begin|>functions.a:b:12<|tool_call_argument_begin|>{{}}{end}"),
            &["functions.a:b:12=a:b({})"],
        ),
        (
            "malformed arguments",
            format!("{section}{call}{{\"city\": \"北京\"{end}"),
            &["functions.f:0=f({\"city\": \"北京\")!"],
        ),
        ("cut off in arguments", format!("{section}{call}{{\"city\""), &["functions.f:0=f({\"city\")!"]),
        ("cut off in an id", format!("so</think>{section}<|tool_call_begin|>functi"), &["r:so"]),
        (
            "text after the calls",
            format!("{section}{call}{args}<|tool_call_end|><|tool_calls_section_end|>done<|im_end|>"),
            &[f, "a:done"],
        ),
        ("text among the calls", format!("{section}hm {call}{args}{end}"), &["a:hm ", f]),
        ("thinking closed twice", "so</think>It</think> is<|im_end|>".to_string(), &["r:so", "a:It is"]),
        ("thinking again", "so</think>It<think>on</think>is".to_string(), &["r:so", "a:It", "r:on", "a:is"]),
        ("the other end", "so</think>It[EOS]after".to_string(), &["r:so", "a:It"]),
        (
            "somebody else's turn",
            "so</think>It<|im_user|>user<|im_middle|>and".to_string(),
            &["r:so", "a:It"],
        ),
        ("nothing", String::new(), &[]),
    ] {
        assert_eq!(told(ChatFormat::K2_5, Opening::Reasoning, &[], &markup), expected, "{what}");
    }
    // This model writes the marker of its reasoning itself.
    assert_eq!(told(ChatFormat::K2_THINKING, Opening::Answer, &[], "<think>so</think>It"), ["r:so", "a:It"]);
    // A tool that is named like an id.
    let tools = [json!({"function": {"name": "functions.f:0"}})];
    let markup = format!("{section}{call}{{}}{end}");
    assert_eq!(told(ChatFormat::K2_5, Opening::Answer, &tools, &markup), ["functions.f:0=functions.f:0({})"]);
}

#[test]
fn arguments_have_the_types_that_the_tool_declares() {
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "on": {"type": "boolean"}, "o": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}
    }}}})];
    for (key, kind, text, expected) in [
        ("text", "number", "007", r#""007""#),
        ("text", "object", "{\"a\": 1}", r#""{\"a\": 1}""#),
        ("count", "string", "5", "5"),
        ("count", "number", " 5 ", "5"),
        ("count", "string", "five", r#""five""#),
        ("on", "string", "true", "true"),
        ("o", "string", "{\"a\": {\"b\": [1]}}", "{\"a\": {\"b\": [1]}}"),
        ("o", "object", "{\"a\": ", r#""{\"a\": ""#),
        ("maybe", "null", "null", "null"),
        ("maybe", "string", "null", r#""null""#),
        ("new", "number", "1e2", "1e2"),
        ("new", "string", "5", r#""5""#),
        ("new", "array", "[1, 2]", "[1, 2]"),
    ] {
        let markup = format!(
            "{CALL}<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{text}<|close|>argument<|sep|><|close|>call<|sep|>"
        );
        let expected = format!("f({{\"{key}\": {expected}}})");
        assert_eq!(told(ChatFormat::K3, Opening::Answer, &tools, &markup), [expected]);
    }
    let markup =
        format!("{CALL}<|open|>argument key=\"count\"<|sep|>5<|close|>argument<|sep|><|close|>call<|sep|>");
    assert_eq!(
        told(ChatFormat::K3, Opening::Answer, &tools, &markup),
        ["f({\"count\": 5})"],
        "no type is said"
    );
}

#[test]
fn names_of_markers_in_text_are_text() {
    let mut parser = parser(ChatFormat::K3, Opening::Answer, &[]);
    let mut events = Vec::new();
    let quoted = "say <|close|>response<|sep|><|end_of_msg|> or ep|>";
    for id in tokenizer(ChatFormat::K3).encode(quoted, kimi_text::Specials::AsText) {
        parser.push(id, &mut events).unwrap();
    }
    parser.push_text("<|open|>", &mut events);
    assert_eq!(events, [ChatEvent::Answer(format!("{quoted}<|open|>"))]);
    assert!(!parser.is_done() && !parser.is_reasoning());
}

#[test]
fn an_unknown_id_is_an_error_and_changes_nothing() {
    let mut parser = parser(ChatFormat::K3, Opening::Reasoning, &[]);
    let mut events = Vec::new();
    assert_eq!(parser.push(TokenId(2304), &mut events).unwrap_err().found, TokenId(2304));
    assert!(events.is_empty() && !parser.is_done() && parser.is_reasoning());
}
