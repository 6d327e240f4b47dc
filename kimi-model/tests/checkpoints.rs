//! Checkpoints that differ from the release, or are broken: each loads to the same bits or is refused by name.

mod support;

use std::path::Path;
use std::sync::Arc;

use kimi_model::{Error, Model, PassOptions};
use kimi_paging::{FileSource, Source};
use kimi_testing::{kimi_k3_oracle, same_bits};
use support::{Tensor, engine, feed, golden, ids, rewrite};

fn try_open(dir: &Path) -> Result<Model, Error> {
    Model::open(dir, &mut |path| Ok(Arc::new(FileSource::open(path)?) as Arc<dyn Source>))
}

/// The logits of the first tokens of the fixture's prompt.
fn logits(dir: &Path) -> Vec<f32> {
    let prompt = ids(&golden(&kimi_k3_oracle())["input_ids"]);
    let mut engine = engine(dir, |_| {});
    let mut session = engine.session().unwrap();
    feed(&mut engine, &mut session, &prompt[..6], 6).concat()
}

fn named<'a>(tensors: &'a mut [Tensor], end: &str) -> &'a mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.name.ends_with(end)).unwrap()
}

/// BF16 values as F32.
fn widen(tensor: &mut Tensor) {
    assert_eq!(tensor.dtype, safetensors::Dtype::BF16);
    tensor.dtype = safetensors::Dtype::F32;
    tensor.bytes = tensor.bytes.as_chunks::<2>().0.iter().flat_map(|half| [0, 0, half[0], half[1]]).collect();
}

/// What a test does to the tensors of a checkpoint.
type Change = fn(&mut Vec<Tensor>);

#[test]
fn other_spellings_of_the_same_model_give_the_same_bits() {
    let expected = logits(&kimi_k3_oracle());
    let dir = tempfile::tempdir().unwrap();
    let changes: [(&str, Change); 6] = [
        ("one file without an index", |_| {}),
        ("no prefix", |tensors| {
            tensors
                .iter_mut()
                .for_each(|tensor| tensor.name = tensor.name.replacen("language_model.", "", 1));
        }),
        ("the other name of the module", |tensors| {
            tensors
                .iter_mut()
                .for_each(|tensor| tensor.name = tensor.name.replacen("block_sparse_moe", "mlp", 1));
        }),
        ("scales typed as what they are", |tensors| {
            for tensor in tensors.iter_mut().filter(|tensor| tensor.name.ends_with("weight_scale")) {
                tensor.dtype = safetensors::Dtype::F8_E8M0;
            }
        }),
        ("F32 where the release has BF16", |tensors| {
            for end in [
                "input_layernorm.weight",
                "q_proj.weight",
                "kv_b_proj.weight",
                "gate.weight",
                "lm_head.weight",
            ] {
                for tensor in tensors.iter_mut().filter(|tensor| tensor.name.ends_with(end)) {
                    widen(tensor);
                }
            }
        }),
        ("a tensor that nobody knows", |tensors| {
            let extra = Tensor { name: "language_model.model.layers.0.novel".into(), ..tensors[0].clone() };
            tensors.push(extra);
        }),
    ];
    for (i, (what, change)) in changes.into_iter().enumerate() {
        let copy = dir.path().join(format!("copy {i} – ü"));
        rewrite(&kimi_k3_oracle(), &copy, change);
        assert!(same_bits(&logits(&copy), &expected), "{what}");
    }
}

#[test]
fn broken_tensors_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, Change); 8] = [
        ("layers.3.self_attn.kv_b_proj.weight` is missing", |tensors| {
            tensors.retain(|tensor| !tensor.name.ends_with("layers.3.self_attn.kv_b_proj.weight"));
        }),
        ("layers.4.block_sparse_moe.experts.7.w2.weight_scale` is missing", |tensors| {
            tensors.retain(|tensor| {
                !tensor.name.ends_with("layers.4.block_sparse_moe.experts.7.w2.weight_scale")
            });
        }),
        ("expected shape [80], found [40, 2, 1]", |tensors| {
            named(tensors, "layers.2.mlp_res_norm.weight").shape = vec![40, 2, 1];
        }),
        ("lm_head.weight`: expected F32 or BF16, found F16", |tensors| {
            named(tensors, "lm_head.weight").dtype = safetensors::Dtype::F16;
        }),
        ("experts.0.w1.weight_packed`: expected U8 (MXFP4 codes), found I8", |tensors| {
            named(tensors, "layers.1.block_sparse_moe.experts.0.w1.weight_packed").dtype =
                safetensors::Dtype::I8;
        }),
        ("A_log`: expected at least 6 values, found 4", |tensors| {
            let tensor = named(tensors, "layers.1.self_attn.A_log");
            tensor.shape = vec![4];
            tensor.bytes.truncate(16);
        }),
        ("model.norm.weight`: value 2 is NaN", |tensors| {
            named(tensors, "model.norm.weight").bytes[4..6].copy_from_slice(&[0xc0, 0x7f]);
        }),
        ("`model.embed_tokens.weight` is missing", |tensors| {
            tensors.retain(|tensor| !tensor.name.ends_with("embed_tokens.weight"));
        }),
    ];
    for (i, (expected, change)) in cases.into_iter().enumerate() {
        let copy = dir.path().join(i.to_string());
        rewrite(&kimi_k3_oracle(), &copy, change);
        let message = try_open(&copy).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains(copy.to_str().unwrap()), "{message}");
    }
}

#[test]
fn a_number_that_is_not_finite_stops_the_pass_and_names_the_layer() {
    let dir = tempfile::tempdir().unwrap();
    rewrite(&kimi_k3_oracle(), dir.path(), |tensors| {
        named(tensors, "layers.5.self_attn.o_proj.weight").bytes[..2].copy_from_slice(&[0xc0, 0x7f]);
    });
    let mut engine = engine(dir.path(), |_| {});
    let mut session = engine.session().unwrap();
    let error = engine.forward(&mut session, &[1, 2], PassOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "layer 5 computed a number that is not finite at position 0");
    assert_eq!(session.position(), 0);
}

#[test]
fn a_short_shard_is_refused_at_open() {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(kimi_k3_oracle()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let shard = dir.path().join("model-00002-of-000003.safetensors");
    let file = std::fs::OpenOptions::new().write(true).open(&shard).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
    let message = try_open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("model-00002-of-000003.safetensors") && message.contains("4096"), "{message}");
}

#[test]
fn a_folder_without_configuration_is_no_model() {
    let dir = tempfile::tempdir().unwrap();
    let message = try_open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("config.json") && message.contains("cannot be read"), "{message}");
}
