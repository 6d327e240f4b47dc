//! The C examples, compiled and run.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ::kimi_model::SamplerOptions;
use ::kimi_text::chat::{ChatFormat, ChatOptions, ChatPrompt, Continuation, Message};
use ::kimi_text::{Flagged, Specials, TokenId, Tokenizer};
use kimi_k3_inference::*;
use kimi_testing::{demo_model, kimi_k3_oracle};

use crate::support::*;

const PROMPT: &str = "The king said";

enum Linked {
    Shared,
    Static,
}

/// Compiles an example into `dir`; `None` where there is no compiler.
fn compile(name: &str, dir: &Path, linked: &Linked) -> Option<PathBuf> {
    Some(compile_with(compiler("cc")?, name, dir, linked))
}

fn compile_with(mut cc: Command, name: &str, dir: &Path, linked: &Linked) -> PathBuf {
    let program = dir.join(name);
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(package("include"));
    cc.arg(package("examples").join(format!("{name}.c"))).arg("-o").arg(&program);
    match linked {
        Linked::Shared => {
            cc.arg("-L").arg(libraries()).arg("-lkimi_k3_inference");
        }
        Linked::Static => {
            cc.arg(libraries().join("libkimi_k3_inference.a"));
        }
    }
    if cfg!(target_os = "linux") {
        cc.args(["-lpthread", "-ldl", "-lm"]);
    }
    succeed(&mut cc);
    program
}

/// An example with the libraries of this test, not those that cargo built last.
fn example(program: &Path) -> Command {
    let mut command = Command::new(program);
    let variable = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
    command.env(variable, libraries());
    command
}

#[test]
fn the_five_functions_give_the_ids_of_kimi_model() {
    let dir = tempfile::tempdir().unwrap();
    let expected = expected(&demo_model(), PROMPT, 16, SamplerOptions::default());
    for linked in [Linked::Shared, Linked::Static] {
        let Some(program) = compile("five_functions", dir.path(), &linked) else { return };
        let output = example(&program).arg(demo_model()).args([PROMPT, "16"]).output().unwrap();
        assert!(output.status.success());
        let ids = String::from_utf8(output.stderr).unwrap();
        assert_eq!(ids.lines().map(|id| id.parse().unwrap()).collect::<Vec<u32>>(), expected.ids);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected.text);
    }
}

#[test]
fn the_stream_prints_the_text_of_kimi_model() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("generate", dir.path(), &Linked::Shared) else { return };
    let expected = expected(&demo_model(), PROMPT, 16, SamplerOptions::default());
    let output = example(&program).arg(demo_model()).args([PROMPT, "16"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected.text + "\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let (first, stats) = stderr.split_once('\n').unwrap();
    assert_eq!(first, "16 tokens, ended by length");
    let stats: serde_json::Value = serde_json::from_str(stats).unwrap();
    assert!(stats["passes"].as_u64().unwrap() >= 16, "{stats}");

    let output = example(&program).args(["no/such/folder", PROMPT]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("kimi_model_open: no/such/folder: does not exist"), "{stderr}");
}

#[test]
fn the_plan_is_json_or_the_reason_why_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("plan", dir.path(), &Linked::Shared) else { return };
    let printed = succeed(example(&program).arg(demo_model()).arg("500000000"));
    let plan: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(plan["limit_bytes"], 500_000_000);
    let output = example(&program).arg(demo_model()).arg("1000").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("recurrent state"));
}

