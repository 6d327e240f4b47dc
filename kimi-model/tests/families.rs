//! The families beside K3: every way to store and run them gives the same bits.

mod support;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use kimi_model::pack::{PackOptions, Recipe, pack};
use kimi_model::unpack::unpack;
use kimi_model::verify::verify;
use kimi_model::{Check, Plan};
use kimi_testing::same_bits;
use serde_json::{Value, json};
use support::{
    FAMILIES, READERS, Tensor, engine, engine_of, family, feed, golden, ids, open, open_with, rewrite,
    tensors_of,
};

/// The logits of the fixture's prompt.
fn logits(dir: &Path, prompt: &[u32]) -> Vec<f32> {
    let mut engine = engine(dir, |options| options.check = Check::All);
    let mut session = engine.session().unwrap();
    feed(&mut engine, &mut session, prompt, 9).concat()
}

fn prompt(dir: &Path) -> Vec<u32> {
    ids(&golden(dir)["input_ids"])
}

#[test]
fn memory_and_readers_do_not_change_a_bit() {
    for name in FAMILIES {
        let dir = family(name);
        let prompt = prompt(&dir);
        let expected = logits(&dir, &prompt);
        for (reader, open) in READERS {
            // From little over the floor, where nothing is pinned, up to all weights in memory. The floor moves with the
            // process, which other tests share.
            for extra in [8u64 << 20, 10 << 20, 64 << 20] {
                let model = open_with(&dir, open);
                let mut options = kimi_model::EngineOptions::default();
                (options.positions, options.columns) = (64, 12);
                let floor = Plan::floor(&model, &options).unwrap().total_bytes();
                let mut engine = engine_of(model, |changed| {
                    (changed.positions, changed.columns) = (options.positions, options.columns);
                    changed.ram_bytes = Some(floor + extra);
                });
                let mut session = engine.session().unwrap();
                let found = feed(&mut engine, &mut session, &prompt, 7).concat();
                assert!(same_bits(&found, &expected), "{name}, {reader}, {extra} bytes over the floor");
                assert!(engine.budget().peak_bytes() <= engine.budget().limit_bytes());
            }
        }
    }
}

#[test]
fn packed_models_keep_the_bits_and_give_the_source_back() {
    let never = AtomicBool::new(false);
    for name in FAMILIES {
        let source = family(name);
        let prompt = prompt(&source);
        let expected = logits(&source, &prompt);
        for trunk in ["bf16", "bf12"] {
            let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let options = PackOptions::new(Recipe::new(trunk.parse().unwrap()));
            let report = pack(&open(&source), &source, dir.path(), &options, &|_| (), &never).unwrap();
            assert!(report.lossless, "{name} {trunk}");
            assert!(same_bits(&logits(dir.path(), &prompt), &expected), "{name} {trunk}");
            assert!(verify(dir.path(), &|_| (), &never).unwrap().unwrap().damages.is_empty());
            unpack(dir.path(), back.path(), false, &|_| (), &never).unwrap();
            let (original, found) = (tensors_of(&source), tensors_of(back.path()));
            assert_eq!(found.keys().collect::<Vec<_>>(), original.keys().collect::<Vec<_>>());
            for (tensor, original) in &original {
                let found = &found[tensor];
                assert_eq!((found.dtype, &found.shape), (original.dtype, &original.shape), "{tensor}");
                assert!(found.bytes == original.bytes, "{name}: {tensor}");
            }
        }
    }
}

/// BF16 values as F32.
fn widen(tensor: &mut Tensor) {
    if tensor.dtype == safetensors::Dtype::BF16 {
        tensor.dtype = safetensors::Dtype::F32;
        tensor.bytes =
            tensor.bytes.as_chunks::<2>().0.iter().flat_map(|half| [0, 0, half[0], half[1]]).collect();
    }
}

/// What a test does to the tensors of a checkpoint.
type Change = fn(&mut Vec<Tensor>);

