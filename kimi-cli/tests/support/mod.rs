//! Running the program.
#![allow(dead_code, reason = "every test binary uses a part")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) fn kimi(arguments: &[&str]) -> Output {
    kimi_with_input(arguments, b"")
}

pub(crate) fn kimi_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kimi-cli"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// The standard output of a run that went well.
pub(crate) fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The exit code and the standard error.
pub(crate) fn failure(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap()
}
