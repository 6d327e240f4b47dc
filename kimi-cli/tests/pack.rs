//! `pack`, `unpack`, `verify` and `plan` as a user runs them.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kimi_testing::{Seeded, demo_model, kimi_k3_oracle};
use serde_json::Value;

fn kimi(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kimi-cli")).args(arguments).output().unwrap()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn logits(model: &Path, file: &Path) -> Vec<u8> {
    let arguments =
        ["run", path(model), "--ids", "1,2,3,4", "-n", "4", "--ignore-eos", "-q", "--check", "all"];
    let output = kimi(&[&arguments[..], &["--dump-logits", path(file)]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(file).unwrap()
}

#[test]
fn a_packed_model_is_verified_run_and_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, back) = (dir.path().join("packed"), dir.path().join("back"));
    let source = demo_model();
    let dry = json(&kimi(&["pack", path(&source), path(&packed), "--dry-run", "--json"]));
    assert!(!packed.exists() && dry["lossless"] == true, "{dry}");
    let preset =
        json(&kimi(&["pack", path(&source), path(&packed), "--dry-run", "--preset", "exact", "--json"]));
    assert_eq!(preset["encodings"], dry["encodings"]);
    for arguments in [["--preset", "huge", "--json"], ["--preset", "near", "--trunk=i4"]] {
        let output = kimi(&[&["pack", path(&source), path(&packed)], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2));
    }
    json(&kimi(&["pack", path(&source), path(&packed), "--json"]));
    let verified = json(&kimi(&["verify", path(&packed), "--json"]));
    assert_eq!(verified["damages"], serde_json::json!([]), "{verified}");
    let unpacked = json(&kimi(&["unpack", path(&packed), path(&back), "--json"]));
    assert_eq!(unpacked["lossy"], 0);
    let expected = logits(&source, &dir.path().join("a"));
    for model in [&packed, &back] {
        assert!(logits(model, &dir.path().join("b")) == expected, "{}", model.display());
    }
    let [before, after] = [&source, &packed].map(|model| json(&kimi(&["inspect", path(model), "--json"])));
    for part in ["trunk", "experts", "embedding", "head"] {
        assert_eq!(before["parts"][part]["weights"], after["parts"][part]["weights"], "{part}");
    }
    assert_eq!((&after["lossless"], &before["lossless"]), (&true.into(), &Value::Null));
    assert_eq!(after["recipe"]["trunk"], "bf12");
    // The tokenizer came along.
    let text = kimi(&["run", path(&packed), "Once", "-n", "3", "-q"]);
    assert!(text.status.success() && !text.stdout.is_empty());

    let again = kimi(&["pack", path(&source), path(&packed)]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("holds a packed model already"));
    let of_packed = kimi(&["pack", path(&packed), path(&dir.path().join("c"))]);
    assert!(String::from_utf8_lossy(&of_packed.stderr).contains("is packed already"));
}

#[test]
fn a_damaged_model_ends_with_its_own_code() {
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed");
    json(&kimi(&["pack", path(&kimi_k3_oracle()), path(&packed), "--trunk", "i4", "--json"]));
    let file = packed.join("layer-00002.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize + 8 + 100;
    bytes[at] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let output = kimi(&["verify", path(&packed)]);
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("layer-00002.safetensors, tensor") && text.contains("tile 0"), "{text}");
    let output = kimi(&["run", path(&packed), "--ids", "1", "-n", "1", "--check", "all"]);
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    // A released checkpoint has its structure only.
    let output = kimi(&["verify", path(&demo_model()), "--json"]);
    assert_eq!(json(&output)["checksums"], false);
}

