//! Synthetic models: the released tensors, weights that depend on the seed alone, and logits that depend on every weight.

mod support;

#[path = "support/geometries.rs"]
mod geometries;

#[allow(dead_code, reason = "a part of the list is used")]
#[path = "../../kimi-paging/tests/support/k3.rs"]
mod k3;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use geometries::{geometry, small, small_deepseek};
use kimi_model::synth::{Geometry, SynthError, SynthOptions, SynthReport, synthesize};
use kimi_model::{Config, Model, Observer};
use kimi_testing::{kimi_k3_oracle, shared_data};
use serde_json::{Value, json};
use support::{engine, feed, feed_observed, open};

fn make(geometry: &Geometry, dir: &Path, change: impl FnOnce(&mut SynthOptions)) -> SynthReport {
    let mut options = SynthOptions::default();
    change(&mut options);
    synthesize(geometry, dir, options, &|_| {}, &AtomicBool::new(false)).unwrap()
}

/// Names and contents of all files.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let name = |path: &Path| PathBuf::from(path.file_name().unwrap());
    paths.into_iter().map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

const PROMPT: [u32; 6] = [3, 250, 77, 3, 100, 319];

/// Long enough that the bias of a router decides a choice.
fn long_prompt() -> Vec<u32> {
    (0..28).map(|i| i * 97 % 320).collect()
}

/// Logits after each token of a prompt, and the experts that each layer used.
fn run(dir: &Path, prompt: &[u32]) -> (Vec<f32>, Watched) {
    let mut engine = engine(dir, |_| {});
    let mut session = engine.session().unwrap();
    let mut watched = Watched::default();
    let logits = feed_observed(&mut engine, &mut session, prompt, 32, &mut watched);
    (logits.concat(), watched)
}

#[derive(Default)]
struct Watched {
    /// Layer and expert.
    experts: BTreeSet<(usize, u32)>,
    /// The root mean square of the sums behind each layer.
    rms: Vec<f32>,
}

impl Observer for Watched {
    fn layer(&mut self, _layer: usize, _layers: usize, sums: &[f32]) {
        self.rms.push((sums.iter().map(|sum| sum * sum).sum::<f32>() / sums.len() as f32).sqrt());
    }

    fn experts(&mut self, layer: usize, ids: &[u32], _weights: &[f32]) {
        self.experts.extend(ids.iter().map(|&id| (layer, id)));
    }
}

#[test]
fn k3_has_the_tensors_of_the_release() {
    let geometry = Geometry::k3();
    // The release has two more files, with projector and vision tower.
    assert_eq!(geometry.shards() + 2, k3::SHARDS);
    let (mut count, mut vision) = (0, 0);
    for shard in 0..k3::SHARDS {
        let mut released = BTreeSet::new();
        k3::shard_tensors(shard, |name, dtype, shape| {
            released.insert((name.to_owned(), dtype.to_owned(), shape.to_vec()));
        });
        if shard >= geometry.shards() {
            vision += released.len();
            continue;
        }
        let tensors = geometry.tensors(shard, true);
        count += tensors.len();
        let ours = tensors.into_iter().map(|tensor| (tensor.name, tensor.dtype.to_string(), tensor.shape));
        assert!(ours.collect::<BTreeSet<_>>() == released, "shard {shard}");
    }
    assert_eq!(count + vision, k3::TENSORS);
}

#[test]
fn the_built_in_configuration_is_the_released_one() {
    let Some(path) = shared_data("configs/kimi-k3.json") else { return };
    let released: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut released =
        Config::parse(released["config"].to_string().as_bytes(), Path::new("config.json")).unwrap();
    let ours = Geometry::k3();
    released.unknown = ours.config().unknown.clone();
    assert_eq!(*ours.config(), released);
}