#[test]
fn other_spellings_of_the_same_model_give_the_same_bits() {
    fn rename(tensors: &mut [Tensor], pairs: &[(&str, &str)]) {
        for (from, to) in pairs {
            tensors.iter_mut().for_each(|tensor| tensor.name = tensor.name.replacen(from, to, 1));
        }
    }
    const NAMES: [(&str, &str); 4] = [
        ("w1.weight", "gate_proj.weight"),
        ("w3.weight", "up_proj.weight"),
        ("w2.weight", "down_proj.weight"),
        ("block_sparse_moe", "mlp"),
    ];
    let changes: [(&str, Change); 6] = [
        ("as released", |_| {}),
        ("DeepSeek's names", |tensors| rename(tensors, &NAMES)),
        ("Kimi's names", |tensors| {
            let is_expert = |tensor: &&mut Tensor| tensor.name.contains(".experts.");
            for tensor in tensors.iter_mut().filter(is_expert) {
                rename(std::slice::from_mut(tensor), &NAMES.map(|(to, from)| (from, to)));
            }
            for part in [".mlp.gate.", ".mlp.shared_experts."] {
                rename(tensors, &[(part, &part.replace("mlp", "block_sparse_moe"))]);
            }
        }),
        ("a prefix, or none", |tensors| {
            for tensor in tensors {
                match tensor.name.strip_prefix("language_model.") {
                    Some(rest) => tensor.name = rest.to_owned(),
                    None => tensor.name.insert_str(0, "language_model."),
                }
            }
        }),
        ("small tensors in F32", |tensors| {
            let ends = ["norm.weight", "conv1d.weight", "e_score_correction_bias", "dt_bias", "A_log"];
            tensors
                .iter_mut()
                .filter(|tensor| ends.iter().any(|end| tensor.name.ends_with(end)))
                .for_each(widen);
        }),
        ("what belongs to no layer of the text model", |tensors| {
            let like = |name: &str| Tensor { name: name.to_owned(), ..tensors[0].clone() };
            let more = [
                like("model.layers.0.self_attn.rotary_emb.inv_freq"),
                // The block that predicts one token more is stored behind the last layer.
                like("model.layers.6.eh_proj.weight"),
                like("model.layers.6.mlp.experts.0.gate_proj.weight"),
                like("vision_tower.novel.weight"),
            ];
            tensors.extend(more);
        }),
    ];
    for name in FAMILIES {
        let source = family(name);
        let prompt = &prompt(&source)[..6];
        let expected = logits(&source, prompt);
        for (what, change) in changes {
            let copy = tempfile::tempdir().unwrap();
            rewrite(&source, copy.path(), change);
            assert!(same_bits(&logits(copy.path(), prompt), &expected), "{name}: {what}");
        }
    }
}