#[test]
fn killed_at_any_point_packing_goes_on_and_ends_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let source = demo_model();
    let pack = |target: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kimi-cli"));
        command.args(["pack", path(&source), path(target), "-q", "--trunk", "i8", "--threads", "1"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    assert!(pack(&whole).status().unwrap().success());
    let mut random = Seeded::new(11);
    let (mut kills, mut finished) = (0, 0);
    while kills < 100 {
        let mut child = pack(&killed).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(40_000) as u64));
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        kills += 1;
        match output.status.code() {
            // It was done before, and is done once more from the beginning.
            Some(0) => {
                finished += 1;
                assert!(files(&killed) == files(&whole), "after {kills} kills");
                std::fs::remove_dir_all(&killed).unwrap();
            }
            // A folder that holds a finished model: it was killed after its last step.
            Some(2) => {
                let message = String::from_utf8_lossy(&output.stderr);
                assert!(message.contains("holds a packed model already"), "{message}");
                assert!(files(&killed) == files(&whole), "after {kills} kills");
                std::fs::remove_dir_all(&killed).unwrap();
            }
            Some(code) => panic!("exit {code}: {}", String::from_utf8_lossy(&output.stderr)),
            None => {
                if killed.is_dir()
                    && !killed.join("kimi.json").exists()
                    && killed.join("kimi-pack.json").exists()
                {
                    let run = kimi(&["run", path(&killed), "--ids", "1", "-n", "1"]);
                    assert_eq!(run.status.code(), Some(4));
                }
            }
        }
    }
    let last = pack(&killed).status().unwrap().code();
    assert!(matches!(last, Some(0 | 2)), "{last:?}, finished {finished} times between");
    assert!(files(&killed) == files(&whole));
}

/// Names and contents, without what an unfinished run leaves.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|file| (file.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&file).unwrap()))
        .filter(|(name, _)| name != "kimi-pack.json")
        .collect();
    files.sort();
    files
}

#[test]
fn a_plan_needs_no_more_than_a_configuration() {
    let config = kimi_k3_oracle().join("config.json");
    let planned = json(&kimi(&["plan", path(&config), "--ram", "1GB", "--speed", "2", "--json"]));
    let run =
        json(&kimi(&["run", path(&kimi_k3_oracle()), "--ids", "1,2,3", "-n", "1", "--ignore-eos", "--json"]));
    assert_eq!(planned["tape_bytes"].as_u64(), Some(tape_bytes(&run)), "{planned}");
    assert!(planned["floor_bytes"].as_u64() < Some(1_000_000_000));
}

fn tape_bytes(report: &Value) -> u64 {
    report["bytes_read"]["trunk"].as_u64().unwrap() + report["bytes_read"]["head"].as_u64().unwrap()
}

