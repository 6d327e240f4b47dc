//! Sessions that outlast a process: saved and loaded, and found by the beginning of a prompt.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kimi_testing::kimi_k3_oracle;
use serde_json::Value;
use support::{failure, json, kimi, kimi_with_input, stdout};

/// Sampling that remembers: random numbers and what came up before.
const SAMPLING: [&str; 10] = [
    "--temperature",
    "1.1",
    "--repetition-penalty",
    "1.2",
    "--frequency-penalty",
    "0.3",
    "--penalty-window",
    "9",
    "--logprobs",
    "2",
];

/// The report of a run of the fixture.
fn run(flags: &[&str]) -> Value {
    let oracle = kimi_k3_oracle();
    let fixed = ["run", oracle.to_str().unwrap(), "--ignore-eos", "--json", "-q"];
    json(&kimi(&[&fixed[..], flags].concat()))
}

fn ids(report: &Value) -> Vec<u64> {
    report["generated_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The rows of generated logits, as bytes.
fn logits(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    tensors.tensor("generated_logits").unwrap().data().to_vec()
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_run_that_another_process_continues_gives_the_ids_and_logits_of_an_uninterrupted_one() {
    let dir = tempfile::tempdir().unwrap();
    let [state, whole, first, second] =
        ["state", "whole", "first", "second"].map(|name| dir.path().join(name));
    let prompt = "3,1,4,1,5,9,2,6,5";
    for kv in ["f32", "i4"] {
        let common = [&["--seed", "7", "--kv", kv][..], &SAMPLING].concat();
        let with = |flags: &[&str]| run(&[flags, &common].concat());
        let expected = with(&["--ids", prompt, "-n", "12", "--dump-logits", name(&whole)]);
        let begun = with(&[
            "--ids",
            prompt,
            "-n",
            "5",
            "--save-state",
            name(&state),
            "--dump-logits",
            name(&first),
            "--chunk",
            "4",
        ]);
        assert_eq!((&begun["loaded_tokens"], ids(&begun).len()), (&0.into(), 5));
        // The seed is that of the state, and everything that must not matter is another.
        let rest =
            run(
                &[
                    &[
                        "--load-state",
                        name(&state),
                        "--save-state",
                        name(&state),
                        "-n",
                        "7",
                        "--threads",
                        "1",
                    ][..],
                    &["--io", "mmap", "--context", "40", "--dump-logits", name(&second), "--kv", kv],
                    &SAMPLING,
                ]
                .concat(),
            );
        assert_eq!((&rest["loaded_tokens"], &rest["sampling"]["seed"]), (&13.into(), &7.into()));
        assert_eq!([ids(&begun), ids(&rest)].concat(), ids(&expected));
        assert!([logits(&first), logits(&second)].concat() == logits(&whole), "{kv}: logits");
        // Other random numbers only where they are asked for.
        let flags = [&["--load-state", name(&state), "-n", "16", "--kv", kv][..], &SAMPLING].concat();
        let again = ids(&run(&flags));
        assert_eq!(ids(&run(&[&flags[..], &["--seed", "7"]].concat())), again);
        assert_ne!(ids(&run(&[&flags[..], &["--seed", "8"]].concat())), again);
    }
}

#[test]
fn a_prompt_after_a_loaded_state_continues_all_that_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let begun = run(&["--ids", "7,8,9", "-n", "4", "--save-state", name(&state)]);
    let mut all = vec![7, 8, 9];
    all.extend(ids(&begun));
    all.extend([20, 21]);
    let all = all.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let expected = run(&["--ids", &all, "-n", "6"]);
    let found = run(&["--load-state", name(&state), "--ids", "20,21", "-n", "6"]);
    assert_eq!(ids(&found), ids(&expected));
    assert_eq!((&found["loaded_tokens"], found["prompt_ids"].as_array().unwrap().len()), (&6.into(), 2));
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_is_saved_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut child = Command::new(env!("CARGO_BIN_EXE_kimi-cli"))
        .args(["run", "-n", "4000", "--ignore-eos", "--json", "--seed", "4", "--save-state"])
        .arg(&state)
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
    let begun = ids(&serde_json::from_slice(&output.stdout).unwrap());
    assert!(!begun.is_empty() && begun.len() < 4000);

    let rest = json(&kimi(&["run", "--load-state", name(&state), "-n", "9", "--ignore-eos", "--json", "-q"]));
    let count = (begun.len() + 9).to_string();
    let whole = kimi(&["run", "-n", &count, "--ignore-eos", "--json", "-q", "--seed", "4"]);
    assert_eq!([begun, ids(&rest)].concat(), ids(&json(&whole)));
    // Only the text that is new is printed.
    let text = stdout(&kimi(&["run", "--load-state", name(&state), "-n", "9", "--ignore-eos", "-q"]));
    assert_eq!(text.trim_end_matches('\n'), rest["text"].as_str().unwrap().trim_end_matches('\n'));
}

#[test]
fn states_that_cannot_be_used_are_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let [state, broken, text, done] = ["state", "broken", "text", "done"].map(|name| dir.path().join(name));
    run(&["--ids", "1,2,3,4,5,6,7,8,9", "-n", "2", "--save-state", name(&state)]);
    let mut bytes = fs::read(&state).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&broken, bytes).unwrap();
    fs::write(&text, "The king said").unwrap();
    run(&["--ids", "1,2", "-n", "0", "--save-state", name(&done)]);

    let oracle = kimi_k3_oracle();
    let oracle = name(&oracle);
    let nowhere = dir.path().join("nowhere/state");
    let folder = dir.path().to_str().unwrap();
    for (flags, code, expected) in [
        (&["--load-state", name(&broken)][..], 4, "is damaged"),
        (&["--load-state", name(&text)], 4, "is no saved session"),
        (&["--load-state", name(&nowhere)], 1, "No such file"),
        (&["--load-state", name(&state), "--kv", "bf16"], 2, "use `--kv f32`"),
        (&["--load-state", name(&state), "--arith", "fast"], 2, "use `--arith exact`"),
        (&["--load-state", name(&state), "--context", "9"], 2, "raise `--context`"),
        (&["--load-state", name(&done)], 2, "the prompt is empty"),
        (&["--ids", "1", "--save-state", name(&nowhere)], 2, "lies in no folder"),
        (&["--ids", "1", "--save-state", folder], 2, "is a folder"),
        (&["--ids", "1", "--prefix-cache-size", "1GB"], 2, "--prefix-cache <DIR>"),
    ] {
        let (found, message) = failure(&kimi(&[&["run", oracle, "-n", "3"][..], flags].concat()));
        assert_eq!(found, Some(code), "{flags:?}: {message}");
        assert!(message.contains(expected), "{flags:?}: {message}");
    }
    let (code, message) = failure(&kimi(&["run", "--load-state", name(&state)]));
    assert!(code == Some(2) && message.contains("was saved with another model"), "{message}");
    let shown = format!("{}: was saved", state.display());
    assert!(message.contains(&shown), "the file is named: {message}");
}

