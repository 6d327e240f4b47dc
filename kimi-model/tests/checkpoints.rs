//! Checkpoints that differ from the release, or are broken: each loads to the same bits or is refused by name.

mod support;

use std::path::Path;
use std::sync::Arc;

use kimi_model::{Engine, Error, Logits, Model, PassOptions};
use kimi_paging::{FileSource, Source};
use kimi_testing::{kimi_k3_oracle, same_bits};
use serde_json::Value;
use support::{Columns, READERS, Tensor, copy, engine, engine_of, feed, golden, ids, open_with, rewrite};

fn try_open(dir: &Path) -> Result<Model, Error> {
    Model::open(dir, &mut |path| Ok(Arc::new(FileSource::open(path)?) as Arc<dyn Source>))
}

/// The logits of the first tokens of the fixture's prompt.
fn logits(dir: &Path) -> Vec<f32> {
    logits_of(&mut engine(dir, |_| {}))
}

fn logits_of(engine: &mut Engine) -> Vec<f32> {
    let prompt = ids(&golden(&kimi_k3_oracle())["input_ids"]);
    let mut session = engine.session().unwrap();
    feed(engine, &mut session, &prompt[..6], 6).concat()
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
    let changes: [(&str, Change); 7] = [
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
        ("padding that is no number", |tensors| {
            for tensor in tensors.iter_mut().filter(|tensor| tensor.name.ends_with("A_log")) {
                // Six heads, padded to the sixteen channels of one.
                assert_eq!(tensor.shape, [16]);
                tensor.bytes[4 * 6..].fill(0xff);
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

/// The layout of a download cache: the files lie elsewhere, under other names.
#[cfg(unix)]
#[test]
fn a_folder_of_links_gives_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshots/main"));
    copy(&kimi_k3_oracle(), &blobs);
    std::fs::create_dir_all(&snapshot).unwrap();
    for (i, entry) in std::fs::read_dir(&blobs).unwrap().collect::<Vec<_>>().into_iter().enumerate() {
        let (path, blob) = (entry.unwrap().path(), format!("{i:08x}"));
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(path.file_name().unwrap()))
            .unwrap();
        std::fs::rename(path, blobs.join(blob)).unwrap();
    }
    let expected = logits(&kimi_k3_oracle());
    for (reader, open) in READERS {
        let found = logits_of(&mut engine_of(open_with(&snapshot, open), |_| {}));
        assert!(same_bits(&found, &expected), "{reader}");
    }
}

/// Pads the header of a safetensors file, which moves all data.
fn move_data(file: &Path, by: usize) {
    let bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let length = u64::from_le_bytes(*length);
    let (header, data) = rest.split_at(length as usize);
    let length = (length + by as u64).to_le_bytes();
    std::fs::write(file, [&length[..], header, &vec![b' '; by], data].concat()).unwrap();
}

#[test]
fn data_off_their_alignment_give_the_same_bits_in_as_little_memory() {
    let expected = logits(&kimi_k3_oracle());
    let dir = tempfile::tempdir().unwrap();
    rewrite(&kimi_k3_oracle(), dir.path(), |_| {});
    let mut peaks = [None; READERS.len()];
    for moved in 0..4 {
        for ((reader, open), peak) in READERS.into_iter().zip(&mut peaks) {
            let mut engine = engine_of(open_with(dir.path(), open), |_| {});
            assert!(same_bits(&logits_of(&mut engine), &expected), "{reader}, moved by {moved}");
            // What the ledger saw beside the process itself, which tests share.
            let process = engine.plan().items.iter().find(|item| item.what.starts_with("process")).unwrap();
            let used = engine.budget().peak_bytes() - process.bytes;
            // Direct reads begin and end with a block, one of which an odd offset may add to a tile.
            let more = if reader == "direct" { 64 << 10 } else { 0 };
            assert!(used <= *peak.get_or_insert(used) + more, "{reader}, moved by {moved}: {used} {peak:?}");
        }
        move_data(&dir.path().join("model.safetensors"), 1);
    }
}

/// Which matrices are MXFP4 is read from the tensors: names in the configuration spell modules in several ways.
#[test]
fn lists_of_what_is_not_quantized_do_not_matter() {
    let expected = logits(&kimi_k3_oracle());
    let dir = tempfile::tempdir().unwrap();
    copy(&kimi_k3_oracle(), dir.path());
    let path = dir.path().join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for ignore in [
        serde_json::json!(["re:.*block_sparse_moe.*", "model.layers.0.mlp"]),
        serde_json::json!(["re:.*mlp\\.shared_experts.*", "re:("]),
        serde_json::json!([]),
        Value::Null,
    ] {
        let mut config = config.clone();
        config["text_config"]["quantization_config"]["ignore"] = ignore.clone();
        std::fs::write(&path, config.to_string()).unwrap();
        assert!(same_bits(&logits(dir.path()), &expected), "{ignore}");
    }
}

#[test]
fn broken_tensors_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, Change); 11] = [
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
        ("lm_head.weight`: expected F32, BF16 or F8_E4M3, found F16", |tensors| {
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
        ("o_proj.weight`: expected F32, BF16 or F8_E4M3, found F6_E3M2", |tensors| {
            let tensor = named(tensors, "layers.2.self_attn.o_proj.weight");
            tensor.dtype = safetensors::Dtype::F6_E3M2;
            tensor.bytes.truncate(tensor.shape.iter().product::<usize>() * 6 / 8);
        }),
        ("experts.0.w1.weight_scale`: expected U8 or F8_E8M0, found F8_E4M3", |tensors| {
            named(tensors, "layers.1.block_sparse_moe.experts.0.w1.weight_scale").dtype =
                safetensors::Dtype::F8_E4M3;
        }),
        ("`model.embed_tokens.weight` is missing", |tensors| {
            tensors.iter_mut().for_each(|tensor| tensor.name.insert_str(0, "text_model."));
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

const NAN: [u8; 2] = [0xc0, 0x7f];
const INFINITY: [u8; 2] = [0x80, 0x7f];

#[test]
fn no_weight_that_is_not_finite_becomes_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, Change); 6] = [
        ("layer 0 computed a number that is not finite at position 1", |tensors| {
            // The row of token 2.
            named(tensors, "embed_tokens.weight").bytes[2 * 160..][..2].copy_from_slice(&INFINITY);
        }),
        ("layer 3 computed a number that is not finite at position 0", |tensors| {
            named(tensors, "layers.3.self_attn.kv_a_proj_with_mqa.weight").bytes[..2].copy_from_slice(&NAN);
        }),
        ("layer 2 computed a number that is not finite at position 0", |tensors| {
            named(tensors, "layers.2.block_sparse_moe.gate.weight").bytes[..2].copy_from_slice(&NAN);
        }),
        ("layer 4 computed a number that is not finite at position 0", |tensors| {
            // A scale of 255 is no number. All experts, so that the chosen ones are among them.
            for tensor in tensors.iter_mut().filter(|tensor| {
                tensor.name.contains("layers.4.") && tensor.name.ends_with("w2.weight_scale")
            }) {
                tensor.bytes[0] = 255;
            }
        }),
        ("a logit that is not finite", |tensors| {
            named(tensors, "lm_head.weight").bytes[..2].copy_from_slice(&NAN);
        }),
        ("a logit that is not finite", |tensors| {
            let bytes = &mut named(tensors, "lm_head.weight").bytes;
            let last = bytes.len() - 2;
            bytes[last..].copy_from_slice(&INFINITY);
        }),
    ];
    for (i, (expected, change)) in cases.into_iter().enumerate() {
        let copy = dir.path().join(i.to_string());
        rewrite(&kimi_k3_oracle(), &copy, change);
        let mut engine = engine(&copy, |_| {});
        let mut session = engine.session().unwrap();
        let mut sink = Columns::new(512, 2);
        for logits in [Logits::Last, Logits::Each(&mut sink)] {
            let mut options = PassOptions::default();
            options.logits = logits;
            let error = engine.forward(&mut session, &[1, 2], options).unwrap_err().to_string();
            assert!(error.contains(expected), "case {i}: {error}");
        }
        assert_eq!(session.position(), 0);
    }
}

#[test]
fn a_short_shard_is_refused_at_open() {
    let dir = tempfile::tempdir().unwrap();
    copy(&kimi_k3_oracle(), dir.path());
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