#[test]
fn the_full_k3_is_planned_by_name_as_released_and_packed() {
    let read = |arguments: &[&str]| {
        let all =
            [&["plan", "k3", "--ram", "8GB", "--kv", "bf16", "--chunk", "3", "--json"], arguments].concat();
        json(&kimi(&all))["bytes_per_token_total"].as_f64().unwrap() / 1e9
    };
    // The bounds are those of docs/performance.md.
    for (arguments, most) in [(&[][..], 130.0), (&["--trunk", "bf12"], 102.3), (&["--trunk", "i4"], 52.5)] {
        let found = read(arguments);
        assert!(found < most && found > 0.95 * most, "{arguments:?}: {found}");
    }
    let output = kimi(&["plan", "k3", "--ram", "300MB", "--kv", "bf16"]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_single_file_does_whatever_a_folder_does() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, file) = (dir.path().join("packed"), dir.path().join("kimi-k3-4bit-8b.gguf"));
    json(&kimi(&["pack", path(&demo_model()), path(&packed), "--preset", "small", "--json"]));
    let single = ["pack", path(&packed), path(&file), "--single-file", "--json"];
    let dry = json(&kimi(&[&single[..], &["--dry-run"]].concat()));
    assert!(!file.exists() && dry["files"] == 1, "{dry}");
    let report = json(&kimi(&single));
    assert_eq!(report["packed_bytes"], dry["packed_bytes"]);
    assert_eq!(report["packed_bytes"].as_u64(), Some(std::fs::metadata(&file).unwrap().len()));
    let [a, b] = [&packed, &file].map(|model| logits(model, &dir.path().join("logits")));
    assert!(a == b);

    let both = |arguments: &dyn Fn(&str) -> Vec<String>| {
        [&packed, &file].map(|model| {
            let arguments = arguments(path(model));
            let output = kimi(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        })
    };
    let text = dir.path().join("text");
    std::fs::write(&text, "The king said that the woman was here.").unwrap();
    let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for command in [
        "run MODEL Once --seed 1 -n 8 -q",
        "chat MODEL --once Hello -n 8 -q --no-think",
        "tokenize --model MODEL Hello",
        "eval MODEL --text TEXT --window 8 --json",
        "plan MODEL --ram 1GB --speed 1 --json",
        "inspect MODEL --json",
        "verify MODEL -q",
    ] {
        let [a, b] = both(&|model| {
            words(command)
                .into_iter()
                .map(|word| word.replace("MODEL", model).replace("TEXT", path(&text)))
                .collect()
        });
        if !command.ends_with("--json") {
            assert_eq!(a, b, "{command}");
            continue;
        }
        let [a, b] = [a, b].map(|json| serde_json::from_str::<Value>(&json).unwrap());
        for key in ["nats_per_token", "tape_bytes", "bytes_per_token", "encodings", "recipe", "lossless"] {
            assert_eq!(a[key], b[key], "{command}: {key}");
        }
        for part in ["trunk", "experts", "embedding", "head", "other"] {
            assert_eq!(a["parts"][part], b["parts"][part], "{part}");
        }
    }
    let verified = json(&kimi(&["verify", path(&file), "--json"]));
    assert_eq!((&verified["checksums"], &verified["damages"]), (&true.into(), &serde_json::json!([])));
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let damaged = kimi(&["verify", path(&file)]);
    assert_eq!(damaged.status.code(), Some(4), "{}", String::from_utf8_lossy(&damaged.stdout));
}

#[test]
fn a_released_model_becomes_a_single_file_packed_or_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, as_is) = (dir.path().join("packed"), dir.path().join("as-is"));
    let source = demo_model();
    json(&kimi(&["pack", path(&source), path(&packed), "--single-file", "--json"]));
    json(&kimi(&["pack", path(&source), path(&as_is), "--single-file", "--as-is", "--json"]));
    let expected = logits(&source, &dir.path().join("logits"));
    for (file, is_packed) in [(&packed, true), (&as_is, false)] {
        assert!(logits(file, &dir.path().join("logits")) == expected, "{}", file.display());
        let inspected = json(&kimi(&["inspect", path(file), "--json"]));
        assert_eq!(inspected["lossless"].is_boolean(), is_packed, "{inspected}");
    }
    assert!(std::fs::metadata(&packed).unwrap().len() < std::fs::metadata(&as_is).unwrap().len());

    for (arguments, message) in [
        (&["pack", path(&packed), "x", "--single-file", "--trunk", "i4"][..], "is joined as it is"),
        (&["pack", path(&source), "x", "--as-is"], "--single-file"),
        (&["pack", path(&source), path(&as_is), "--single-file"], "is there already"),
        (&["run", path(&source.join("config.json")), "Once"], "begins with"),
    ] {
        let output = kimi(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(message), "{arguments:?}: {stderr}");
    }
    let gguf = dir.path().join("model.gguf");
    std::fs::write(&gguf, b"GGUF\x03\0\0\0").unwrap();
    for command in ["run", "chat", "inspect", "plan", "verify", "tokenize --model"] {
        let words: Vec<_> = command.split(' ').chain([path(&gguf)]).collect();
        let output = kimi(&words);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("model.gguf: is a GGUF file"), "{command}: {stderr}");
    }
}

#[test]
fn a_file_that_was_killed_anywhere_is_not_there_or_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, whole, killed) =
        (dir.path().join("packed"), dir.path().join("whole"), dir.path().join("killed"));
    json(&kimi(&["pack", path(&demo_model()), path(&packed), "--json"]));
    json(&kimi(&["pack", path(&packed), path(&whole), "--single-file", "--json"]));
    let whole = std::fs::read(&whole).unwrap();
    for milliseconds in [1, 3, 6, 10, 15, 20, 30, 50] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kimi-cli"))
            .args(["pack", path(&packed), path(&killed), "--single-file", "-q"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        // It may have ended.
        let _ = child.kill();
        child.wait().unwrap();
        if killed.exists() {
            assert!(std::fs::read(&killed).unwrap() == whole, "after {milliseconds} ms");
            std::fs::remove_file(&killed).unwrap();
        }
    }
    json(&kimi(&["pack", path(&packed), path(&killed), "--single-file", "--json"]));
    assert!(std::fs::read(&killed).unwrap() == whole);
    assert!(!dir.path().join("killed.partial").exists());
}
