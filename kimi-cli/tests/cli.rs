//! The program as its users run it.

mod support;

use std::process::{Command, Stdio};

use kimi_testing::kimi_k3_oracle;
use serde_json::Value;
use support::{failure, json, kimi, kimi_with_input, stdout};

fn oracle() -> String {
    kimi_k3_oracle().to_str().unwrap().to_owned()
}

/// The ids of the fixture's prompt and of its greedy continuation.
fn expected() -> (String, Vec<u64>) {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(kimi_k3_oracle().join("expected.json")).unwrap()).unwrap();
    let numbers =
        |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>();
    let prompt = numbers(&expected["prompt"]).iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    (prompt, numbers(&expected["greedy"]))
}

#[test]
fn without_arguments_for_a_model_the_demo_model_speaks_english() {
    let text = stdout(&kimi(&["run", "--max-tokens", "30"]));
    assert!(text.starts_with("The king said"), "{text}");
    assert!(text.split_whitespace().count() > 8, "{text}");
    assert_eq!(text, stdout(&kimi(&["run", "--max-tokens", "30"])), "the seed fixes the text");
    assert_ne!(text, stdout(&kimi(&["run", "--max-tokens", "30", "--seed", "5"])));
}

#[test]
fn every_way_to_run_the_fixture_gives_the_same_logits() {
    let (prompt, greedy) = expected();
    let dir = tempfile::tempdir().unwrap();
    let mut first: Option<Vec<u8>> = None;
    for (i, extra) in [
        &[][..],
        &["--chunk", "1"],
        &["--chunk", "3"],
        &["--chunk", "7"],
        &["--threads", "1"],
        &["--threads", "2"],
        &["--io", "mmap"],
        &["--io", "pread"],
        &["--io", "direct"],
        &["--io", "uring"],
        &["--isa", "scalar"],
    ]
    .into_iter()
    .enumerate()
    {
        let file = dir.path().join(format!("{i}.safetensors"));
        let oracle = oracle();
        let mut arguments =
            vec!["run", &oracle, "--ids", &prompt, "--max-tokens", "16", "--ignore-eos", "--json", "-q"];
        arguments.extend(["--dump-logits", file.to_str().unwrap()]);
        arguments.extend(extra);
        let report = json(&kimi(&arguments));
        let ids: Vec<u64> =
            report["generated_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        assert_eq!(ids, greedy, "{extra:?}");
        let dumped = std::fs::read(&file).unwrap();
        assert!(first.get_or_insert_with(|| dumped.clone()) == &dumped, "{extra:?}");
    }
    check_dump(&first.unwrap());
}

/// The dumped rows against the fixture's logits.
fn check_dump(dumped: &[u8]) {
    let golden = std::fs::read(kimi_k3_oracle().join("expected.safetensors")).unwrap();
    let (dumped, golden) = (
        safetensors::SafeTensors::deserialize(dumped).unwrap(),
        safetensors::SafeTensors::deserialize(&golden).unwrap(),
    );
    for (name, expected) in [("prompt_logits", "logits"), ("generated_logits", "greedy_logits")] {
        let floats = |tensor: safetensors::tensor::TensorView<'_>| -> Vec<f32> {
            tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        let (found, expected) =
            (floats(dumped.tensor(name).unwrap()), floats(golden.tensor(expected).unwrap()));
        assert_eq!(found.len(), expected.len());
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 5e-5, "{name}: {worst}");
    }
}

#[test]
fn the_report_holds_what_scripts_need() {
    let report =
        json(&kimi(&["run", "--prompt", "The king", "--max-tokens", "5", "--json", "--temperature", "0"]));
    for field in [
        "prompt_ids",
        "generated_ids",
        "text",
        "finish_reason",
        "seconds",
        "prefill_seconds",
        "decode_seconds_per_token",
        "passes",
        "bytes_read",
        "bytes_per_token",
        "io",
        "budget_bytes",
        "ledger_peak_bytes",
        "peak_rss_bytes",
        "threads",
        "isa",
        "arith",
        "encodings",
        "model",
    ] {
        assert!(!report[field].is_null(), "{field}");
    }
    for field in ["trunk", "experts", "head", "kv", "other"] {
        assert!(report["bytes_read"][field].is_u64(), "{field}");
    }
    for field in ["backend", "reads", "wait_seconds", "busy_fraction"] {
        assert!(!report["io"][field].is_null(), "{field}");
    }
    assert_eq!((&report["finish_reason"], &report["passes"]), (&"length".into(), &5.into()));
    assert_eq!(report["prompt_ids"][0], 2048, "the demo model reads a text after [BOS]");
}

