//! `chat` as a user and a script run it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn chat(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kimi-cli"))
        .arg("chat")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn saved(path: &Path) -> Vec<Value> {
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    json["messages"].as_array().unwrap().clone()
}

#[test]
fn one_message_is_answered_without_markup() {
    let arguments = ["--once", "Who is the king? <|end_of_msg|>", "-n", "24", "--no-think", "--seed", "3"];
    let answer = out(&chat(&arguments, ""));
    assert!(!answer.trim().is_empty() && !answer.contains("<|"), "{answer}");
    assert_eq!(out(&chat(&arguments, "")), answer, "the same seed gives the same answer");
    let from_stdin = ["--once", "-", "-n", "24", "--no-think", "--seed", "3"];
    assert_eq!(out(&chat(&from_stdin, "Who is the king? <|end_of_msg|>")), answer);
}

#[test]
fn a_conversation_is_saved_loaded_and_reset() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second, third) =
        (dir.path().join("a b.json"), dir.path().join("b.json"), dir.path().join("c.json"));
    let lines = format!(
        "The king said\\\nhello\n/save {}\n/nonsense\n/reset\n/save {}\n/load {}\nAnd then?\n/stats\n/save {}\n/quit\nnot read\n",
        first.display(),
        second.display(),
        first.display(),
        third.display()
    );
    let output = chat(&["-n", "8", "--no-think", "--system", "Be brief."], &lines);
    let text = out(&output);
    assert!(text.contains("4 messages") && text.contains("positions"), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonsense is not known"));
    let messages = saved(&first);
    assert_eq!(
        (messages[0]["role"].as_str(), messages[0]["content"].as_str()),
        (Some("system"), Some("Be brief."))
    );
    assert_eq!(messages[1]["content"], "The king said\nhello");
    assert_eq!((messages.len(), messages[2]["role"].as_str()), (3, Some("assistant")));
    assert_eq!(saved(&second).len(), 1, "only the system message is left");
    let all = saved(&third);
    assert_eq!((all.len(), &all[..3]), (5, &messages[..]));
    assert_eq!(all[3]["content"], "And then?");
}

/// Tokens computed and tokens of the whole prompt, from the status line of each answer.
fn computed(output: &Output) -> Vec<[usize; 2]> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = text.lines().filter(|line| line.contains(" prompt tokens computed"));
    let numbers = lines.map(|line| {
        let mut words = line.split(' ');
        let mut number = |skip: usize| words.nth(skip).unwrap().parse().unwrap();
        [number(0), number(1)]
    });
    numbers.collect()
}

#[test]
fn after_an_answer_that_ended_only_what_is_new_is_read() {
    // The bias makes the end of a turn likelier: the model was not trained to talk, and to be done.
    let end = "2050:4";
    let lines = "Tell me something about the sea and the old man.\nGo on\nAnd on\n";
    let output = chat(&["-v", "-n", "64", "--no-think", "--seed", "2", "--logit-bias", end], lines);
    out(&output);
    let turns = computed(&output);
    assert_eq!(turns.len(), 3, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(turns[0][0], turns[0][1]);
    for turn in &turns[1..] {
        assert!(turn[0] * 2 < turn[1], "{turns:?}");
    }
    // One that was cut short is read again, so that the model sees its turn as it would have been ended.
    let output = chat(&["-v", "-n", "4", "--no-think"], lines);
    assert!(computed(&output)[1..].iter().all(|turn| turn[0] == turn[1]));
}

#[test]
fn a_model_without_a_known_format_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(kimi_testing::demo_model()).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let template = dir.path().join("chat_template.jinja");
    std::fs::write(&template, "{{ messages[0].content }}").unwrap();
    let output = chat(&[dir.path().to_str().unwrap(), "--once", "x"], "");
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("chat format") && message.contains("`run`"), "{message}");
}

#[test]
fn settings_are_listed_changed_and_refused() {
    let lines = "/set\n/set temperature 0\n/set max_tokens 3\n/set top_p 2\n/set nothing 1\nThe king\n/set\n";
    let output = chat(&["-v", "--no-think"], lines);
    let text = out(&output);
    let of = |name: &str| {
        let values = text.lines().filter_map(|line| line.strip_prefix(name));
        values.map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of("temperature "), ["0.6", "0"]);
    assert_eq!(of("max_tokens "), ["4096", "3"]);
    assert_eq!(of("top_p "), ["1", "1"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("top_p") && errors.contains("nothing is no setting"), "{errors}");
    assert!(errors.contains("3 generated"), "{errors}");
}

/// A declaration as chat APIs have it.
fn weather() -> Value {
    serde_json::json!({ "type": "function", "function": {
        "name": "weather",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } },
    } })
}

