//! Models in one file: the numbers of their folder, every byte checked, and nothing else taken for one.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kimi_model::pack::{PackOptions, PackReport, Recipe, join, pack, pack_single};
use kimi_model::unpack::unpack;
use kimi_model::verify::verify;
use kimi_model::{Check, Engine, EngineOptions, Error, GenerationConfig, Model, ModelFiles};
use kimi_paging::{FileSource, MmapSource, Source};
use kimi_testing::{Seeded, demo_model, kimi_k3_oracle};
use support::{feed, open, tensors_of};

static NEVER: AtomicBool = AtomicBool::new(false);

fn options(trunk: &str) -> PackOptions {
    PackOptions::new(Recipe::new(trunk.parse().unwrap()))
}

fn packed(source: &Path, target: &Path, trunk: &str) {
    pack(&open(source), source, target, &options(trunk), &|_| (), &NEVER).unwrap();
}

fn joined(source: &Path, target: &Path) -> PackReport {
    join(&open(source), target, &|_| (), &NEVER).unwrap()
}

fn logits(path: &Path, open: impl Fn(&Path) -> Arc<dyn Source>) -> Vec<f32> {
    let model = Arc::new(Model::open(path, &mut |file| Ok(open(file))).unwrap());
    let mut options = EngineOptions::default();
    options.positions = 64;
    options.check = Check::All;
    let mut engine = Engine::new(model, &options).unwrap();
    let mut session = engine.session().unwrap();
    feed(&mut engine, &mut session, &[1, 17, 30, 5, 9, 2, 44], 3).concat()
}

fn pread(file: &Path) -> Arc<dyn Source> {
    Arc::new(FileSource::open(file).unwrap())
}

fn direct(file: &Path) -> Arc<dyn Source> {
    Arc::new(FileSource::open_direct(file).unwrap())
}

fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        names.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn one_file_gives_the_bits_of_the_folder_however_it_is_read() {
    for source in [kimi_k3_oracle(), demo_model()] {
        let dir = tempfile::tempdir().unwrap();
        let mut folders = vec![source.clone()];
        for trunk in ["bf12", "i4"] {
            folders.push(dir.path().join(trunk));
            packed(&source, &folders[folders.len() - 1], trunk);
        }
        for (i, folder) in folders.iter().enumerate() {
            let expected = logits(folder, pread);
            let file = dir.path().join(format!("{i}.gguf"));
            let report = joined(folder, &file);
            assert_eq!(report.packed_bytes, std::fs::metadata(&file).unwrap().len());
            assert_eq!(report.encodings.is_empty(), i == 0);
            assert!(logits(&file, pread) == expected, "{}", folder.display());
            assert!(logits(&file, direct) == expected, "{}", folder.display());
            let verified = verify(&file, &|_| (), &NEVER).unwrap().unwrap();
            assert_eq!((verified.files, verified.bytes), (1, report.packed_bytes));
            assert_eq!((verified.damages, verified.tiles > 0), (vec![], i > 0));
            // A folder's file beside the weights is a file's too.
            let [files, file_files] = [folder, &file].map(|path| ModelFiles::open(path).unwrap());
            assert!(file_files.is_single() && !files.is_single());
            for name in ["config.json", "generation_config.json", "tiktoken.model", "tokenizer_config.json"] {
                assert_eq!(file_files.read(name).unwrap(), files.read(name).unwrap(), "{name}");
                assert_eq!(file_files.has(name), files.has(name));
            }
            let config = |files| GenerationConfig::open(files, 1 << 20).unwrap();
            assert_eq!(config(&file_files), config(&files));
            let tokenizers = [files.tokenizer().unwrap(), file_files.tokenizer().unwrap()];
            let [a, b] = tokenizers.map(|tokenizer| tokenizer.map(|tokenizer| tokenizer.vocab_size()));
            assert_eq!(a, b);
        }
    }
}

#[test]
fn any_reader_opens_the_file_and_tiles_begin_on_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("packed"), dir.path().join("one"));
    packed(&demo_model(), &folder, "i4");
    joined(&folder, &file);
    let bytes = std::fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let json = tensors.tensor("__file__/config.json").unwrap();
    assert_eq!(json.data(), std::fs::read(folder.join("config.json")).unwrap());
    let (one, many) = (open(&file), open(&folder));
    let mut tiles = 0;
    for (name, info) in many.checkpoint().index().iter() {
        let found = one.checkpoint().index().find(&name).unwrap();
        assert_eq!((found.dtype, found.shape, found.bytes), (info.dtype, info.shape, info.bytes), "{name}");
        // As far as in the folder.
        let align = if info.offset.is_multiple_of(4096) { 4096 } else { 1 };
        if info.bytes.is_multiple_of(4096) {
            assert!(found.offset.is_multiple_of(align), "{name}");
            tiles += 1;
        }
        assert!(found.offset.is_multiple_of(u64::from(info.dtype.bits().unwrap_or(8)) / 8), "{name}");
    }
    assert!(tiles > 0);
}

