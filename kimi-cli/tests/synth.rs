//! `synth` as its users run it.

mod support;

use std::path::Path;

use kimi_testing::kimi_k3_oracle;
use support::{failure, json, kimi};

fn config() -> String {
    kimi_k3_oracle().join("config.json").to_str().unwrap().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_model_is_made_inspected_and_run() {
    let dir = tempfile::tempdir().unwrap();
    let config = config();
    let mut generated = Vec::new();
    for (name, seed, extra) in
        [("a", "1", &[][..]), ("b", "1", &[]), ("c", "2", &[]), ("d", "1", &["--sparse"])]
    {
        let model = dir.path().join(name);
        let mut arguments = vec!["synth", text(&model), "--geometry", &config, "--seed", seed, "--json"];
        arguments.extend(extra);
        let report = json(&kimi(&arguments));
        assert_eq!(report["sparse"], !extra.is_empty());
        let summary = json(&kimi(&["inspect", text(&model), "--json"]));
        assert_eq!(summary["total"]["tensors"], report["tensors"]);
        assert_eq!(summary["total"]["bytes"], report["tensor_bytes"]);
        assert_eq!(summary["files"], report["files"]);
        let run =
            json(&kimi(&["run", text(&model), "--ids", "1,2,3", "-n", "8", "--ignore-eos", "--json", "-q"]));
        generated.push(run["generated_ids"].clone());
    }
    assert_eq!(generated[0], generated[1]);
    assert_ne!(generated[0], generated[2]);
}

#[test]
fn a_packed_model_is_made_without_a_source() {
    let dir = tempfile::tempdir().unwrap();
    let config = config();
    let mut logits = Vec::new();
    for (name, extra) in [("whole", &[][..]), ("sparse", &["--sparse"])] {
        let model = dir.path().join(name);
        let mut arguments = vec!["synth", text(&model), "--geometry", &config, "--trunk", "i4:g32", "--json"];
        arguments.extend(extra);
        let report = json(&kimi(&arguments));
        assert_eq!((&report["lossless"], &report["sparse"]), (&false.into(), &(!extra.is_empty()).into()));
        let recipe = json(&kimi(&["inspect", text(&model), "--json"]));
        assert_eq!(recipe["recipe"]["trunk"], "i4:g32");
        let verified = json(&kimi(&["verify", text(&model), "--json"]));
        assert_eq!(verified["damages"], serde_json::json!([]));
        let run = ["run", text(&model), "--ids", "1,2,3", "-n", "8", "--ignore-eos", "--json", "-q"];
        logits.push(json(&kimi(&run))["generated_ids"].clone());
    }
    assert_ne!(logits[0], logits[1]);

    // The same way as by packing a model that was written before.
    let (plain, packed) = (dir.path().join("plain"), dir.path().join("packed"));
    json(&kimi(&["synth", text(&plain), "--geometry", &config, "--json"]));
    json(&kimi(&["pack", text(&plain), text(&packed), "--trunk", "i4:g32", "--json"]));
    for entry in std::fs::read_dir(&packed).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let other = dir.path().join("whole").join(path.file_name().unwrap());
            assert!(std::fs::read(&path).unwrap() == std::fs::read(&other).unwrap(), "{}", path.display());
        }
    }

    let (code, message) =
        failure(&kimi(&["synth", text(&dir.path().join("x")), "--geometry", &config, "--experts", "i3"]));
    assert!(code == Some(2) && message.contains("--trunk"), "{message}");
}

#[test]
fn quiet_says_nothing_and_otherwise_one_line_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let config = config();
    let quiet = kimi(&["synth", text(&dir.path().join("a")), "--geometry", &config, "-q"]);
    assert_eq!((quiet.status.code(), quiet.stdout.len(), quiet.stderr.len()), (Some(0), 0, 0));
    let said = kimi(&["synth", text(&dir.path().join("b")), "--geometry", &config]);
    let (code, words) = failure(&said);
    assert_eq!((code, said.stdout.len()), (Some(0), 0));
    assert!(words.contains("tensors in 10 files") && words.lines().count() == 1, "{words}");
}

#[test]
fn what_cannot_be_made_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("other.json"), r#"{"model_type": "llama"}"#).unwrap();
    std::fs::write(dir.path().join("empty.json"), "").unwrap();
    let model = dir.path().join("model");
    let config = config();
    for (geometry, code, expected) in [
        ("k4", 2, "none of k3, k3-mini, kimi-linear, moonlight, k2"),
        (text(&dir.path().join("other.json")), 4, "llama"),
        (text(&dir.path().join("empty.json")), 4, "not valid JSON"),
    ] {
        let (found, message) = failure(&kimi(&["synth", text(&model), "--geometry", geometry]));
        assert!(found == Some(code) && message.contains(expected), "{message}");
        assert!(!model.exists());
    }
    let (code, message) = failure(&kimi(&["synth", text(dir.path()), "--geometry", &config]));
    assert!(code == Some(2) && message.contains("is not empty"), "{message}");
    let (code, message) =
        failure(&kimi(&["synth", text(&dir.path().join("other.json/model")), "--geometry", &config]));
    assert!(code == Some(1) && message.contains("cannot create"), "{message}");
}