#[test]
fn the_peak_stays_below_the_limit_and_a_limit_below_the_floor_is_explained() {
    let (prompt, _) = expected();
    let oracle = oracle();
    let run = |ram: &str| {
        kimi(&["run", &oracle, "--ids", &prompt, "--max-tokens", "3", "--json", "-q", "--ram", ram])
    };
    for ram in ["40MB", "200MB"] {
        let report = json(&run(ram));
        let (peak, limit) =
            (report["peak_rss_bytes"].as_u64().unwrap(), report["budget_bytes"].as_u64().unwrap());
        assert!(peak <= limit, "{peak} of {limit}");
    }
    let (code, message) = failure(&run("3MB"));
    assert_eq!(code, Some(3));
    assert!(
        message.contains("3.0 MB are allowed") && message.contains("ring") && message.contains("latents"),
        "{message}"
    );
}

#[test]
fn stop_strings_are_cut_exactly() {
    let all =
        stdout(&kimi(&["run", "--prompt", "The king", "--max-tokens", "40", "--temperature", "0", "-q"]));
    let stop = &all[12..17];
    let run = |stop: &str| {
        json(&kimi(&[
            "run",
            "--prompt",
            "The king",
            "--max-tokens",
            "40",
            "--temperature",
            "0",
            "--json",
            "--stop",
            stop,
        ]))
    };
    let report = run(stop);
    assert_eq!(report["text"].as_str(), all.split(stop).next());
    assert_eq!(report["finish_reason"], "stop");
    let report = run("text that never comes");
    assert_eq!(report["text"].as_str().map(str::len), Some(all.len() - 1));
    assert_eq!(failure(&kimi(&["run", "--stop", ""])).0, Some(2));
}