#[test]
fn the_small_k3_is_an_eighth_as_wide() {
    let (k3, mini) = (Geometry::k3(), Geometry::k3_mini());
    let (k3, mini) = (k3.config(), mini.config());
    assert_eq!(mini.layers, k3.layers);
    assert_eq!((mini.hidden_size * 8, mini.intermediate_size * 8), (k3.hidden_size, k3.intermediate_size));
    let (mini_moe, moe) = (mini.moe.unwrap(), k3.moe.unwrap());
    assert_eq!((mini_moe.num_experts, mini_moe.num_experts_per_token), (112, 16));
    assert_eq!(mini_moe.latent_size.unwrap() * 8, moe.latent_size.unwrap());
    let bytes: u64 =
        (0..94).flat_map(|shard| Geometry::k3_mini().tensors(shard, false)).map(|t| t.bytes()).sum();
    assert_eq!(bytes, 5_158_386_176);
}

#[test]
fn the_planes_of_k3s_experts_begin_on_pages() {
    // Every plane has whole pages, so the first one decides.
    let tensors = Geometry::k3().tensors(1, true);
    let planes: Vec<_> = tensors.iter().filter(|tensor| tensor.name.contains(".experts.")).collect();
    assert_eq!(planes.len(), 896 * 6);
    assert!(planes.iter().all(|plane| plane.bytes().is_multiple_of(4096)));
    let dir = tempfile::tempdir().unwrap();
    let mut config = small(2);
    config["text_config"]["routed_expert_hidden_size"] = 4096.into();
    config["text_config"]["moe_intermediate_size"] = 128.into();
    make(&geometry(&config), dir.path(), |options| options.sparse = true);
    let model = open(dir.path());
    let expert = model
        .checkpoint()
        .index()
        .find("language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_packed");
    assert!(expert.unwrap().offset.is_multiple_of(4096));
}

#[test]
fn a_config_of_its_own_gives_the_tensors_of_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let json = fs::read(kimi_k3_oracle().join("config.json")).unwrap();
    let geometry = Geometry::from_json(&json, Path::new("config.json")).unwrap();
    make(&geometry, dir.path(), |_| {});
    assert_eq!(fs::read(dir.path().join("config.json")).unwrap(), json);
    let tensors = |dir: &Path| {
        let model = open(dir);
        let index = model.checkpoint().index();
        let ours = index.iter().filter(|(name, _)| name.starts_with("language_model."));
        ours.map(|(name, info)| format!("{name} {} {:?}", info.dtype, info.shape)).collect::<BTreeSet<_>>()
    };
    assert_eq!(tensors(dir.path()).symmetric_difference(&tensors(&kimi_k3_oracle())).count(), 0);
}

/// What a test does to a configuration.
type Change = fn(&mut Value);

#[test]
fn every_form_of_a_configuration_runs() {
    let dir = tempfile::tempdir().unwrap();
    let changes: [(&str, Change); 6] = [
        ("plain", |_| {}),
        ("flat", |config| {
            let text = config["text_config"].take();
            for (key, value) in text.as_object().unwrap() {
                config[key] = value.clone();
            }
        }),
        ("no latent, no shared experts", |config| {
            config["text_config"]["routed_expert_hidden_size"] = Value::Null;
            config["text_config"]["num_shared_experts"] = 0.into();
        }),
        ("no experts", |config| config["text_config"]["num_experts"] = Value::Null),
        ("plain residuals, tied", |config| {
            config["text_config"]["attn_res_block_size"] = Value::Null;
            config["tie_word_embeddings"] = true.into();
        }),
        ("low-rank gate, softplus, no latent norm", |config| {
            config["text_config"]["linear_attn_config"]["use_full_rank_gate"] = false.into();
            config["text_config"]["linear_attn_config"]["gate_lower_bound"] = Value::Null;
            config["text_config"]["latent_moe_use_norm"] = false.into();
            config["text_config"]["mla_use_output_gate"] = false.into();
        }),
    ];
    for (name, change) in changes {
        let mut config = small(5);
        change(&mut config);
        for sparse in [false, true] {
            let dir = dir.path().join(format!("{name} {sparse}"));
            make(&geometry(&config), &dir, |options| options.sparse = sparse);
            let (logits, _) = run(&dir, &PROMPT);
            let largest = logits.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
            assert!((0.5..100.0).contains(&largest), "{name} {sparse}: {largest}");
        }
    }
}