#[test]
fn tools_are_declared_listed_and_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let (tools, other, empty) =
        (dir.path().join("tools.json"), dir.path().join("other.json"), dir.path().join("empty"));
    std::fs::write(&tools, serde_json::json!([weather()]).to_string()).unwrap();
    std::fs::write(&other, r#"{"tools": [{"function": {}}]}"#).unwrap();
    std::fs::write(&empty, "").unwrap();
    let lines = format!(
        "/tools\nThe sea\n/tools none\n/tools\n/tools {}\n/tools {}\n/tools {}\n/tools\nThe sea\n/result 3\n",
        other.display(),
        empty.display(),
        tools.display()
    );
    let tools = tools.to_str().unwrap();
    let output = chat(&["-v", "-n", "4", "--no-think", "--tools", tools], &lines);
    let text = out(&output);
    let lists: Vec<_> = text.lines().filter(|line| ["weather", "no tools"].contains(line)).collect();
    assert_eq!(lists, ["weather", "no tools", "weather"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    for expected in ["tool 0 is no object", "holds no list of tools", "no call waits for a result"] {
        assert!(errors.contains(expected), "{expected}: {errors}");
    }
    // The declaration is part of the prompt.
    let turns = computed(&output);
    let without = computed(&chat(&["-v", "-n", "4", "--no-think"], "The sea\n"));
    assert!(turns[0][1] > without[0][1] + 10, "{turns:?} {without:?}");
}

/// The events of a conversation by lines.
fn events(arguments: &[&str], lines: &[Value]) -> Vec<Value> {
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let output = chat(&[&["--jsonl"], arguments].concat(), &input);
    out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[test]
fn programs_talk_in_lines_of_json() {
    use serde_json::json;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let found = events(
        &["-n", "12", "--no-think", "--seed", "5"],
        &[
            json!({ "id": 1, "system": "Be brief.", "user": "The king said", "save": file }),
            json!({ "id": "b", "set": { "max_tokens": 2, "temperature": 0 }, "user": "And then?" }),
            json!({ "reset": true }),
            json!({ "load": file, "messages": [{ "role": "user", "content": "Go on" }] }),
        ],
    );
    assert_eq!(
        kinds(&found),
        ["ready", "prompt", "text", "done", "prompt", "text", "done", "prompt", "text", "done"]
    );
    let done: Vec<_> = found.iter().filter(|event| event["type"] == "done").collect();
    assert_eq!((&done[0]["id"], &done[1]["id"], &done[2]["id"]), (&json!(1), &json!("b"), &Value::Null));
    assert_eq!((&done[1]["generated_tokens"], &done[1]["finish_reason"]), (&json!(2), &json!("length")));
    assert_eq!(done[2]["position"], 0);
    assert_eq!(done[3]["generated_tokens"], 2);
    // What was said is what was saved, and the same as people see.
    let text: String = found
        .iter()
        .take_while(|event| event["type"] != "done")
        .filter_map(|event| event["text"].as_str())
        .collect();
    assert_eq!(saved(&file)[2]["content"], text.as_str());
    let arguments =
        ["--once", "The king said", "--system", "Be brief.", "-n", "12", "--no-think", "--seed", "5"];
    assert_eq!(out(&chat(&arguments, "")).trim_end(), text.trim_end());
}

#[test]
fn bad_lines_are_errors_and_the_next_one_is_answered() {
    use serde_json::json;
    let input = format!(
        "nonsense\n{{\"usr\": 1}}\n\n\u{feff}{{}}\n{}\n{}\n{}\n{}\n{}\n",
        json!({ "id": 7, "set": { "top_p": 9 } }),
        json!({ "load": "/no/such/file" }),
        json!({ "messages": [{ "role": "king", "content": "" }] }),
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
        json!({ "user": "The sea" })
    );
    let output = chat(&["--jsonl", "-n", "3", "--no-think"], &input);
    let found: Vec<Value> = out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kinds(&found), ["ready", "error", "prompt", "text", "done"]);
    let errors: Vec<_> = found.iter().filter(|event| event["type"] == "error").collect();
    assert_eq!(errors.len(), 7);
    assert_eq!(errors[3]["id"], 7);
    for (error, expected) in
        errors.iter().zip(["no request", "usr", "no request", "top_p", "file", "king", "image"])
    {
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    // Nothing of what was refused is left in the conversation.
    assert_eq!(found.last().unwrap()["prompt_tokens"], {
        let alone = events(&["-n", "3", "--no-think"], &[json!({ "user": "The sea" })]);
        alone.last().unwrap()["prompt_tokens"].clone()
    });
}

#[test]
fn a_stop_ends_what_was_asked_before_and_nothing_after() {
    use serde_json::json;
    let bias = "2050:-1000000";
    let found = events(
        &["-n", "100000", "--no-think", "--logit-bias", bias],
        &[
            json!({ "id": 1, "user": "Tell me a long story" }),
            json!({ "id": 2, "user": "And another" }),
            json!({ "id": 3, "stop": true, "set": { "max_tokens": 2 }, "user": "A short one" }),
        ],
    );
    let done: Vec<_> = found.iter().filter(|event| event["type"] == "done").collect();
    let reasons: Vec<_> = done.iter().map(|event| event["finish_reason"].as_str().unwrap()).collect();
    assert!(reasons[2] == "length" && done[2]["generated_tokens"] == 2, "{done:?}");
    // The context ends a story that is faster than the stop.
    assert!(reasons[..2].iter().all(|reason| ["cancelled", "context"].contains(reason)), "{reasons:?}");
    assert_eq!(reasons[1], "cancelled");
}

#[test]
fn results_of_calls_are_part_of_the_conversation_and_are_saved() {
    use serde_json::json;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let call = json!({ "id": "functions.weather:0", "type": "function",
        "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\"}" } });
    let result = json!({ "role": "tool", "tool_call_id": "functions.weather:0", "name": "weather", "content": "3 degrees" });
    let found = events(
        &["-n", "4", "--no-think"],
        &[
            json!({ "tools": [weather()], "messages": [
                { "role": "user", "content": "How warm is it?" },
                { "role": "assistant", "content": "Let me see.", "tool_calls": [call] },
            ] }),
            json!({ "messages": [result], "save": file }),
            json!({ "load": file, "save": dir.path().join("again.json") }),
        ],
    );
    assert_eq!(kinds(&found), ["ready", "done", "prompt", "text", "done"]);
    let messages = saved(&file);
    assert_eq!(messages[1]["tool_calls"][0]["function"], call["function"]);
    assert_eq!((&messages[2]["role"], &messages[2]["content"]), (&json!("tool"), &json!("3 degrees")));
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(dir.path().join("again.json")).unwrap());
}