/// Rewrites the configuration in a folder.
fn configure(dir: &Path, change: impl FnOnce(&mut Value)) {
    let path = dir.join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

#[test]
fn a_tied_head_is_the_embedding() {
    let source = family("deepseek_v3_moonlight");
    let prompt = &prompt(&source)[..6];
    let (tied, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    rewrite(&source, tied.path(), |tensors| tensors.retain(|tensor| tensor.name != "lm_head.weight"));
    configure(tied.path(), |config| config["tie_word_embeddings"] = json!(true));
    rewrite(&source, copied.path(), |tensors| {
        let find = |name: &str| tensors.iter().position(|tensor| tensor.name == name).unwrap();
        let (head, embedding) = (find("lm_head.weight"), find("model.embed_tokens.weight"));
        tensors[head].bytes = tensors[embedding].bytes.clone();
    });
    assert!(same_bits(&logits(tied.path(), prompt), &logits(copied.path(), prompt)));
}

/// Names of models decide nothing: only the fields do.
#[test]
fn the_name_of_the_model_type_does_not_matter() {
    for name in FAMILIES {
        let source = family(name);
        let prompt = &prompt(&source)[..6];
        let expected = logits(&source, prompt);
        let copy = tempfile::tempdir().unwrap();
        rewrite(&source, copy.path(), |_| {});
        for other in kimi_model::config::MODEL_TYPES {
            configure(copy.path(), |config| config["model_type"] = json!(other));
            assert!(same_bits(&logits(copy.path(), prompt), &expected), "{name} as {other}");
        }
    }
}

#[test]
fn rotations_are_those_of_the_reference() {
    for name in FAMILIES {
        let (dir, golden) = (family(name), golden(&family(name)));
        let model = open(&dir);
        let rope = &model.config().mla.rope;
        let Some(expected) = golden.get("rope.cos").zip(golden.get("rope.sin")) else {
            assert!(rope.is_none(), "{name}");
            continue;
        };
        let rope = rope.as_ref().unwrap();
        let pairs = rope.frequencies.len();
        for position in 0..expected.0.len() / pairs {
            for (j, frequency) in rope.frequencies.iter().enumerate() {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let at = position * pairs + j;
                for (found, expected) in [(cos, expected.0[at]), (sin, expected.1[at])] {
                    // The reference rounds frequencies to float32.
                    assert!(
                        (found * rope.magnitude - f64::from(expected)).abs() < 5e-6,
                        "{name} {position} {j}"
                    );
                }
            }
        }
    }
}

/// Decoded numbers are float32: stored as such, they give the same bits.
#[test]
fn a_source_packed_as_float32_gives_the_same_bits() {
    let never = AtomicBool::new(false);
    for name in ["deepseek_v3_int4", "deepseek_v3_fp8"] {
        let source = family(name);
        let prompt = prompt(&source);
        let dir = tempfile::tempdir().unwrap();
        let mut recipe = Recipe::new("f32".parse().unwrap());
        recipe.experts = Some("f32".parse().unwrap());
        let options = PackOptions::new(recipe);
        pack(&open(&source), &source, dir.path(), &options, &|_| (), &never).unwrap();
        assert!(tensors_of(dir.path()).keys().all(|name| !name.contains("weight_scale")), "{name}");
        assert!(same_bits(&logits(dir.path(), &prompt), &logits(&source, &prompt)), "{name}");
    }
}

#[test]
fn nothing_else_is_made_fp8() {
    let source = family("deepseek_v3_moonlight");
    let dir = tempfile::tempdir().unwrap();
    let options = PackOptions::new(Recipe::new("fp8".parse().unwrap()));
    let error = pack(&open(&source), &source, dir.path(), &options, &|_| (), &AtomicBool::new(false));
    let message = error.unwrap_err().to_string();
    assert!(message.contains("cannot be stored as fp8, it is bf16"), "{message}");
}

/// Numbers that were lost come back as BF16.
#[test]
fn models_of_fewer_bits_are_unpacked_when_asked_for() {
    let never = AtomicBool::new(false);
    for name in ["deepseek_v3_int4", "deepseek_v3_fp8"] {
        let source = family(name);
        let (dir, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut recipe = Recipe::new("i8:g32".parse().unwrap());
        recipe.experts = Some("i4:g64".parse().unwrap());
        let options = PackOptions::new(recipe);
        let report = pack(&open(&source), &source, dir.path(), &options, &|_| (), &never).unwrap();
        assert!(!report.lossless, "{name}");
        assert!(unpack(dir.path(), back.path(), false, &|_| (), &never).is_err(), "{name}");
        unpack(dir.path(), back.path(), true, &|_| (), &never).unwrap();
        assert!(tensors_of(back.path()).keys().any(|tensor| tensor.ends_with("experts.0.down_proj.weight")));
        assert!(logits(back.path(), &[7]).iter().all(|logit| logit.is_finite()), "{name}");
    }
}

fn named<'a>(tensors: &'a mut [Tensor], end: &str) -> &'a mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.name.ends_with(end)).unwrap()
}

#[test]
fn broken_storage_is_refused_by_name() {
    let cases: [(&str, &str, Change); 6] = [
        (
            "deepseek_v3_int4",
            "experts.0.gate_proj.weight_shape`: holds [96, 64], the matrix is [64, 96]",
            |tensors| {
                let bytes = &mut named(tensors, "layers.1.mlp.experts.0.gate_proj.weight_shape").bytes;
                bytes.rotate_left(4);
            },
        ),
        ("deepseek_v3_int4", "experts.3.up_proj.weight_scale` is missing", |tensors| {
            tensors.retain(|tensor| !tensor.name.ends_with("layers.2.mlp.experts.3.up_proj.weight_scale"));
        }),
        ("deepseek_v3_int4", "expected BF16, found F16", |tensors| {
            named(tensors, "experts.1.down_proj.weight_scale").dtype = safetensors::Dtype::F16;
        }),
        ("deepseek_v3_fp8", "o_proj.weight_scale_inv` is missing", |tensors| {
            tensors.retain(|tensor| !tensor.name.ends_with("layers.1.self_attn.o_proj.weight_scale_inv"));
        }),
        ("deepseek_v3_fp8", "expected shape [2, 2], found [4]", |tensors| {
            named(tensors, "experts.0.down_proj.weight_scale_inv").shape = vec![4];
        }),
        ("deepseek_v3_fp8", "expected F32, found I32", |tensors| {
            named(tensors, "kv_b_proj.weight_scale_inv").dtype = safetensors::Dtype::I32;
        }),
    ];
    for (name, expected, change) in cases {
        let copy = tempfile::tempdir().unwrap();
        rewrite(&family(name), copy.path(), change);
        let error = kimi_model::Model::open(copy.path(), &mut |path| {
            Ok(std::sync::Arc::new(kimi_paging::FileSource::open(path)?)
                as std::sync::Arc<dyn kimi_paging::Source>)
        });
        let message = error.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let copy = tempfile::tempdir().unwrap();
    rewrite(&family("deepseek_v3_fp8"), copy.path(), |_| {});
    configure(copy.path(), |config| config["quantization_config"]["weight_block_size"] = json!([64, 128]));
    let json = std::fs::read(copy.path().join("config.json")).unwrap();
    let message = kimi_model::Config::parse(&json, Path::new("config.json")).unwrap_err().to_string();
    assert!(message.contains("quantization_config.weight_block_size"), "{message}");
}

/// What public copies of released files select; skipped where the data beside the checkout are absent.
#[test]
fn released_configurations_select_their_paths() {
    for (name, layers, kda, experts, rotates, groups) in [
        ("kimi-k3", 93, 69, 896, false, 1),
        ("kimi-linear-48b-a3b-instruct", 27, 20, 256, false, 1),
        ("moonlight-16b-a3b-instruct", 27, 0, 64, true, 1),
        ("kimi-k2-instruct", 61, 0, 384, true, 1),
        ("kimi-k2.5", 61, 0, 384, true, 1),
        ("deepseek-v3", 61, 0, 256, true, 8),
    ] {
        let Some(path) = kimi_testing::shared_data(&format!("configs/{name}.json")) else { continue };
        let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let config = kimi_model::Config::parse(file["config"].to_string().as_bytes(), &path).unwrap();
        let moe = config.moe.as_ref().unwrap();
        assert_eq!(
            (config.layers.len(), moe.num_experts, moe.num_groups),
            (layers, experts, groups),
            "{name}"
        );
        assert_eq!(config.attention_layers(kimi_model::config::AttentionKind::Kda), kda, "{name}");
        assert_eq!(config.mla.rope.is_some(), rotates, "{name}");
    }
}