/// All files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(dir).unwrap().map(|folder| folder.unwrap().path());
    folders.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path()).collect()
}

#[test]
fn what_a_prompt_has_in_common_with_an_earlier_one_is_not_computed_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let first = "5,6,7,8,9,10,11,12";
    let second = "5,6,7,8,9,10,11,12,13,14";
    let plain = run(&[&["--ids", second, "-n", "6"][..], &SAMPLING].concat());
    let rows = |report: &Value| report["bytes_read"]["other"].as_u64().unwrap();
    let with = |ids: &str, flags: &[&str]| {
        let fixed = ["--ids", ids, "-n", "6", "--prefix-cache", name(&cache)];
        run(&[&fixed[..], &SAMPLING, flags].concat())
    };
    assert_eq!(with(first, &[])["reused_tokens"], 0);
    assert_eq!(files(&cache).len(), 1);
    let found = with(second, &[]);
    assert_eq!((&found["reused_tokens"], ids(&found)), (&8.into(), ids(&plain)));
    // A row of the embedding for each token that was computed: 15 without, 7 with the cache.
    assert_eq!(rows(&found) * 15, rows(&plain) * 7);

    // The same prompt again needs a place before its end to go on from.
    with("1,2,3,4,5,6,7", &["--prefix-every", "3"]);
    assert_eq!(with("1,2,3,4,5,6,7", &[])["reused_tokens"], 6);

    for file in files(&cache) {
        fs::write(file, "damaged").unwrap();
    }
    let found = with(second, &[]);
    assert_eq!((&found["reused_tokens"], ids(&found)), (&0.into(), ids(&plain)));

    // No more than fits is kept.
    let sizes = || files(&cache).iter().map(|file| fs::metadata(file).unwrap().len()).collect::<Vec<_>>();
    let limit = sizes().into_iter().max().unwrap() * 5 / 2;
    for prompt in ["30,31,32", "40,41,42", "50,51,52"] {
        with(prompt, &["--prefix-cache-size", &limit.to_string()]);
        assert!(sizes().iter().sum::<u64>() <= limit);
    }
    assert_eq!(with("50,51,52,53", &[])["reused_tokens"], 3);
}

/// The last lines of `chat --jsonl` for each of some messages.
fn chat(messages: &[&str], flags: &[&str]) -> (Vec<Value>, String) {
    let lines: String =
        messages.iter().map(|message| format!("{}\n", serde_json::json!({ "user": message }))).collect();
    let fixed = ["chat", "--jsonl", "--no-think", "-n", "8", "--seed", "2"];
    let text = stdout(&kimi_with_input(&[&fixed[..], flags].concat(), lines.as_bytes()));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answer =
        lines.iter().filter(|line| line["type"] == "text").map(|line| line["text"].as_str().unwrap());
    let answer = answer.collect();
    (lines.into_iter().filter(|line| line["type"] == "done").collect(), answer)
}

#[test]
fn conversations_share_what_they_begin_with() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let system = ["--system", "You are an old king, and tell of the sea.", "--repetition-penalty", "1.1"];
    let cached = [&system[..], &["--prefix-cache", name(&cache)]].concat();
    let (first, _) = chat(&["Who are you?"], &cached);
    assert_eq!(first[0]["reused_tokens"], 0);
    // Another question after the same system message.
    let (second, answer) = chat(&["Where is the ship?"], &cached);
    let (plain, expected) = chat(&["Where is the ship?"], &system);
    assert_eq!(answer, expected);
    let [reused, computed, total] =
        ["reused_tokens", "computed_tokens", "prompt_tokens"].map(|field| second[0][field].as_u64().unwrap());
    assert!(reused > 8 && reused + computed == total, "{second:?}");
    assert_eq!(plain[0]["computed_tokens"], total);

    // An answer that was cut short is read again with the next message; up to it everything is stored.
    let (turns, answer) = chat(&["Where is the ship?", "And then?"], &cached);
    assert_eq!(answer, chat(&["Where is the ship?", "And then?"], &system).1);
    assert_eq!(turns[1]["reused_tokens"], total, "{turns:?}");
}
