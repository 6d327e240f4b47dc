//! Models without weights: everything that a plan needs, and nothing on a drive.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_paging::{Backend, Error as Paging, Source, TensorIndex};

use crate::error::Error;
use crate::model::Model;
use crate::pack::{self, Recipe};
use crate::synth::{self, Geometry};

/// A file that is zeros behind its beginning.
#[derive(Debug)]
struct Hollow {
    name: PathBuf,
    head: Vec<u8>,
    len: u64,
}

impl Source for Hollow {
    fn name(&self) -> &Path {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Paging> {
        let found = self.len.saturating_sub(offset).min(buf.len() as u64);
        if found < buf.len() as u64 {
            let (path, expected) = (self.name.clone(), buf.len() as u64);
            return Err(Paging::ShortRead { path, offset, expected, found });
        }
        buf.fill(0);
        let head = usize::try_from(offset).ok().and_then(|offset| self.head.get(offset..)).unwrap_or(&[]);
        let len = head.len().min(buf.len());
        buf[..len].copy_from_slice(&head[..len]);
        Ok(())
    }

    fn backend(&self) -> Backend {
        Backend::Direct
    }

    fn alignment(&self) -> usize {
        4096
    }
}

impl Model {
    /// The model of a geometry in the released layout, all weights zero: for plans, before anything is downloaded.
    ///
    /// # Errors
    /// [`Error`] for a configuration whose tensors cannot be laid out.
    pub fn outline(geometry: &Geometry) -> Result<Self, Error> {
        let shards = (0..geometry.shards()).map(|shard| {
            let name = geometry.shard_name(shard);
            let (head, len) = synth::shard_outline(geometry, shard);
            hollow(name, head, len)
        });
        Self::new(
            geometry.config().clone(),
            TensorIndex::from_sources(shards.collect(), None)?,
            outlined(),
            None,
        )
    }

    /// What [`pack`](crate::pack::pack) would make of this model, all weights zero. BF12 is taken to have the patches of normal weights.
    ///
    /// # Errors
    /// [`Error`] as from packing, as far as it can be known.
    pub fn outline_packed(&self, recipe: &Recipe) -> Result<Self, Error> {
        let (files, manifest) = pack::outline(self, recipe)?;
        let shards = files.into_iter().map(|file| hollow(file.name, file.header, file.bytes));
        let index = TensorIndex::from_sources(shards.collect(), None)?;
        Self::new(self.config.clone(), index, outlined(), Some(manifest))
    }
}

/// What stands for the folder.
pub(crate) fn outlined() -> &'static Path {
    Path::new("outline")
}

fn hollow(name: String, head: Vec<u8>, len: u64) -> (String, Arc<dyn Source>) {
    let source = Hollow { name: outlined().join(&name), head, len };
    (name, Arc::new(source))
}
