//! `bench` and `doctor` as a user runs them.

mod support;

use std::fs;
use std::path::Path;

use kimi_testing::{demo_model, kimi_k3_oracle};
use support::{failure, json, kimi, stdout};

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn kernels_are_measured_in_every_tier_and_place_that_is_asked_for() {
    let arguments =
        ["bench", "kernels", "--seconds=0", "--encodings=bf16,i4:g64", "--columns=1,2", "--size=1MB"];
    let report = json(&kimi(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(report["exact_only"], serde_json::json!(["bf16"]));
    let rows = report["rows"].as_array().unwrap();
    let isas = report["isas"].as_array().unwrap();
    assert!(isas.iter().any(|isa| isa == "scalar"));
    // Two places and two numbers of columns, in one tier or in two.
    assert_eq!(rows.len(), isas.len() * (4 + 8));
    assert!(rows.iter().all(|row| row["operations_per_second"]["median"].as_f64().unwrap() > 0.0));

    let table = stdout(&kimi(&[&arguments[..], &["--isa=scalar", "--arith=fast", "--in=cache"]].concat()));
    assert_eq!(table.lines().filter(|line| line.starts_with("i4:g64")).count(), 2, "{table}");
    for (argument, expected) in [
        ("--encodings=i9", "i9"),
        ("--in=drawer", "must be cache or memory"),
        ("--columns=0", "at least 1"),
        ("--seconds=-1", "number of seconds"),
    ] {
        let (code, error) = failure(&kimi(&["bench", "kernels", argument]));
        assert!(code == Some(2) && error.contains(expected), "{argument}: {error}");
    }
}

#[test]
fn a_drive_is_measured_with_and_without_a_model_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["bench", "disk", path(dir.path()), "--seconds=0", "--size=3MiB", "--record=100KB"];
    let report = json(&kimi(&[&arguments[..], &["--json", "-q"]].concat()));
    assert_eq!(report["temporary"], true);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let patterns = |report: &serde_json::Value, name: &str| {
        report["rows"].as_array().unwrap().iter().filter(|row| row["pattern"] == name).count()
    };
    for name in ["tape", "experts", "mixed", "row"] {
        assert!(patterns(&report, name) > 0, "{name}");
    }
    let model = kimi_k3_oracle();
    let table = stdout(&kimi(&["bench", "disk", path(&model), "--seconds=0", "--patterns=tape", "-q"]));
    assert!(table.contains("files as they are") && table.lines().any(|line| line.starts_with("tape")));
    assert!(!table.lines().any(|line| line.starts_with("row ")), "{table}");

    let (code, error) = failure(&kimi(&["bench", "disk", path(&dir.path().join("absent"))]));
    assert!(code == Some(1) && error.contains("absent"), "{error}");
    let (code, error) = failure(&kimi(&["bench", "disk", path(dir.path()), "--size=9999TB"]));
    assert!(code == Some(1) && error.contains("--size"), "{error}");
    assert_eq!(failure(&kimi(&["bench", "disk", ".", "--patterns=zigzag"])).0, Some(2));
}

#[test]
fn decoding_is_measured_token_by_token() {
    let model = demo_model();
    let report = json(&kimi(&[
        "bench",
        "decode",
        path(&model),
        "-n3",
        "--warm-up=2",
        "--drive-seconds=0.01",
        "--json",
        "-q",
    ]));
    assert_eq!(report["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(report["generated_ids"].as_array().unwrap().len(), 6);
    assert!(report["drive_bytes_per_second"]["median"].as_f64().unwrap() > 0.0);
    // The built-in model generates the same, and has no drive.
    let built_in = json(&kimi(&["bench", "decode", "-n3", "--warm-up=2", "--json", "-q"]));
    assert_eq!(built_in["generated_ids"], report["generated_ids"]);
    assert_eq!(built_in["drive_bytes_per_second"], serde_json::Value::Null);
    let table = stdout(&kimi(&["bench", "decode", "-n1", "-q"]));
    assert!(table.contains("s/token") && table.contains("planned"), "{table}");

    let (code, error) = failure(&kimi(&["bench", "decode", "--ram=1MB"]));
    assert!(code == Some(3) && error.contains("MB"), "{error}");
    let (code, error) = failure(&kimi(&["bench", "decode", "--ids=999999"]));
    assert!(code == Some(2) && error.contains("999999"), "{error}");
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_to_run() {
    let model = demo_model();
    let report = json(&kimi(&["doctor", path(&model), "--seconds=0.01", "--json", "-q"]));
    assert!(report["verdict"] != "problem" && report["model"]["fits"] == true, "{report}");
    assert!(report["next"][0].as_str().unwrap().starts_with("kimi-cli run"));
    assert!(report["drive_bytes_per_second"].as_f64().unwrap() > 0.0);

    let table = stdout(&kimi(&["doctor", path(&model), "--seconds=0"]));
    assert!(table.contains("a token reads") && table.contains("kimi-cli pack"), "{table}");

    let output = kimi(&["doctor", path(&model), "--seconds=0", "--ram=1MB"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("kimi-cli plan"));

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), "{").unwrap();
    let output = kimi(&["doctor", path(dir.path()), "--seconds=0"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stdout).contains("config.json"));
}