#[test]
fn every_storage_of_the_families_runs() {
    let dir = tempfile::tempdir().unwrap();
    for (name, quantization, experts) in [
        ("bf16", Value::Null, "bf16"),
        ("fp8", json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), "fp8"),
        ("int4", json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}), "int4"),
    ] {
        let mut config = small_deepseek();
        config["quantization_config"] = quantization;
        for sparse in [false, true] {
            let dir = dir.path().join(format!("{name} {sparse}"));
            make(&geometry(&config), &dir, |options| options.sparse = sparse);
            let (logits, _) = run(&dir, &PROMPT);
            let largest = logits.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
            assert!((0.5..100.0).contains(&largest), "{name} {sparse}: {largest}");
            let [trunk, of_experts, _] = open(&dir).encodings();
            assert_eq!(of_experts, ("experts", vec![experts.to_owned()]));
            assert_eq!(trunk.1.contains(&"fp8".to_owned()), name == "fp8");
            // A plan without weights is that of the model.
            let options = kimi_model::EngineOptions::default();
            let plan = |model| kimi_model::Plan::floor(&model, &options).unwrap().reads;
            assert_eq!(
                plan(Model::outline(&geometry(&config)).unwrap()),
                plan(Arc::into_inner(open(&dir)).unwrap())
            );
        }
    }
    let mut config = small_deepseek();
    config["quantization_config"] = json!({"quant_method": "awq"});
    let error = Geometry::from_json(config.to_string().as_bytes(), Path::new("config.json")).unwrap_err();
    assert!(error.to_string().contains("`awq` is not known"), "{error}");
}

/// Names and bytes of the tensors of a geometry.
fn sizes(geometry: &Geometry) -> (BTreeSet<String>, u64) {
    let tensors = (0..geometry.shards()).flat_map(|shard| geometry.tensors(shard, true));
    let (mut names, mut bytes) = (BTreeSet::new(), 0);
    for tensor in tensors {
        bytes += tensor.bytes();
        assert!(names.insert(tensor.name));
    }
    (names, bytes)
}

#[test]
fn the_other_families_have_their_released_size() {
    // 49.1, 16.0 and, of which 1,014.7 are experts, 1,026.5 thousand million weights.
    for (name, bytes, tensor) in [
        ("kimi-linear", 98.2e9, "model.layers.26.block_sparse_moe.experts.255.w2.weight"),
        ("moonlight", 31.9e9, "model.layers.26.mlp.experts.63.down_proj.weight"),
        ("k2", 594.0e9, "language_model.model.layers.60.mlp.experts.383.up_proj.weight_packed"),
    ] {
        let (names, found) = sizes(&Geometry::named(name).unwrap());
        assert!((found as f64 / bytes - 1.0).abs() < 0.01, "{name}: {found}");
        assert!(names.contains(tensor), "{tensor}");
    }
    assert!(Geometry::named("k9").is_none());
}

#[test]
fn activations_stay_of_a_size_through_all_layers() {
    let dir = tempfile::tempdir().unwrap();
    for sparse in [false, true] {
        let dir = dir.path().join(sparse.to_string());
        make(&geometry(&small(93)), &dir, |options| options.sparse = sparse);
        let (logits, watched) = run(&dir, &PROMPT);
        assert_eq!(watched.rms.len(), 93);
        for (layer, rms) in watched.rms.iter().enumerate() {
            assert!((0.02..50.0).contains(rms), "sparse {sparse}, layer {layer}: {rms}");
        }
        let std = (logits.iter().map(|logit| logit * logit).sum::<f32>() / logits.len() as f32).sqrt();
        assert!((1.0..4.0).contains(&std), "{std}");
    }
}

