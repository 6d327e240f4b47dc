//! Packed models: the same numbers as their source, and nothing partial trusted.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kimi_model::pack::{PackOptions, PackReport, Recipe, estimate, pack};
use kimi_model::unpack::unpack;
use kimi_model::verify::verify;
use kimi_model::{Arith, Check, Error, PassOptions};
use kimi_testing::{demo_model, kimi_k3_oracle};
use support::{engine, feed, open, tensors_of};

fn recipe(trunk: &str) -> Recipe {
    Recipe::new(trunk.parse().unwrap())
}

fn packed(source: &Path, target: &Path, recipe: Recipe) -> PackReport {
    let options = PackOptions::new(recipe);
    pack(&open(source), source, target, &options, &|_| (), &AtomicBool::new(false)).unwrap()
}

fn logits(dir: &Path, arith: Arith) -> Vec<f32> {
    let mut engine = engine(dir, |options| {
        options.arith = arith;
        options.check = Check::All;
    });
    let mut session = engine.session().unwrap();
    feed(&mut engine, &mut session, &[1, 17, 30, 5, 9, 2, 44], 3).concat()
}

#[test]
fn a_lossless_model_gives_the_bits_of_its_source() {
    for source in [kimi_k3_oracle(), demo_model()] {
        let expected = logits(&source, Arith::Exact);
        for trunk in ["bf16", "bf12"] {
            let dir = tempfile::tempdir().unwrap();
            let report = packed(&source, dir.path(), recipe(trunk));
            assert!(report.lossless, "{trunk}");
            assert!(logits(dir.path(), Arith::Exact) == expected, "{trunk}");
        }
    }
}

#[test]
fn low_bit_models_are_near_their_source_in_both_tiers() {
    let source = demo_model();
    let expected = logits(&source, Arith::Exact);
    let spread = rms(&expected);
    for (trunk, experts, most) in [("i8", None, 0.1), ("i4", None, 0.25), ("i4:g32:cb", Some("i4"), 0.25)] {
        let dir = tempfile::tempdir().unwrap();
        let mut recipe = recipe(trunk);
        recipe.experts = experts.map(|experts| experts.parse().unwrap());
        let report = packed(&source, dir.path(), recipe);
        assert!(!report.lossless);
        for arith in [Arith::Exact, Arith::Fast] {
            let found = logits(dir.path(), arith);
            let difference: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| a - b).collect();
            let error = rms(&difference) / spread;
            assert!(error > 0.0 && error < most, "{trunk} {arith}: {error}");
        }
    }
}

fn rms(values: &[f32]) -> f32 {
    (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
}

#[test]
fn unpacking_gives_every_tensor_of_the_source_back() {
    for source in [kimi_k3_oracle(), demo_model()] {
        let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        packed(&source, dir.path(), recipe("bf12"));
        let report = unpack(dir.path(), back.path(), false, &|_| (), &AtomicBool::new(false)).unwrap();
        let (expected, found) = (tensors_of(&source), tensors_of(back.path()));
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, tensor) in &expected {
            let found = &found[name];
            assert_eq!((found.dtype, &found.shape), (tensor.dtype, &tensor.shape), "{name}");
            assert!(found.bytes == tensor.bytes, "{name}");
        }
        assert!(report.verified > 0 && report.lossy == 0);
        assert_eq!(report.tensors, expected.len() as u64);
    }
}

#[test]
fn what_was_lost_is_unpacked_only_when_asked_for() {
    let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    packed(&kimi_k3_oracle(), dir.path(), recipe("i4"));
    let never = AtomicBool::new(false);
    let refused = unpack(dir.path(), back.path(), false, &|_| (), &never).unwrap_err();
    assert!(refused.to_string().contains("--lossy"), "{refused}");
    let report = unpack(dir.path(), back.path(), true, &|_| (), &never).unwrap();
    assert!(report.lossy > 0);
    assert!(logits(back.path(), Arith::Exact).iter().all(|logit| logit.is_finite()));
}

#[test]
fn a_flipped_bit_is_found_with_its_file_tensor_and_tile() {
    let dir = tempfile::tempdir().unwrap();
    packed(&kimi_k3_oracle(), dir.path(), recipe("i8"));
    let check = || verify(dir.path(), &|_| (), &AtomicBool::new(false)).unwrap().unwrap();
    let whole = check();
    assert!(whole.damages.is_empty() && whole.tiles > 0, "{:?}", whole.damages);
    let mut random = kimi_testing::Seeded::new(7);
    let mut files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "safetensors"));
    files.sort();
    for file in &files {
        let bytes = std::fs::read(file).unwrap();
        for _ in 0..8 {
            let (at, bit) = (random.below(bytes.len()), random.below(8));
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            std::fs::write(file, &damaged).unwrap();
            let found = check().damages;
            let name = file.file_name().unwrap().to_string_lossy();
            assert!(!found.is_empty() && found.iter().all(|damage| damage.file == name), "{name} {at}");
        }
        std::fs::write(file, &bytes).unwrap();
    }

    // A bit of a tile's weights is found by tile, and stops a model that checks what it reads.
    let file = dir.path().join("layer-00001.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[8 + header + 64] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let damages = check().damages;
    assert_eq!((damages.len(), damages[0].tile), (1, Some(0)), "{damages:?}");
    assert!(damages[0].tensor.ends_with(".weight"), "{damages:?}");
    let mut engine = engine(dir.path(), |options| options.check = Check::All);
    let mut session = engine.session().unwrap();
    let error = engine.forward(&mut session, &[1], PassOptions::default()).unwrap_err();
    assert!(matches!(&error, Error::Tile { tensor, tile: 0, .. } if *tensor == damages[0].tensor), "{error}");
}

