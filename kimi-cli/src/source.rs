//! Models: folders on disk, and the demo model inside the program.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use kimi_model::Model;
use kimi_model::synth::{GEOMETRIES, Geometry};
use kimi_paging::{Error, FileSource, MemorySource, MmapSource, ReadSettings, Readers, Source, memory_limit};
use kimi_text::Tokenizer;

use crate::args::Io;
use crate::exit::Usage;

/// The demo model: a small trained model of the Kimi K3 architecture in the released layout.
mod demo {
    pub(super) const CONFIG: &[u8] = include_bytes!("../demo/model/config.json");
    pub(super) const INDEX: &[u8] = include_bytes!("../demo/model/model.safetensors.index.json");
    pub(super) const TIKTOKEN: &[u8] = include_bytes!("../demo/model/tiktoken.model");
    pub(super) const TOKENIZER_CONFIG: &[u8] = include_bytes!("../demo/model/tokenizer_config.json");
    pub(super) const SHARDS: [(&str, &[u8]); 3] = [
        (
            "model-00001-of-000003.safetensors",
            include_bytes!("../demo/model/model-00001-of-000003.safetensors"),
        ),
        (
            "model-00002-of-000003.safetensors",
            include_bytes!("../demo/model/model-00002-of-000003.safetensors"),
        ),
        (
            "model-00003-of-000003.safetensors",
            include_bytes!("../demo/model/model-00003-of-000003.safetensors"),
        ),
    ];
}

/// Reads under way with io_uring, and their size (`docs/paging.md`).
const URING: ReadSettings = ReadSettings::uring(16, 1 << 20);

/// What stands for the folder of the demo model in messages.
const DEMO_NAME: &str = "demo";

/// The name of a model for reports.
pub(crate) fn name(dir: Option<&Path>) -> String {
    dir.map_or_else(|| DEMO_NAME.to_owned(), |dir| dir.display().to_string())
}

/// Opens a model folder, or the demo model. `ram` is the memory that the process may take.
pub(crate) fn model(dir: Option<&Path>, io: Io, ram: Option<u64>) -> anyhow::Result<Arc<Model>> {
    let Some(dir) = dir else { return Ok(Arc::new(demo_model()?)) };
    if !dir.is_dir() {
        let what = if dir.exists() { "is no folder" } else { "does not exist" };
        let hint = "MODEL is a folder with config.json and safetensors files; use --prompt to give the demo model a text";
        return Err(Usage(format!("{} {what}: {hint}", dir.display())).into());
    }
    // What does not fit memory is read past the page cache, which would only be filled and emptied with every pass.
    let direct = match io {
        Io::Auto => shard_bytes(dir) > ram.or_else(|| memory_limit().bytes()).unwrap_or(u64::MAX),
        Io::Direct | Io::Uring => true,
        Io::Pread | Io::Mmap => false,
    };
    let mut open = |path: &Path| -> Result<Arc<dyn Source>, Error> {
        Ok(match io {
            Io::Mmap => Arc::new(map(path)?),
            _ if direct => Arc::new(FileSource::open_direct(path)?),
            _ => Arc::new(FileSource::open(path)?),
        })
    };
    Ok(Arc::new(Model::open(dir, &mut open)?))
}

/// How a model is read. What nobody said is measured once for models that do not fit the memory, and kept beside them.
pub(crate) fn read_settings(model: &Model, io: Io, ram: Option<u64>) -> anyhow::Result<ReadSettings> {
    Ok(match io {
        Io::Auto => kimi_model::tuning::read_settings(model, ram)?,
        Io::Uring => URING,
        Io::Direct | Io::Pread | Io::Mmap => ReadSettings::threads(Readers::DEFAULT_THREADS),
    })
}

/// Bytes of all safetensors files in a folder. What cannot be read is reported when it is opened.
fn shard_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let shards =
        files.filter(|file| file.path().extension().is_some_and(|extension| extension == "safetensors"));
    // Through links, as the shards of a download cache are.
    shards.filter_map(|file| Some(std::fs::metadata(file.path()).ok()?.len())).sum()
}

#[expect(unsafe_code, reason = "mapping is opted into by the user with --io mmap")]
fn map(path: &Path) -> Result<MmapSource, Error> {
    // SAFETY: `--io mmap` is the user's word that nobody changes the files while they are used; its help says so.
    unsafe { MmapSource::open(path) }
}

fn demo_model() -> anyhow::Result<Model> {
    let memory = |name: &str, bytes: &'static [u8]| -> Arc<dyn Source> {
        Arc::new(MemorySource::new(Path::new(DEMO_NAME).join(name), bytes))
    };
    let shards = demo::SHARDS.map(|(name, bytes)| (name.to_owned(), memory(name, bytes))).to_vec();
    let index = memory("model.safetensors.index.json", demo::INDEX);
    Ok(Model::from_memory(Path::new(DEMO_NAME), demo::CONFIG, shards, Some(&*index))?)
}

/// The tokenizer of a model folder, or of the demo model; `None` where the folder has none.
pub(crate) fn tokenizer(dir: Option<&Path>) -> anyhow::Result<Option<Tokenizer>> {
    match dir {
        None => Ok(Some(Tokenizer::from_bytes(demo::TIKTOKEN, Some(demo::TOKENIZER_CONFIG))?)),
        Some(dir) if dir.join("tiktoken.model").exists() => Ok(Some(Tokenizer::from_dir(dir)?)),
        Some(_) => Ok(None),
    }
}

/// The tokenizer of a model folder, or of the demo model.
pub(crate) fn require_tokenizer(dir: Option<&Path>) -> anyhow::Result<Tokenizer> {
    let name = name(dir);
    tokenizer(dir)?.with_context(|| format!("{name} has no tiktoken.model"))
}

/// The geometry of a name that is built in, or of a `config.json`.
pub(crate) fn geometry(name: &Path) -> anyhow::Result<Geometry> {
    if let Some(geometry) = name.to_str().and_then(Geometry::named) {
        return Ok(geometry);
    }
    let json = std::fs::read(name).map_err(|error| {
        let known = GEOMETRIES.join(", ");
        Usage(format!("`{}` is none of {known}, nor a file that can be read: {error}", name.display()))
    })?;
    Ok(Geometry::from_json(&json, name).map_err(kimi_model::Error::from)?)
}
