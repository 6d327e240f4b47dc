//! Models: folders and single files on disk, and the demo model inside the program.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use kimi_model::Error::NoModel;
use kimi_model::open::{Io, open};
use kimi_model::synth::{GEOMETRIES, Geometry};
use kimi_model::{Model, ModelFiles};
use kimi_paging::{Error, MemorySource, MmapSource, ReadSettings, Source};
use kimi_text::Tokenizer;

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

/// Bytes that tell a configuration from a model, which begins with a length that ends in zeros.
const HEAD: u64 = 8;

/// What stands for the folder of the demo model in messages.
const DEMO_NAME: &str = "demo";

/// The name of a model for reports.
pub(crate) fn name(dir: Option<&Path>) -> String {
    dir.map_or_else(|| DEMO_NAME.to_owned(), |dir| dir.display().to_string())
}

/// Opens a model, or the demo model. `ram` is the memory that the process may take.
pub(crate) fn model(dir: Option<&Path>, io: Io, ram: Option<u64>) -> anyhow::Result<Arc<Model>> {
    let Some(dir) = dir else { return Ok(Arc::new(demo_model()?)) };
    match open(dir, io, ram, map) {
        Ok(model) => Ok(Arc::new(model)),
        Err(error @ NoModel { .. }) => {
            Err(Usage(format!("{error}; use --prompt to give the demo model a text")).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// How a model is read. What nobody said is measured once for models that do not fit the memory, and kept beside them.
pub(crate) fn read_settings(model: &Model, io: Io, ram: Option<u64>) -> anyhow::Result<ReadSettings> {
    Ok(match io {
        Io::Auto => kimi_model::tuning::read_settings(model, ram)?,
        _ => io.read_settings(),
    })
}

#[expect(unsafe_code, reason = "mapping is opted into by the user with --io mmap")]
fn map(path: &Path) -> Result<Arc<dyn Source>, Error> {
    // SAFETY: `--io mmap` is the user's word that nobody changes the files while they are used; its help says so.
    Ok(Arc::new(unsafe { MmapSource::open(path)? }))
}

fn demo_model() -> anyhow::Result<Model> {
    let memory = |name: &str, bytes: &'static [u8]| -> Arc<dyn Source> {
        Arc::new(MemorySource::new(Path::new(DEMO_NAME).join(name), bytes))
    };
    let shards = demo::SHARDS.map(|(name, bytes)| (name.to_owned(), memory(name, bytes))).to_vec();
    let index = memory("model.safetensors.index.json", demo::INDEX);
    Ok(Model::from_memory(Path::new(DEMO_NAME), demo::CONFIG, shards, Some(&*index))?)
}

/// The tokenizer of a model, or of the demo model; `None` where it has none.
pub(crate) fn tokenizer(dir: Option<&Path>) -> anyhow::Result<Option<Tokenizer>> {
    match dir {
        None => Ok(Some(Tokenizer::from_bytes(demo::TIKTOKEN, Some(demo::TOKENIZER_CONFIG))?)),
        Some(dir) => Ok(ModelFiles::open(dir)?.tokenizer()?),
    }
}

/// The tokenizer of a model, or of the demo model.
pub(crate) fn require_tokenizer(dir: Option<&Path>) -> anyhow::Result<Tokenizer> {
    let name = name(dir);
    tokenizer(dir)?.with_context(|| format!("{name} has no tiktoken.model"))
}

/// True for a path that holds, or should hold, a model: not a configuration, nor a name that is built in.
pub(crate) fn is_model(path: &Path) -> bool {
    let is_json = || {
        let mut head = Vec::new();
        // Only the beginning: the file may be a model of any size.
        let read = std::fs::File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
        let text = head.trim_ascii_start();
        read.is_err() || text.is_empty() || (text[0] == b'{' && !text.contains(&0))
    };
    path.is_dir() || (path.is_file() && !is_json())
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
