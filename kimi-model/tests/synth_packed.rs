//! Synthetic models that are packed from the start: the files that packing gives, and sparse ones with the same numbers.

mod support;

#[path = "support/geometries.rs"]
mod geometries;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use geometries::{geometry, small, small_deepseek};
use kimi_model::pack::{PackOptions, PackReport, Recipe, pack};
use kimi_model::synth::{Geometry, PackedSynthError, SynthOptions, synthesize, synthesize_packed};
use kimi_model::verify::verify;
use kimi_model::{Check, Error};
use serde_json::{Value, json};
use support::{engine, feed, open};

fn recipe(trunk: &str, experts: Option<&str>) -> Recipe {
    let mut recipe = Recipe::new(trunk.parse().unwrap());
    recipe.experts = experts.map(|experts| experts.parse().unwrap());
    recipe
}

fn options(sparse: bool) -> SynthOptions {
    let mut options = SynthOptions::default();
    (options.sparse, options.seed) = (sparse, 3);
    options
}

fn make(geometry: &Geometry, dir: &Path, sparse: bool, recipe: Recipe) -> PackReport {
    synthesize_packed(geometry, dir, options(sparse), recipe, &|_| (), &AtomicBool::new(false)).unwrap()
}

/// The model in the released layout, and packed from it.
fn make_and_pack(geometry: &Geometry, dir: &Path, sparse: bool, recipe: Recipe) {
    let (source, target) = (dir.join("source"), dir.join("packed"));
    synthesize(geometry, &source, options(sparse), &|_| (), &AtomicBool::new(false)).unwrap();
    let options = PackOptions::new(recipe);
    pack(&open(&source), &source, &target, &options, &|_| (), &AtomicBool::new(false)).unwrap();
}

/// Names and contents of the files with tensors.
fn tensors(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let tensors = files.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    tensors
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect()
}

fn logits(dir: &Path) -> Vec<u32> {
    let mut engine = engine(dir, |options| options.check = Check::All);
    let mut session = engine.session().unwrap();
    let logits = feed(&mut engine, &mut session, &[3, 250, 77, 3, 100, 319], 4).concat();
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The geometries and how they are packed.
fn cases() -> Vec<(Value, Recipe)> {
    let mut int4 = small_deepseek();
    int4["quantization_config"] = json!({"quant_method": "compressed-tensors", "format": "pack-quantized"});
    let mut fp8 = small_deepseek();
    fp8["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    vec![
        (small(5), recipe("bf12", None)),
        (small(5), recipe("i4:g32:cb", Some("i3:g32"))),
        (small(5), recipe("i8:g128", Some("bf16"))),
        (small_deepseek(), recipe("i2:g32:zp", None)),
        (small_deepseek(), recipe("mxfp4", Some("mxfp4"))),
        (int4, recipe("bf12", None)),
        (fp8.clone(), recipe("bf12", None)),
        (fp8, recipe("i6:g64", Some("i4:g32"))),
    ]
}

#[test]
fn the_files_are_those_of_packing_the_model() {
    for (i, (config, recipe)) in cases().into_iter().enumerate() {
        let (dir, geometry) = (tempfile::tempdir().unwrap(), geometry(&config));
        make_and_pack(&geometry, dir.path(), false, recipe.clone());
        let own = dir.path().join("own");
        make(&geometry, &own, false, recipe);
        let expected = tensors(&dir.path().join("packed"));
        let found = tensors(&own);
        assert!(found.keys().eq(expected.keys()), "case {i}");
        for (name, bytes) in &expected {
            assert!(found[name] == *bytes, "case {i}: {name}");
        }
    }
}

#[test]
fn a_sparse_model_has_the_numbers_of_packing_one() {
    for (i, (config, recipe)) in cases().into_iter().enumerate() {
        let (dir, geometry) = (tempfile::tempdir().unwrap(), geometry(&config));
        make_and_pack(&geometry, dir.path(), true, recipe.clone());
        let own = dir.path().join("own");
        let report = make(&geometry, &own, true, recipe);
        let expected = dir.path().join("packed");
        assert_eq!(logits(&own), logits(&expected), "case {i}");
        let sizes = |dir: &Path| tensors(dir).values().map(|bytes| bytes.len() as u64).sum::<u64>();
        assert_eq!(sizes(&own), sizes(&expected), "case {i}");
        assert_eq!(report.packed_bytes, sizes(&own), "case {i}");
        // Every tile has its checksum, holes included.
        let verified = verify(&own, &|_| (), &AtomicBool::new(false)).unwrap().unwrap();
        assert!(verified.tiles > 0 && verified.damages.is_empty(), "case {i}: {:?}", verified.damages);
    }
}

#[cfg(unix)]
#[test]
fn holes_take_no_storage() {
    use std::os::unix::fs::MetadataExt;
    let (dir, mut config) = (tempfile::tempdir().unwrap(), small(2));
    config["text_config"]["intermediate_size"] = 65_536.into();
    let report = make(&geometry(&config), dir.path(), true, recipe("i4:g32", None));
    let files = std::fs::read_dir(dir.path()).unwrap();
    let stored: u64 = files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum();
    assert!(report.packed_bytes > 20_000_000 && stored < 6_000_000, "{stored} of {}", report.packed_bytes);
}

#[test]
fn a_run_goes_on_only_with_the_same_seed() {
    let (dir, geometry) = (tempfile::tempdir().unwrap(), geometry(&small(2)));
    let whole = dir.path().join("whole");
    make(&geometry, &whole, true, recipe("bf12", None));

    let target = dir.path().join("target");
    let (cancel, stop) = (AtomicBool::new(false), AtomicBool::new(true));
    let step = |progress: &kimi_model::pack::PackProgress| {
        let stop = stop.load(Ordering::Relaxed) && progress.file.contains("experts");
        cancel.store(stop, Ordering::Relaxed);
    };
    let run = |options: SynthOptions| {
        cancel.store(false, Ordering::Relaxed);
        synthesize_packed(&geometry, &target, options, recipe("bf12", None), &step, &cancel)
    };
    assert!(matches!(run(options(true)), Err(PackedSynthError::Pack(Error::Cancelled))));
    stop.store(false, Ordering::Relaxed);
    let mut other = options(true);
    other.seed += 1;
    let error = run(other).unwrap_err().to_string();
    assert!(error.contains("synthetic was 3, sparse, now 4, sparse"), "{error}");
    let error = run(options(false)).unwrap_err().to_string();
    assert!(error.contains("synthetic was 3, sparse, now 3"), "{error}");
    assert!(run(options(true)).unwrap().resumed_files > 0);
    assert!(tensors(&target) == tensors(&whole));
}
