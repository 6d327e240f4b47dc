//! A checkpoint, opened and checked.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use kimi_paging::{Source, TensorIndex};

use crate::checkpoint::{Checkpoint, OpenSource};
use crate::config::Config;
use crate::error::Error;
use crate::files::ModelFiles;
use crate::layout::Layout;
use crate::packed::Manifest;

/// A model: its configuration, where its tensors lie, and its small vectors in memory. No big matrix is read yet.
///
/// An [`Engine`](crate::Engine) runs it.
#[derive(Debug)]
pub struct Model {
    pub(crate) config: Config,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) layout: Layout,
    /// Computed when a session is first saved or loaded.
    pub(crate) fingerprint: OnceLock<[u8; 32]>,
}

impl Model {
    /// Opens the model at `path`: a folder with `config.json` and safetensors files as a release ships them or as `pack` wrote
    /// them, or a single file of [`pack::join`](crate::pack::join).
    ///
    /// # Errors
    /// [`Error`] naming the file, tensor or field: an unreadable or unsupported configuration, a broken or incomplete
    /// set of shards, a tensor that is missing or has another shape or type than the configuration calls for.
    pub fn open(path: &Path, open: &mut OpenSource<'_>) -> Result<Self, Error> {
        let files = ModelFiles::open(path)?;
        // First, as an unfinished packed model says so there.
        let manifest = Manifest::read(&files)?;
        let config = Config::parse(&files.config_json()?, &path.join("config.json"))?;
        Self::new(config, TensorIndex::open(path, open)?, path, manifest)
    }

    /// A model whose files are in memory; `name` stands for the folder in messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_memory(
        name: &Path,
        config_json: &[u8],
        shards: Vec<(String, Arc<dyn Source>)>,
        index_json: Option<&dyn Source>,
    ) -> Result<Self, Error> {
        let config = Config::parse(config_json, &name.join("config.json"))?;
        Self::new(config, TensorIndex::from_sources(shards, index_json)?, name, None)
    }

    pub(crate) fn new(
        config: Config,
        index: TensorIndex,
        dir: &Path,
        manifest: Option<Manifest>,
    ) -> Result<Self, Error> {
        let checkpoint = Checkpoint::with_manifest(index, dir, manifest)?;
        let layout = Layout::new(&config, &checkpoint)?;
        Ok(Self { config, checkpoint, layout, fingerprint: OnceLock::new() })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// True for a model that [`pack`](crate::pack::pack) made.
    pub fn is_packed(&self) -> bool {
        self.checkpoint.manifest().is_some()
    }

    /// True for a model without weights.
    pub(crate) fn is_outline(&self) -> bool {
        self.checkpoint.dir() == crate::outline::outlined()
    }

    /// The tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The encodings of the trunk, the experts and the output matrix, for reports: each with the names in use, sorted.
    pub fn encodings(&self) -> [(&'static str, Vec<String>); 3] {
        use crate::layout::FeedForward;
        let names = |encodings: &mut dyn Iterator<Item = kimi_quant::Encoding>| {
            let mut names: Vec<_> = encodings.map(|encoding| encoding.to_string()).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let layout = &self.layout;
        let (trunk, head) = layout.matrices.split_at(layout.lm_head.0);
        let experts = layout.layers.iter().filter_map(|layer| match &layer.feed_forward {
            FeedForward::Moe(moe) => Some(moe.experts.encoding),
            FeedForward::Dense(_) => None,
        });
        [
            ("trunk", names(&mut trunk.iter().map(|matrix| matrix.encoding))),
            ("experts", names(&mut { experts })),
            ("head", names(&mut head.iter().map(|matrix| matrix.encoding))),
        ]
    }
}