#[test]
fn packing_into_a_file_is_packing_and_joining() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let source = demo_model();
    packed(&source, &at("packed"), "i6");
    joined(&at("packed"), &at("expected"));
    let expected = std::fs::read(at("expected")).unwrap();
    let model = open(&source);
    let report = pack_single(&model, &at("one"), &options("i6"), &|_| (), &NEVER).unwrap();
    assert!(std::fs::read(at("one")).unwrap() == expected);
    assert!(!report.lossless && report.source_bytes > report.packed_bytes);

    // What an interrupted run leaves: a folder that is packed to its end, one that is not, and one of something else.
    packed(&source, &at("two.parts"), "i6");
    pack_single(&model, &at("two"), &options("i6"), &|_| (), &NEVER).unwrap();
    let cancel = AtomicBool::new(false);
    let stop = |step: &kimi_model::pack::PackProgress| {
        cancel.store(step.done_bytes > step.total_bytes / 2, Ordering::Relaxed);
    };
    let stopped = pack_single(&model, &at("three"), &options("i6"), &stop, &cancel);
    assert!(matches!(stopped, Err(Error::Cancelled)));
    assert!(at("three.parts").is_dir() && !at("three").exists());
    pack_single(&model, &at("three"), &options("i6"), &|_| (), &NEVER).unwrap();
    for name in ["two", "three"] {
        assert!(std::fs::read(at(name)).unwrap() == expected, "{name}");
    }
    packed(&source, &at("four.parts"), "i4");
    let refused = pack_single(&model, &at("four"), &options("i6"), &|_| (), &NEVER).unwrap_err();
    assert!(refused.to_string().contains("another packed model"), "{refused}");
    std::fs::remove_dir_all(at("four.parts")).unwrap();
    assert_eq!(names(dir.path()), ["expected", "one", "packed", "three", "two"]);
}

#[test]
fn a_file_is_packed_like_the_folder_that_it_was_joined_from() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    joined(&demo_model(), &at("released"));
    packed(&demo_model(), &at("a"), "i8");
    packed(&at("released"), &at("b"), "i8");
    assert_eq!(names(&at("a")), names(&at("b")));
    // The fingerprint aside, which the order of the tensors is part of, and that of the small ones.
    let (a, b) = (tensors_of(&at("a")), tensors_of(&at("b")));
    assert!(a.keys().eq(b.keys()) && a.values().zip(b.values()).all(|(a, b)| a.bytes == b.bytes));
    assert!(logits(&at("a"), pread) == logits(&at("b"), pread));
    joined(&at("released"), &at("again"));
    assert!(std::fs::read(at("again")).unwrap() == std::fs::read(at("released")).unwrap());
    joined(&at("a"), &at("packed"));
    let refused = unpack(&at("packed"), &at("c"), true, &|_| (), &NEVER).unwrap_err();
    assert!(refused.to_string().contains("is a single file"), "{refused}");
}

#[test]
fn what_is_interrupted_or_in_the_way_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    let model = open(&demo_model());
    let cancel = AtomicBool::new(false);
    for share in [0, 3, 5] {
        let stop = |step: &kimi_model::pack::PackProgress| {
            cancel.store(step.done_bytes > step.total_bytes * share / 6, Ordering::Relaxed);
        };
        cancel.store(false, Ordering::Relaxed);
        assert!(matches!(join(&model, &file, &stop, &cancel), Err(Error::Cancelled)), "{share}");
        assert!(names(dir.path()).is_empty());
    }
    // Killed in the middle of it.
    std::fs::write(dir.path().join("one.partial"), [7; 100]).unwrap();
    joined(&demo_model(), &file);
    assert_eq!(names(dir.path()), ["one"]);
    let whole = std::fs::read(&file).unwrap();
    let refused = join(&model, &file, &|_| (), &NEVER).unwrap_err();
    assert!(refused.to_string().contains("is there already"), "{refused}");
    assert!(std::fs::read(&file).unwrap() == whole);
}

