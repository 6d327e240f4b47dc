//! Sampling as users ask for it.

mod support;

use std::path::Path;

use kimi_testing::kimi_k3_oracle;
use serde_json::{Value, json};
use support::{failure, kimi};

/// The report of a run of 6 tokens.
fn run(model: &Path, flags: &[&str]) -> Value {
    let model = model.to_str().unwrap();
    let fixed = ["run", model, "--ids", "3,1,4,1,5", "-n", "6", "--json", "-q"];
    support::json(&kimi(&[&fixed[..], flags].concat()))
}

fn ids(report: &Value) -> Vec<u64> {
    report["generated_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The fixture with a `generation_config.json`.
fn with_config(config: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(kimi_k3_oracle()).unwrap() {
        let file = entry.unwrap().path();
        std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    std::fs::write(dir.path().join("generation_config.json"), config.to_string()).unwrap();
    dir
}

#[test]
fn the_model_folder_gives_the_defaults_and_flags_win() {
    let greedy = ids(&run(&kimi_k3_oracle(), &["--ignore-eos"]));
    let dir = with_config(&json!({
        "do_sample": true, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "eos_token_id": [greedy[2], 500], "max_length": 4096
    }));
    let mut settings = json!({
        "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "penalty_window": 0, "logit_bias": [], "seed": 0,
        "eos_token_ids": [greedy[2], 500]
    });
    assert_eq!(run(dir.path(), &["--ignore-eos"])["sampling"], settings);

    let report = run(
        dir.path(),
        &[
            "--temperature",
            "0",
            "--repetition-penalty",
            "1",
            "--presence-penalty",
            "0",
            "--frequency-penalty",
            "0",
        ],
    );
    for field in ["temperature", "presence_penalty", "frequency_penalty"] {
        settings[field] = json!(0.0);
    }
    settings["repetition_penalty"] = json!(1.0);
    assert_eq!(report["sampling"], settings);
    // Greedy again, up to the end token of the folder.
    let end = greedy.iter().position(|&id| id == greedy[2]).unwrap();
    assert_eq!((ids(&report), &report["finish_reason"]), (greedy[..=end].to_vec(), &json!("eos")));

    let flags = [
        "--top-k",
        "7",
        "--top-p",
        "0.5",
        "--min-p",
        "0.125",
        "--seed",
        "9",
        "--penalty-window",
        "3",
        "--logit-bias",
        "2:-1.5",
        "--logit-bias",
        "1:3",
    ];
    let report = run(&kimi_k3_oracle(), &flags);
    let expected = json!({
        "temperature": 0.0, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "penalty_window": 3,
        "logit_bias": [{"id": 2, "bias": -1.5}, {"id": 1, "bias": 3.0}], "seed": 9,
        "eos_token_ids": report["sampling"]["eos_token_ids"]
    });
    assert_eq!(report["sampling"], expected);
}

#[test]
fn do_sample_false_is_greedy_until_a_flag_says_otherwise() {
    let dir = with_config(&json!({"do_sample": false, "temperature": 1.5}));
    assert_eq!(run(dir.path(), &[])["sampling"]["temperature"], 0.0);
    assert_eq!(run(dir.path(), &["--temperature", "1.5"])["sampling"]["temperature"], 1.5);
}

#[test]
fn a_bad_generation_config_is_named_with_file_and_field() {
    for (config, field) in [
        (json!({"temperature": -1}), "field `temperature`: it is -1, it must be 0 or a positive number"),
        (json!({"top_p": "0.9"}), "field `top_p`: invalid type"),
        (json!({"eos_token_id": 512}), "field `eos_token_id`: token id 512 is outside the vocabulary of 512"),
        (json!([]), "expected a JSON object"),
    ] {
        let dir = with_config(&config);
        let (code, message) = failure(&kimi(&["run", dir.path().to_str().unwrap(), "--ids", "1"]));
        assert!(code == Some(4) && message.contains("generation_config.json: "), "{code:?}: {message}");
        assert!(message.contains(field), "{message}");
    }
}

#[test]
fn every_flag_changes_what_comes() {
    let oracle = kimi_k3_oracle();
    let greedy = ids(&run(&oracle, &["--ignore-eos"]));
    let ban = format!("{}:-1e9", greedy[0]);
    let force = |id: u64| format!("{id}:1e9");
    let other = (greedy[0] + 1) % 512;
    let generated = |flags: &[&str]| ids(&run(&oracle, &[&["--ignore-eos"], flags].concat()));
    assert!(!generated(&["--logit-bias", &ban]).contains(&greedy[0]));
    assert_eq!(generated(&["--logit-bias", &force(other)]), [other; 6]);
    // A forced token comes up again and again unless a penalty outweighs the bias, which leaves two to take turns.
    let two = ["--logit-bias", &format!("{other}:1000"), "--logit-bias", "7:900"];
    for penalty in ["--presence-penalty", "--frequency-penalty"] {
        assert_eq!(generated(&[&two[..], &[penalty, "200"]].concat())[..2], [other, 7], "{penalty}");
        let window = [&two[..], &[penalty, "200", "--penalty-window", "1"]].concat();
        assert_eq!(generated(&window), [other, 7, other, 7, other, 7], "{penalty}");
    }
    assert_eq!(generated(&[&two[..], &["--repetition-penalty", "2"]].concat())[..2], [other, 7]);

    let hot = generated(&["--temperature", "5"]);
    assert_ne!(hot, greedy);
    assert_eq!(hot, generated(&["--temperature", "5", "--seed", "0"]));
    assert_ne!(hot, generated(&["--temperature", "5", "--seed", "1"]));
    for filter in [["--top-k", "2"], ["--top-p", "0.05"], ["--min-p", "0.9"]] {
        assert_ne!(generated(&[&["--temperature", "5"], &filter[..]].concat()), hot, "{filter:?}");
    }
}

#[test]
fn logprobs_are_reported_for_every_token() {
    let oracle = kimi_k3_oracle();
    assert_eq!(run(&oracle, &[])["logprobs"], Value::Null);
    for count in [0, 3, 20] {
        let report = run(&oracle, &["--ignore-eos", "--logprobs", &count.to_string()]);
        let logprobs = report["logprobs"].as_array().unwrap();
        assert_eq!(
            logprobs.iter().map(|token| token["id"].as_u64().unwrap()).collect::<Vec<_>>(),
            ids(&report)
        );
        for token in logprobs {
            let top = token["top"].as_array().unwrap();
            let values: Vec<f64> = top.iter().map(|token| token["logprob"].as_f64().unwrap()).collect();
            assert!(values.len() == count && values.is_sorted_by(|a, b| a >= b), "{values:?}");
            assert!(values.iter().map(|value| value.exp()).sum::<f64>() < 1.0);
            let chosen = token["logprob"].as_f64().unwrap();
            assert!(chosen < 0.0 && values.first().is_none_or(|&first| first == chosen));
        }
    }
}
