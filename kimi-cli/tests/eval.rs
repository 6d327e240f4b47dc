//! `eval` as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

use kimi_testing::demo_model;
use serde_json::Value;

/// A text that the demo model knows something about.
const TEXT: &str = "And it came to pass in those days, that the king said unto the people, Let us go up to the city. \
    Then they went up, and the people did as the king had said. The old man looked at the sea for a long time, and \
    nobody spoke. \"I do not know,\" said Alice, \"but I will find it out.\"";

fn eval(dir: &Path, arguments: &[&str]) -> Output {
    let text = dir.join("text.txt");
    std::fs::write(&text, TEXT).unwrap();
    let text = ["--text", text.to_str().unwrap(), "--window", "16"];
    Command::new(env!("CARGO_BIN_EXE_kimi-cli")).arg("eval").args(text).args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn pack(target: &Path, trunk: &str) {
    let source = demo_model();
    let arguments = ["pack", source.to_str().unwrap(), target.to_str().unwrap(), "-q", "--trunk", trunk];
    assert!(Command::new(env!("CARGO_BIN_EXE_kimi-cli")).args(arguments).status().unwrap().success());
}

#[test]
fn a_lossless_model_is_no_distance_from_its_source_and_a_low_bit_one_some() {
    let dir = tempfile::tempdir().unwrap();
    let alone = json(&eval(dir.path(), &["--json"]));
    let [exact, low] = ["bf12", "i4"].map(|trunk| {
        let packed = dir.path().join(trunk);
        pack(&packed, trunk);
        json(&eval(dir.path(), &[packed.to_str().unwrap(), "--against", "demo", "--layers", "--json"]))
    });
    assert_eq!(exact["nats_per_token"], exact["reference_nats_per_token"]);
    let difference = exact["nats_per_token"].as_f64().unwrap() - alone["nats_per_token"].as_f64().unwrap();
    assert!(difference.abs() < 1e-6, "one row at a time and in pieces: {difference}");
    assert_eq!(exact["divergence"]["largest"], 0.0);
    assert_eq!((&exact["first_agreement"], &exact["logit_error"]), (&1.0.into(), &0.0.into()));
    let mean = low["divergence"]["mean"].as_f64().unwrap();
    assert!(mean > 1e-3 && mean < 0.5, "{low}");
    let layers = low["layer_errors"].as_array().unwrap();
    assert!(layers.len() > 4 && layers.iter().all(|error| error.as_f64().unwrap() > 0.0), "{low}");
}

#[test]
fn an_evaluation_goes_on_from_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state.json");
    let state_path = state.to_str().unwrap();
    let whole = json(&eval(dir.path(), &["--json"]));
    let kept = json(&eval(dir.path(), &["--json", "--state", state_path]));
    // Back to after the third window, with what the first run had found there.
    let three = json(&eval(dir.path(), &["--json", "--windows", "3"]));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    record["windows"] = 3.into();
    record["nats"] = (three["nats_per_token"].as_f64().unwrap() * three["tokens"].as_f64().unwrap()).into();
    std::fs::write(&state, record.to_string()).unwrap();
    let resumed = json(&eval(dir.path(), &["--json", "--state", state_path]));
    let nats = |report: &Value| report["nats_per_token"].as_f64().unwrap();
    assert_eq!(nats(&kept), nats(&whole));
    assert!((nats(&resumed) - nats(&whole)).abs() < 1e-12, "{resumed} {whole}");

    let other = eval(dir.path(), &["--arith", "fast", "--state", state_path]);
    assert_eq!(other.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&other.stderr).contains("another evaluation"));
}
