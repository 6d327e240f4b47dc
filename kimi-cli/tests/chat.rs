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
