//! The C examples, compiled and run.

use std::path::{Path, PathBuf};
use std::process::Command;

use ::kimi_model::SamplerOptions;
use kimi_testing::demo_model;

use crate::support::*;

const PROMPT: &str = "The king said";

enum Linked {
    Shared,
    Static,
}

/// Compiles an example into `dir`; `None` where there is no compiler.
fn compile(name: &str, dir: &Path, linked: &Linked) -> Option<PathBuf> {
    let program = dir.join(name);
    let mut cc = compiler("cc")?;
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
    Some(program)
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