#[test]
fn an_interrupted_run_goes_on_and_ends_with_the_same_files() {
    let source = kimi_k3_oracle();
    let whole = tempfile::tempdir().unwrap();
    packed(&source, whole.path(), recipe("bf12"));
    let expected = digest(whole.path());

    let model = open(&source);
    let options = PackOptions::new(recipe("bf12"));
    let dir = tempfile::tempdir().unwrap();
    let mut runs = 0;
    loop {
        // Every run finishes two files and stops inside the third.
        let (cancel, files) = (AtomicBool::new(false), std::cell::RefCell::new(BTreeSet::new()));
        let step = |progress: &kimi_model::pack::PackProgress| {
            files.borrow_mut().insert(progress.file.clone());
            cancel.store(files.borrow().len() == 3, std::sync::atomic::Ordering::Relaxed);
        };
        runs += 1;
        match pack(&model, &source, dir.path(), &options, &step, &cancel) {
            Ok(report) => {
                assert!(report.resumed_files > 0);
                break;
            }
            Err(Error::Cancelled) => {
                let error = kimi_model::Model::open(dir.path(), &mut |_| unreachable!()).unwrap_err();
                assert!(error.to_string().contains("packing is not finished"), "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(runs > 3, "{runs}");
    assert_eq!(digest(dir.path()), expected);
}

/// Names and contents of a folder's files.
fn digest(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_run_does_not_go_on_with_other_options_or_another_model() {
    let source = kimi_k3_oracle();
    let dir = tempfile::tempdir().unwrap();
    let cancel = AtomicBool::new(false);
    let stop = |progress: &kimi_model::pack::PackProgress| {
        cancel.store(progress.done_bytes > progress.total_bytes / 2, std::sync::atomic::Ordering::Relaxed);
    };
    let run = |source: &Path, recipe: Recipe, cancel: &AtomicBool| {
        let options = PackOptions::new(recipe);
        pack(&open(source), source, dir.path(), &options, &stop, cancel).unwrap_err().to_string()
    };
    assert_eq!(run(&source, recipe("bf12"), &cancel), "cancelled");
    let never = AtomicBool::new(false);
    let message = run(&source, recipe("i4"), &never);
    assert!(message.contains("trunk was bf12, now i4:g32"), "{message}");
    let message = run(&demo_model(), recipe("bf12"), &never);
    assert!(message.contains("another model"), "{message}");

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("notes.txt"), "mine").unwrap();
    let options = PackOptions::new(recipe("bf12"));
    let error = pack(&open(&source), &source, other.path(), &options, &stop, &never).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
}

#[test]
fn the_estimate_is_what_is_written() {
    let source = demo_model();
    for trunk in ["i4", "i8", "bf16", "bf12"] {
        let dir = tempfile::tempdir().unwrap();
        let expected = estimate(&open(&source), &recipe(trunk)).unwrap();
        let found = packed(&source, dir.path(), recipe(trunk));
        let sum = |report: &PackReport| report.encodings.iter().map(|size| size.bytes).sum::<u64>();
        let ratio = sum(&found) as f64 / sum(&expected) as f64;
        assert!((ratio - 1.0).abs() < if trunk == "bf12" { 0.02 } else { 1e-9 }, "{trunk}: {ratio}");
    }
}

#[test]
fn storage_of_the_source_is_freed_only_after_what_it_became_was_checked() {
    let (source, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    support::copy(&kimi_k3_oracle(), source.path());
    let mut options = PackOptions::new(recipe("bf12"));
    options.reclaim = true;
    let model = open(source.path());
    let report = pack(&model, source.path(), dir.path(), &options, &|_| (), &AtomicBool::new(false));
    let report = match report {
        Ok(report) => report,
        // Some file systems cannot; nothing is lost then.
        Err(error) => return assert!(error.to_string().contains("free the storage"), "{error}"),
    };
    assert!(report.reclaimed_bytes > 0);
    assert!(logits(dir.path(), Arith::Exact) == logits(&kimi_k3_oracle(), Arith::Exact));
}

#[test]
fn what_was_measured_of_a_drive_is_kept_with_the_model_and_not_packed() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    support::copy(&demo_model(), source.path());
    let direct = |path: &Path| -> std::sync::Arc<dyn kimi_paging::Source> {
        std::sync::Arc::new(kimi_paging::FileSource::open_direct(path).unwrap())
    };
    let model = support::open_with(source.path(), direct);
    let first = kimi_model::tuning::read_settings(&model, Some(1 << 30)).unwrap();
    let kept = source.path().join("kimi-tuning.json");
    // Where direct reads are refused there is nothing to measure.
    if kept.is_file() {
        let mut other: serde_json::Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
        other["settings"] =
            serde_json::json!({ "executor": "threads", "depth": 3, "request_bytes": 1 << 20 });
        std::fs::write(&kept, other.to_string()).unwrap();
        let again = kimi_model::tuning::read_settings(&model, None).unwrap();
        assert_eq!((again.executor, again.depth), (kimi_paging::Executor::Threads, 3), "{first:?}");
        std::fs::write(&kept, "{}").unwrap();
        kimi_model::tuning::read_settings(&model, None).unwrap();
    }
    packed(source.path(), target.path(), recipe("bf16"));
    assert!(target.path().join("tiktoken.model").is_file());
    assert!(!target.path().join("kimi-tuning.json").exists());
}