#[test]
fn any_damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("packed"), dir.path().join("one"));
    packed(&kimi_k3_oracle(), &folder, "i8");
    for source in [&folder, &kimi_k3_oracle()] {
        joined(source, &file);
        let bytes = std::fs::read(&file).unwrap();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize + 8;
        let mut random = Seeded::new(11);
        let places = (0..24).map(|i| random.below(if i % 2 == 0 { header } else { bytes.len() }));
        // The version, the digest, a space behind the header, the last byte.
        for at in places.chain([60, 100, header - 1, bytes.len() - 1]).collect::<Vec<_>>() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << random.below(7);
            std::fs::write(&file, &damaged).unwrap();
            if let Ok(Some(report)) = verify(&file, &|_| (), &NEVER) {
                assert!(!report.damages.is_empty(), "byte {at}");
            }
        }
        std::fs::remove_file(&file).unwrap();
    }
    // A damaged tile is not joined.
    let shard = folder.join("layer-00001.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let at = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize + 8 + 100;
    bytes[at] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let error = join(&open(&folder), &file, &|_| (), &NEVER).unwrap_err();
    assert!(matches!(error, Error::Tile { tile: 0, .. }), "{error}");
    assert!(!file.exists());
}

/// A safetensors file of these tensors, all `U8` but where the type is given.
fn safetensors(path: &Path, tensors: &[(&str, &str, u64, &[u8])]) -> PathBuf {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, claimed, bytes) in tensors {
        let begin = data.len() as u64;
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":[{claimed}],"data_offsets":[{begin},{}]}}"#,
            begin + claimed
        ));
        data.extend_from_slice(bytes);
    }
    let header = format!("{{{}}}", entries.join(","));
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(path, file).unwrap();
    path.to_path_buf()
}

#[test]
fn whatever_else_a_file_is_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    let refused = |expected: &str| {
        let error = ModelFiles::open(&file).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(expected) && message.contains("model.gguf"), "{expected}: {message}");
        let open = &mut |_: &Path| -> Result<Arc<dyn Source>, _> { unreachable!("it is refused before") };
        assert_eq!(Model::open(&file, open).unwrap_err().to_string(), message);
        assert!(verify(&file, &|_| (), &NEVER).is_err());
        matches!(error, Error::NoModel { .. })
    };
    assert!(refused("does not exist"));
    for (bytes, expected) in [
        (&b""[..], "is an empty file"),
        (b"GGUF\x03\0\0\0\0\0\0\0", "is a GGUF file"),
        (b"PK\x03\x04\0\0", "is a ZIP archive"),
        (b"\x80\x02\x8a", "is a Python pickle"),
        (b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
        (b"Some notes\nof mine", r#"begins with "Some notes\nof mi""#),
        (b"{\"a\": 1}", "begins with"),
        (b"\xfe\xed\0\x01", "begins with the bytes [fe, ed, 00, 01]"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        assert!(refused(expected));
    }
    safetensors(&file, &[("a", "U8", 1, b"1")]);
    assert!(refused("without the configuration of a model"));

    let config = ("__file__/config.json", "U8", 2, &b"{}"[..]);
    for name in ["../config.json", "a/b", "", "..", "C:x"] {
        safetensors(&file, &[config, (&format!("__file__/{name}"), "U8", 1, b"1")]);
        assert!(!refused("is not the name of a file"));
    }
    safetensors(&file, &[config, ("__file__/tiktoken.model", "F32", 1, b"1")]);
    assert!(!refused("tiktoken.model"));
    safetensors(&file, &[config, ("__file__/tiktoken.model", "I8", 1, b"1")]);
    assert!(!refused("stored as U8"));
    // A file of a terabyte that is not there: refused by the size of what is.
    safetensors(&file, &[config, ("__file__/tiktoken.model", "U8", 1 << 40, b"1")]);
    assert!(!refused("model.gguf"));
    let large = dir.path().join("large");
    safetensors(&large, &[("__file__/config.json", "U8", (64 << 20) + 1, b"")]);
    let sparse = std::fs::OpenOptions::new().append(true).open(&large).unwrap();
    sparse.set_len(sparse.metadata().unwrap().len() + (64 << 20) + 1).unwrap();
    let error = ModelFiles::open(&large).unwrap_err().to_string();
    assert!(error.contains("larger than any file of a model"), "{error}");
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    joined(&kimi_k3_oracle(), &whole);
    let bytes = std::fs::read(&whole).unwrap();
    let mut random = Seeded::new(3);
    for len in
        [1, 7, 8, 9, 100, bytes.len() - 1].into_iter().chain((0..20).map(|_| random.below(bytes.len())))
    {
        std::fs::write(&cut, &bytes[..len]).unwrap();
        assert!(Model::open(&cut, &mut |file| Ok(pread(file))).is_err(), "{len} bytes");
    }
}

#[test]
fn a_mapped_file_gives_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("one");
    joined(&demo_model(), &file);
    let map = |file: &Path| -> Arc<dyn Source> {
        // SAFETY: nobody changes the file of this test.
        #[expect(unsafe_code, reason = "mapping a file that nobody changes")]
        let source = unsafe { MmapSource::open(file) };
        Arc::new(source.unwrap())
    };
    assert!(logits(&file, map) == logits(&demo_model(), pread));
}