/// Runs a command with this text on its standard input: what it prints, what it says, and how it ends.
fn talk(command: &mut Command, input: &str) -> (String, String, Option<i32>) {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn the_conversation_is_in_the_format_of_k3() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("chat", dir.path(), &Linked::Shared) else { return };
    let tokenizer = Tokenizer::from_dir(demo_model()).unwrap();
    let mut options = ChatOptions::default();
    options.thinking = false;
    options.continuation = Continuation::Assistant;
    let prompt = |messages: &[Message]| {
        ChatPrompt::new(ChatFormat::K3, messages, &[], &options).unwrap().encode(&tokenizer).unwrap()
    };
    // Markup in a message is text.
    let (first, second) = ("Who said <|close|>?", "And the king?");
    let ids = prompt(&[Message::user(first)]);
    let tokens: Vec<std::ffi::c_int> = ids.iter().map(|id| id.0.cast_signed()).collect();
    let close = tokenizer.special_id("<|close|>").unwrap().0.cast_signed();
    let model = load(&demo_model(), 512);
    let (mut sequence, mut answer) = (tokens, Vec::new());
    while answer.len() < 12 && answer.last() != Some(&close) {
        extend(model, &mut sequence, 1);
        answer.push(sequence[sequence.len() - 1]);
    }
    kimi_free_model(model);
    let closed = answer.last() == Some(&close);
    let text: Vec<TokenId> =
        answer.iter().filter(|&&id| id != close).map(|&id| TokenId(id.cast_unsigned())).collect();
    let text = tokenizer.decode_lossy(&text, Flagged::Hide).unwrap();

    let (printed, said, code) =
        talk(example(&program).arg(demo_model()).arg("12"), &format!("{first}\n{second}\n"));
    assert_eq!(code, Some(0), "{said}");
    assert!(printed.starts_with(&format!("{text}\n")), "{printed:?} is not {text:?} first");
    assert_eq!(printed.lines().count(), 2, "{printed:?}");
    // Both turns, less what the second answer lacks: its last token, which nothing was computed from.
    let turns = prompt(&[Message::user(first), Message::assistant(text.clone()), Message::user(second)]);
    let reencoded = tokenizer.encode(&text, Specials::AsText).len();
    let generated = answer.len() - usize::from(closed);
    let position: usize = said.trim().strip_suffix(" tokens").unwrap().parse().unwrap();
    let most = turns.len() - reencoded + generated + 11;
    assert!(position <= most && position + 11 >= most, "{position} tokens, {most} expected");

    let (_, said, code) = talk(example(&program).arg(kimi_k3_oracle()), "");
    assert_eq!(code, Some(1));
    assert!(said.contains("no model of the K3 family"), "{said}");
}

/// What the C programs are given, of the demo model.
fn programs() -> [(&'static str, &'static [&'static str], &'static str); 4] {
    [
        ("five_functions", &[PROMPT, "8"], ""),
        ("generate", &[PROMPT, "8", "0.7"], ""),
        ("plan", &[], ""),
        ("chat", &["8"], "Hello\nAnd again\n"),
    ]
}

#[test]
fn no_program_touches_memory_that_is_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut probe) = compiler("gcc") else { return };
    std::fs::write(dir.path().join("probe.c"), "int main(void) { return 0; }").unwrap();
    probe.current_dir(&dir).args(["-fsanitize=address", "probe.c", "-o", "probe"]);
    let works = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !works(&mut probe) || !works(&mut Command::new(dir.path().join("probe"))) {
        eprintln!("skipped: gcc has no AddressSanitizer here");
        return;
    }
    for (name, arguments, input) in programs() {
        let mut cc = Command::new("gcc");
        cc.args(["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        let program = compile_with(cc, name, dir.path(), &Linked::Shared);
        let mut command = example(&program);
        // Leaks too: every program frees what it opened, and the library what it was given.
        command.env("ASAN_OPTIONS", "detect_leaks=1").arg(demo_model()).args(arguments);
        let (_, said, code) = talk(&mut command, input);
        assert_eq!(code, Some(0), "{name}: {said}");
        assert!(!said.contains("Sanitizer"), "{name}: {said}");
    }
}

#[test]
fn valgrind_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(valgrind) = compiler("valgrind") else { return };
    let Some(program) = compile("plan", dir.path(), &Linked::Shared) else { return };
    // Opening and freeing: computing takes minutes there, and instruction sets that valgrind does not know.
    let mut command = Command::new(valgrind.get_program());
    command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    command.arg(&program).arg(kimi_k3_oracle()).env("LD_LIBRARY_PATH", libraries());
    let (printed, said, code) = talk(&mut command, "");
    if said.contains("unhandled instruction") || said.contains("Unrecognised instruction") {
        eprintln!("skipped: valgrind does not know an instruction of this processor");
        return;
    }
    assert_eq!(code, Some(0), "{said}");
    assert!(printed.starts_with('{'), "{printed}");
}