#[test]
fn usage_errors_exit_with_two_and_say_what_to_do() {
    let oracle = oracle();
    for (arguments, expected) in [
        (&["run", "--isa", "sse9"][..], "known: scalar, avx2"),
        (&["run", "no such folder"], "does not exist"),
        (&["run", &oracle], "no prompt"),
        (&["run", &oracle, "some text"], "no tiktoken.model"),
        (&["run", &oracle, "--ids", "1,999"], "outside the vocabulary of 512"),
        (&["run", "--temperature", "-1"], "temperature is -1"),
        (&["run", "--temperature", "nan"], "temperature is NaN"),
        (&["run", "--top-p", "1.0001"], "from 0 to 1"),
        (&["run", "--top-p", "-0.1"], "from 0 to 1"),
        (&["run", "--min-p", "nan"], "from 0 to 1"),
        (&["run", "--repetition-penalty", "0"], "repetition_penalty is 0, it must be a positive number"),
        (&["run", "--repetition-penalty", "-1"], "must be a positive number"),
        (&["run", "--presence-penalty", "inf"], "presence_penalty is inf, it must be a finite number"),
        (&["run", "--frequency-penalty", "nan"], "must be a finite number"),
        (&["run", "--logit-bias", "5"], "must be ID:BIAS, like 42:-1.5"),
        (&["run", "--logit-bias", "5:nan"], "token id 5: NaN is not a finite number"),
        (&["run", "--logit-bias", "999999:1"], "token id 999999: the vocabulary has"),
        (&["run", "--logit-bias", "5:1", "--logit-bias", "5:2"], "token id 5: the token has one already"),
        (&["run", "--logprobs", "21"], "logprobs is 21, it must be 20 or less"),
        (&["run", "--top-k", "-1"], "--top-k"),
        (&["run", "--ram", "8 XB"], "unknown unit"),
        (&["run", "--prompt", "a", "--context", "1"], "0 of 1 tokens are taken and 2 more do not fit"),
        (
            &["run", &oracle, "--ids", "1,2,3", "--context", "2", "-n", "0"],
            "0 of 2 tokens are taken and 3 more",
        ),
        (&["detokenize", "12x"], "no token id"),
        (&["frobnicate"], "unrecognized"),
    ] {
        let (code, message) = failure(&kimi(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {message}");
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}

#[test]
fn a_broken_model_exits_with_four() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let (code, message) = failure(&kimi(&["run", path, "--ids", "1"]));
    assert!(code == Some(4) && message.contains("config.json"), "{code:?}: {message}");
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let (code, message) = failure(&kimi(&["inspect", path]));
    assert!(code == Some(4) && message.contains("`llama`"), "{code:?}: {message}");

    for entry in std::fs::read_dir(kimi_k3_oracle()).unwrap() {
        let file = entry.unwrap().path();
        std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    let shard = |number: usize| dir.path().join(format!("model-0000{number}-of-000003.safetensors"));
    let last = std::fs::OpenOptions::new().write(true).open(shard(3)).unwrap();
    last.set_len(last.metadata().unwrap().len() - 4096).unwrap();
    let (code, message) = failure(&kimi(&["run", path, "--ids", "1"]));
    let expected =
        message.contains("00003-of-000003.safetensors") && message.contains("4096 bytes are missing");
    assert!(code == Some(4) && expected, "{code:?}: {message}");
    std::fs::remove_file(shard(1)).unwrap();
    std::fs::remove_file(shard(2)).unwrap();
    let (code, message) = failure(&kimi(&["run", path, "--ids", "1"]));
    let expected =
        message.contains("2 of 3 shards are missing: model-00001") && message.contains("model-00002");
    assert!(code == Some(4) && expected, "{code:?}: {message}");
}

#[test]
fn paths_may_hold_spaces_and_any_script() {
    let dir = tempfile::tempdir().unwrap();
    let mut names = vec![std::ffi::OsString::from("K 3 – 模型 é")];
    // Bytes that are no text at all, where file names are bytes.
    #[cfg(target_os = "linux")]
    names.push(std::os::unix::ffi::OsStringExt::from_vec(b"K\xff3".to_vec()));
    for name in names {
        let model = dir.path().join("my models").join(&name);
        std::fs::create_dir_all(&model).unwrap();
        for entry in std::fs::read_dir(kimi_testing::demo_model()).unwrap() {
            let file = entry.unwrap().path();
            std::fs::copy(&file, model.join(file.file_name().unwrap())).unwrap();
        }
        let (prompt, dump) = (model.join("a prompt.txt"), model.join("all logits.safetensors"));
        std::fs::write(&prompt, "The king").unwrap();
        for io in ["pread", "mmap", "direct", "uring"] {
            let output = Command::new(env!("CARGO_BIN_EXE_kimi-cli"))
                .args(["run", "-n", "3", "-q", "--io", io])
                .args([
                    "--prompt-file".as_ref(),
                    prompt.as_os_str(),
                    "--dump-logits".as_ref(),
                    dump.as_os_str(),
                ])
                .arg(&model)
                .output()
                .unwrap();
            assert!(!stdout(&output).trim().is_empty());
            assert!(std::fs::metadata(&dump).unwrap().len() > 0);
            std::fs::remove_file(&dump).unwrap();
        }
    }
}

#[test]
fn as_many_tokens_as_can_be_written_are_as_many_as_fit() {
    let all = usize::MAX.to_string();
    let report = json(&kimi(&[
        "run",
        "--prompt",
        "The king",
        "-n",
        &all,
        "--context",
        "8",
        "--ignore-eos",
        "--json",
        "-q",
    ]));
    let count = |field: &str| report[field].as_array().unwrap().len();
    // The last token is chosen and needs no place any more.
    assert_eq!(count("prompt_ids") + count("generated_ids"), 9);
    assert_eq!(report["finish_reason"], "context");
}

#[test]
fn the_edges_of_sampling_are_the_greedy_choice() {
    let greedy = stdout(&kimi(&["run", "-n", "12", "--temperature", "0"]));
    for edge in [
        &["--temperature", "1e-9"][..],
        &["--temperature", "-0.0"],
        &["--temperature", "1", "--top-p", "0"],
        &["--temperature", "1", "--top-p", "1e-9"],
        &["--temperature", "1", "--top-k", "1"],
        &["--temperature", "1", "--min-p", "1"],
        &[
            "--temperature",
            "0",
            "--seed",
            "7",
            "--top-k",
            "18446744073709551615",
            "--repetition-penalty",
            "1",
        ],
    ] {
        let text = stdout(&kimi(&[&["run", "-n", "12"][..], edge].concat()));
        assert_eq!(text, greedy, "{edge:?}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("latin 1.txt");
    std::fs::write(&file, b"caf\xe9").unwrap();
    let file = file.to_str().unwrap();
    let (code, message) = failure(&kimi(&["run", "--prompt-file", file, "-n", "1"]));
    assert_eq!(code, Some(2));
    assert!(message.contains("byte 0xe9 at offset 3") && message.contains("--lossy"), "{message}");
    stdout(&kimi(&["run", "--prompt-file", file, "-n", "1", "--lossy"]));
    let (code, message) = failure(&kimi_with_input(&["tokenize"], b"\xff\xfe"));
    assert!(code == Some(2) && message.contains("standard input"), "{message}");
}

#[test]
fn tokens_go_there_and_back() {
    let text = "In those days\n  there was – a king 🙂";
    let ids = stdout(&kimi(&["tokenize", text]));
    assert_eq!(stdout(&kimi_with_input(&["detokenize"], ids.as_bytes())), text);
    assert_eq!(stdout(&kimi_with_input(&["tokenize"], text.as_bytes())), ids);
    let literal = json(&kimi(&["tokenize", "<|sep|>", "--json"]));
    let parsed = json(&kimi(&["tokenize", "<|sep|>", "--json", "--parse-special"]));
    assert!(literal["count"].as_u64() > Some(1));
    assert_eq!((&parsed["ids"][0], &parsed["count"]), (&2053.into(), &1.into()));

    // A prompt is text as well, unless the user says otherwise. The first id is that of the beginning.
    let prompt = ["run", "--prompt", "<|sep|>", "-n", "0", "--json", "-q"];
    let as_text = json(&kimi(&prompt));
    assert_eq!(as_text["prompt_ids"].as_array().unwrap()[1..], literal["ids"].as_array().unwrap()[..]);
    let as_token = json(&kimi(&[&prompt[..], &["--parse-special"]].concat()));
    assert_eq!(as_token["prompt_ids"], serde_json::json!([2048, 2053]));
}

#[test]
fn the_prompt_may_come_from_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "The king").unwrap();
    let demo = kimi_testing::demo_model();
    let expected = stdout(&kimi(&["run", "--prompt", "The king", "-n", "8", "--temperature", "0"]));
    for arguments in [
        &["run", "--prompt-file", file.to_str().unwrap(), "-n", "8", "--temperature", "0"][..],
        &["run", "--prompt-file", "-", "-n", "8", "--temperature", "0"],
        &["run", demo.to_str().unwrap(), "The king", "-n", "8", "--bos"],
        &["run", demo.to_str().unwrap(), "-", "-n", "8", "--bos"],
    ] {
        assert_eq!(stdout(&kimi_with_input(arguments, b"The king")), expected, "{arguments:?}");
    }
}

#[test]
fn inspect_counts_every_tensor() {
    let summary = json(&kimi(&["inspect", &oracle(), "--json"]));
    assert_eq!(summary["parts"]["vision"]["tensors"], 4);
    let total = |map: &Value| {
        map.as_object().unwrap().values().map(|part| part["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(total(&summary["parts"]), summary["total"]["bytes"].as_u64().unwrap());
    assert_eq!(total(&summary["dtypes"]), summary["total"]["bytes"].as_u64().unwrap());
    let tensors = stdout(&kimi(&["inspect", "--tensors"]));
    assert_eq!(tensors.lines().count(), 1770);
    assert!(stdout(&kimi(&["inspect"])).contains("9 layers (6 KDA, 3 MLA"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_generation_and_keeps_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let dump = dir.path().join("logits.safetensors");
    let mut child = Command::new(env!("CARGO_BIN_EXE_kimi-cli"))
        .args(["run", "-n", "4000", "--ignore-eos", "--json", "--dump-logits"])
        .arg(&dump)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Interrupt once there is text; the text goes to the standard error here.
    let mut first = [0; 24];
    std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut first).unwrap();
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["finish_reason"], "cancelled");
    let generated = report["generated_ids"].as_array().unwrap().len();
    assert!(generated > 0 && generated < 4000);
    let bytes = std::fs::read(&dump).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("generated_logits").unwrap().shape()[0], generated);
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let script = format!("{} inspect --tensors | head -n 1", env!("CARGO_BIN_EXE_kimi-cli"));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.is_empty());
}

#[test]
#[cfg(target_os = "linux")]
fn threads_follow_the_affinity_of_the_process() {
    let run = Command::new("taskset")
        .args(["--cpu-list", "0", env!("CARGO_BIN_EXE_kimi-cli"), "run", "-n", "1", "--json", "-q"])
        .output();
    let Ok(output) = run else { return println!("skipped: no taskset here") };
    assert_eq!(json(&output)["threads"], 1);
}
