//! Golden files and small drivers that the integration tests share.
#![allow(dead_code, reason = "every test binary uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_model::{Engine, EngineOptions, LogitSink, Logits, Model, Observer, PassOptions, Session};
use kimi_paging::{FileSource, MmapSource, Source};

/// The families beside K3, each with the shape that no other has.
pub(crate) const FAMILIES: [&str; 6] = [
    "kimi_linear",
    "deepseek_v3",
    "deepseek_v3_moonlight",
    "deepseek_v3_grouped",
    "deepseek_v3_int4",
    "deepseek_v3_fp8",
];

/// The fixture of a family.
pub(crate) fn family(name: &str) -> PathBuf {
    kimi_testing::kimi_k3_oracle().with_file_name(name)
}

/// The tensors of a golden file: F32 as they are, I64 as floats.
pub(crate) fn golden(dir: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |tensor: &safetensors::tensor::TensorView<'_>| match tensor.dtype() {
        safetensors::Dtype::F32 => {
            tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        }
        safetensors::Dtype::I64 => {
            tensor.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect()
        }
        other => panic!("unexpected {other:?}"),
    };
    tensors.tensors().iter().map(|(name, tensor)| (name.clone(), values(tensor))).collect()
}

pub(crate) fn ids(values: &[f32]) -> Vec<u32> {
    values.iter().map(|&id| id as u32).collect()
}

pub(crate) fn open(dir: &Path) -> Arc<Model> {
    Arc::new(Model::open(dir, &mut |path| Ok(Arc::new(FileSource::open(path)?) as Arc<dyn Source>)).unwrap())
}

pub(crate) fn open_with(dir: &Path, open: impl Fn(&Path) -> Arc<dyn Source>) -> Arc<Model> {
    Arc::new(Model::open(dir, &mut |path| Ok(open(path))).unwrap())
}

pub(crate) fn engine(dir: &Path, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    engine_of(open(dir), change)
}

pub(crate) fn engine_of(model: Arc<Model>, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = EngineOptions::default();
    options.columns = 32;
    options.positions = 128;
    options.ram_bytes = Some(4 << 30);
    change(&mut options);
    Engine::new(model, &options).unwrap()
}

/// Collects logits column by column.
pub(crate) struct Columns {
    vocab: usize,
    pub(crate) values: Vec<Vec<f32>>,
}

impl Columns {
    pub(crate) fn new(vocab: usize, columns: usize) -> Self {
        Self { vocab, values: vec![vec![f32::NAN; vocab]; columns] }
    }
}

impl LogitSink for Columns {
    fn piece(&mut self, first_id: usize, ids: usize, values: &[f32]) -> std::io::Result<()> {
        assert!(first_id + ids <= self.vocab);
        for (column, values) in self.values.iter_mut().zip(values.chunks_exact(ids)) {
            column[first_id..first_id + ids].copy_from_slice(values);
        }
        Ok(())
    }
}

/// Feeds tokens in passes of up to `chunk` and returns the logits after every token.
pub(crate) fn feed(
    engine: &mut Engine,
    session: &mut Session,
    tokens: &[u32],
    chunk: usize,
) -> Vec<Vec<f32>> {
    feed_observed(engine, session, tokens, chunk, &mut ())
}

pub(crate) fn feed_observed(
    engine: &mut Engine,
    session: &mut Session,
    tokens: &[u32],
    chunk: usize,
    observer: &mut dyn Observer,
) -> Vec<Vec<f32>> {
    let vocab = engine.model().config().vocab_size;
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let mut sink = Columns::new(vocab, tokens.len());
        let mut options = PassOptions::default();
        options.logits = Logits::Each(&mut sink);
        options.observer = Some(&mut *observer);
        engine.forward(session, tokens, options).unwrap().commit(tokens.len()).unwrap();
        all.extend(sink.values);
    }
    all
}

/// Greedy continuation of `count` tokens with the logits that chose each.
pub(crate) fn greedy(
    engine: &mut Engine,
    session: &mut Session,
    first: &[f32],
    count: usize,
) -> (Vec<u32>, Vec<Vec<f32>>) {
    let (mut ids, mut logits) = (Vec::new(), vec![first.to_vec()]);
    loop {
        let row = logits.last().unwrap();
        let best = (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        ids.push(best);
        if ids.len() == count {
            return (ids, logits);
        }
        let mut options = PassOptions::default();
        options.logits = Logits::Last;
        options.more = true;
        let pass = engine.forward(session, &[best], options).unwrap();
        logits.push(pass.logits().to_vec());
        pass.commit(1).unwrap();
    }
}

/// The largest absolute difference; the golden rows lie one after another.
pub(crate) fn difference(found: &[Vec<f32>], golden: &[f32]) -> f32 {
    let found: Vec<f32> = found.concat();
    assert_eq!(found.len(), golden.len());
    found.iter().zip(golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A tensor of a checkpoint that a test changes.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: safetensors::Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl safetensors::View for &Tensor {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.bytes).into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Copies the files of a checkpoint into `to`.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

type OpenReader = fn(&Path) -> Arc<dyn Source>;

/// Every way to read the files of a checkpoint.
pub(crate) const READERS: [(&str, OpenReader); 3] = [
    ("pread", |path| Arc::new(FileSource::open(path).unwrap())),
    ("direct", |path| Arc::new(FileSource::open_direct(path).unwrap())),
    ("mmap", |path| Arc::new(mapped(path))),
];

#[expect(unsafe_code, reason = "tests map files of their own, or fixtures that nobody writes to")]
fn mapped(path: &Path) -> MmapSource {
    // SAFETY: the files are committed fixtures, which nobody changes, or copies of one test, which touches no view of a
    // range that it has cut off.
    unsafe { MmapSource::open(path).unwrap() }
}

/// Copies a checkpoint into `to` as one file without an index, changed on the way.
pub(crate) fn rewrite(from: &Path, to: &Path, change: impl FnOnce(&mut Vec<Tensor>)) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let mut tensors = Vec::new();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
                tensors.push(Tensor { name, dtype: view.dtype(), shape, bytes });
            }
        }
    }
    change(&mut tensors);
    let views = tensors.iter().map(|tensor| (tensor.name.clone(), tensor));
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors")).unwrap();
}

/// All tensors of the safetensors files in a folder, by name.
pub(crate) fn tensors_of(dir: &Path) -> BTreeMap<String, Tensor> {
    let mut all = BTreeMap::new();
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors")
            || path.ends_with("expected.safetensors")
        {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for (name, tensor) in safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let (dtype, shape, bytes) = (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec());
            all.insert(name.clone(), Tensor { name, dtype, shape, bytes });
        }
    }
    all
}