#[test]
fn a_seed_fixes_every_byte_whatever_the_threads() {
    let (dir, geometry) = (tempfile::tempdir().unwrap(), geometry(&small(5)));
    let make = |name: &str, sparse, seed, threads| {
        let dir = dir.path().join(name);
        let report = make(&geometry, &dir, |options| {
            (options.sparse, options.seed, options.threads) = (sparse, seed, Some(threads));
        });
        (contents(&dir), report)
    };
    for sparse in [false, true] {
        let (first, report) = make(&format!("{sparse} a"), sparse, 7, 1);
        assert!(first == make(&format!("{sparse} b"), sparse, 7, 3).0);
        assert!(first != make(&format!("{sparse} c"), sparse, 8, 1).0);
        assert_eq!(report.written_bytes == report.tensor_bytes, !sparse);
        // A value that may never change: models are told by geometry and seed.
        let digest = first.iter().flat_map(|file| &file.1).fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!(digest, if sparse { DIGESTS[1] } else { DIGESTS[0] }, "{digest:#x}");
    }
}

const DIGESTS: [u64; 2] = [0x37f5_3081_810a_e3fa, 0x314b_321f_8568_d12d];

/// Zeros a tensor's data in its file, runs, and puts the bytes back.
fn logits_without(dir: &Path, name: &str, prompt: &[u32]) -> Vec<f32> {
    let (path, offset, bytes) = {
        let model = open(dir);
        let index = model.checkpoint().index();
        let info = index.find(name).unwrap_or_else(|| panic!("{name}"));
        (index.source(info.source).name().to_path_buf(), info.offset as usize, info.bytes as usize)
    };
    let original = fs::read(&path).unwrap();
    let mut changed = original.clone();
    changed[offset..offset + bytes].fill(0);
    assert!(changed != original, "{name} holds only zeros");
    fs::write(&path, changed).unwrap();
    let logits = run(dir, prompt).0;
    fs::write(&path, original).unwrap();
    logits
}

#[test]
fn the_logits_of_a_sparse_model_depend_on_every_kind_of_tensor() {
    let (dir, geometry) = (tempfile::tempdir().unwrap(), geometry(&small(5)));
    let prompt = long_prompt();
    let report = make(&geometry, dir.path(), |options| options.sparse = true);
    assert!(report.written_bytes < report.tensor_bytes / 2);
    let (logits, watched) = run(dir.path(), &prompt);
    assert_eq!(logits, run(dir.path(), &prompt).0);
    let (layer, used) = *watched.experts.first().unwrap();
    assert_eq!(layer, 1);

    // A dense KDA layer, a KDA layer with experts, an MLA layer with experts, and what stands beside the layers.
    let mut changes = [0; 2];
    for shard in [0, 1, 3, 5] {
        for tensor in geometry.tensors(shard, true) {
            let expert = tensor.name.split_once(".experts.").map(|(_, rest)| rest.split('.').next().unwrap());
            if expert.is_some_and(|expert| shard != 1 || expert != used.to_string()) {
                continue;
            }
            // In front of the first layer there is nothing to mix.
            let idle = tensor.name.contains(".layers.0.self_attention_res");
            let changed = logits_without(dir.path(), &tensor.name, &prompt) != logits;
            assert_eq!(changed, !idle, "{}", tensor.name);
            changes[usize::from(changed)] += 1;
        }
    }
    // 14 tensors of KDA, 8 of MLA, 3 of a dense layer, 8 of a mixture of experts, 6 of an expert, 6 of any layer, 5 others.
    assert_eq!(changes, [2, (14 + 3 + 4) + (14 + 8 + 6 + 6) + (8 + 8 + 6) + 5]);
}

#[test]
fn every_used_expert_counts_and_an_unused_one_does_not() {
    let (dir, geometry) = (tempfile::tempdir().unwrap(), geometry(&small(3)));
    make(&geometry, dir.path(), |options| (options.sparse, options.seed) = (true, 1));
    let (logits, watched) = run(dir.path(), &PROMPT);
    for layer in [1, 2] {
        for expert in 0..8 {
            let name = format!(
                "language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight_packed"
            );
            let used = watched.experts.contains(&(layer, expert));
            // A change in one layer may change the choice in the next; an expert that nobody chose changes nothing.
            assert_eq!(logits_without(dir.path(), &name, &PROMPT) != logits, used, "{name}");
        }
    }
}

