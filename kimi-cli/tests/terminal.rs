//! `chat` through a pseudo-terminal, as people use it.
#![cfg(unix)]

use std::process::Command;

use rexpect::session::{PtySession, spawn_command};
use serde_json::Value;

/// The longest that any text is waited for, in milliseconds: nothing is ever waited for in time alone.
const PATIENCE: u64 = 60_000;

/// A chat whose model never ends its turn by itself.
fn chat(arguments: &[&str]) -> PtySession {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kimi-cli"));
    command
        .args(["chat", "--no-think", "--logit-bias", "2050:-1000000"])
        .args(arguments)
        .env("TERM", "xterm");
    let mut session = spawn_command(command, Some(PATIENCE)).unwrap();
    session.exp_string("/help lists").unwrap();
    session.exp_string("> ").unwrap();
    session
}

#[test]
fn a_conversation_is_typed_streamed_interrupted_saved_loaded_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let name = file.to_str().unwrap();
    let mut session = chat(&["--seed", "4"]);

    // Streamed: text comes while the answer is far from its end; then it is stopped, and the conversation goes on.
    session.send_line("The king said").unwrap();
    // The end of bracketed paste ends the line: what was echoed lies before, what is answered behind.
    session.exp_string("\u{1b}[?2004l").unwrap();
    session.exp_regex("[a-z]+ [a-z]+ [a-z]+").unwrap();
    session.send_control('c').unwrap();
    session.exp_string("cancelled").unwrap();
    session.exp_string("> ").unwrap();

    session.send_line("/set max_tokens 6").unwrap();
    session.exp_string("> ").unwrap();
    // A line that goes on, edited: what is rubbed out is not said.
    session.send("And then xyz").unwrap();
    session.send("\x7f\x7f\x7f").unwrap();
    session.send_line("the sea\\").unwrap();
    session.exp_string(". ").unwrap();
    session.send_line("sang").unwrap();
    session.exp_string("6 generated").unwrap();
    session.exp_string("length").unwrap();
    session.exp_string("> ").unwrap();

    session.send_line(&format!("/save {name}")).unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("/reset").unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("/stats").unwrap();
    session.exp_string("0 messages").unwrap();
    session.exp_string("> ").unwrap();
    session.send_line(&format!("/load {name}")).unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("/stats").unwrap();
    session.exp_string("4 messages").unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("/quit").unwrap();
    session.exp_eof().unwrap();

    let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["messages"][0]["content"], "The king said");
    assert_eq!(json["messages"][2]["content"], "And then the sea\nsang");
}

#[test]
fn a_second_interrupt_leaves() {
    let mut session = chat(&[]);
    session.send_control('c').unwrap();
    session.exp_string("Ctrl-C again").unwrap();
    session.exp_string("> ").unwrap();
    session.send_control('c').unwrap();
    session.exp_eof().unwrap();
}

#[test]
fn a_dumb_terminal_gets_plain_text() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kimi-cli"));
    command.args(["chat", "--no-think", "-n", "4"]).env("TERM", "dumb");
    let mut session = spawn_command(command, Some(PATIENCE)).unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("The sea").unwrap();
    let before = session.exp_string("4 generated").unwrap();
    assert!(!before.contains("\x1b[2K") && !before.contains('\u{2588}'), "{before:?}");
    session.send_line("/quit").unwrap();
    session.exp_eof().unwrap();
}