#[test]
fn threads_and_chunks_of_the_engine_do_not_change_the_logits() {
    let dir = tempfile::tempdir().unwrap();
    make(&geometry(&small(5)), dir.path(), |options| options.sparse = true);
    let expected = run(dir.path(), &PROMPT).0;
    for (threads, chunk) in [(1, 1), (2, 4)] {
        let mut engine = engine(dir.path(), |options| options.threads = Some(threads));
        let mut session = engine.session().unwrap();
        assert_eq!(feed(&mut engine, &mut session, &PROMPT, chunk).concat(), expected);
    }
}

#[test]
fn holes_take_no_storage() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = small(2);
    config["text_config"]["intermediate_size"] = 65_536.into();
    let report = make(&geometry(&config), dir.path(), |options| options.sparse = true);
    assert!(report.tensor_bytes > 100_000_000);
    if let Some(stored) = report.stored_bytes {
        assert!(stored < 10_000_000, "{stored}");
        assert!(stored >= report.written_bytes, "{stored}");
    }
}

#[test]
fn a_cancelled_run_leaves_nothing_that_looks_like_a_model() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, geometry) = (parent.path().join("model"), geometry(&small(5)));
    let unfinished = || {
        let mut paths = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        paths.all(|path| path.extension().is_some_and(|end| end == "synth-partial"))
    };
    let (cancel, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let half = |progress: kimi_model::synth::SynthProgress| {
        calls.fetch_add(1, Ordering::Relaxed);
        if progress.done_bytes > progress.total_bytes / 2 {
            assert!(unfinished());
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let error = synthesize(&geometry, &dir, SynthOptions::default(), &half, &cancel).unwrap_err();
    assert!(matches!(error, SynthError::Cancelled), "{error}");
    assert!(calls.into_inner() > 1 && unfinished());

    // What is left is in nobody's way.
    make(&geometry, &dir, |_| {});
    let fresh = parent.path().join("fresh");
    make(&geometry, &fresh, |_| {});
    assert!(contents(&dir) == contents(&fresh));
}

#[test]
fn a_folder_with_a_model_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let geometry = geometry(&small(2));
    make(&geometry, dir.path(), |_| {});
    let before = contents(dir.path());
    let options = SynthOptions::default();
    let error = synthesize(&geometry, dir.path(), options, &|_| {}, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error}");
    assert!(before == contents(dir.path()));
}

#[cfg(unix)]
#[test]
fn a_model_that_no_drive_holds_is_refused_before_it_is_begun() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("model");
    let mut config = small(4096);
    config["text_config"]["num_experts"] = Value::Null;
    config["text_config"]["intermediate_size"] = (1 << 20).into();
    config["text_config"]["hidden_size"] = (1 << 20).into();
    config["text_config"]["attn_res_block_size"] = 4096.into();
    let (options, begun) = (SynthOptions::default(), |_| panic!("nothing is written"));
    let error = synthesize(&geometry(&config), &dir, options, &begun, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, SynthError::NoSpace { needed, .. } if needed > 1 << 54), "{error}");
    assert!(!dir.exists());
}

#[test]
fn configurations_that_cannot_be_made_are_refused_by_field() {
    for (field, value) in [("routed_expert_hidden_size", 100), ("moe_intermediate_size", 80)] {
        let mut config = small(2);
        config["text_config"][field] = value.into();
        let refused = Geometry::from_json(config.to_string().as_bytes(), Path::new("x.json")).unwrap_err();
        assert!(refused.to_string().contains(field) && refused.to_string().contains("x.json"), "{refused}");
    }
    assert!(Geometry::from_json(b"{\"model_type\": \"llama\"}", Path::new("x.json")).is_err());
}
