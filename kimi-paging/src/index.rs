//! Which tensor lies where, over any number of safetensors files.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use self::build::Builder;
use self::entry::{Entry, Key, NUMBERS};
use self::kind::Kinds;
use self::name::Names;
use crate::{Error, FileSource, IndexProblem, Source, SourceId};

mod build;
mod dtype;
mod entry;
mod header;
mod json;
mod kind;
mod name;

pub use dtype::{Dtype, OtherDtype};
pub use header::MAX_HEADER_BYTES;
pub use name::TemplateId;

/// The file that says which tensor lies in which shard.
const INDEX_FILE: &str = "model.safetensors.index.json";

/// The only file of a checkpoint that is not sharded.
const SINGLE_FILE: &str = "model.safetensors";

/// The tensors of a checkpoint: name, type, shape and place of each, in about twenty bytes.
///
/// Opening reads the index file and the headers of all shards, and checks that every byte of data belongs to exactly one
/// tensor and is there. What a tensor means is not known here.
///
/// ```
/// use std::sync::Arc;
/// use kimi_paging::{Dtype, MemorySource, Source, TensorIndex};
///
/// let header = br#"{"layers.0.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend(header);
/// file.extend([0; 8]);
/// let shard: Arc<dyn Source> = Arc::new(MemorySource::new("embedded.safetensors", file));
///
/// let index = TensorIndex::from_sources(vec![("embedded.safetensors".into(), shard)], None)?;
/// let bias = index.find("layers.0.bias").expect("it is in the header");
/// assert_eq!((bias.dtype, bias.shape, bias.bytes), (Dtype::F32, &[2][..], 8));
/// // The same without building a name:
/// let template = index.template("layers.{}.bias").expect("a layer has a bias");
/// assert_eq!(index.at(template, &[0]), Some(bias));
/// # Ok::<(), kimi_paging::Error>(())
/// ```
pub struct TensorIndex {
    /// Sorted by key.
    entries: Vec<Entry>,
    names: Names,
    kinds: Kinds,
    sources: Vec<Arc<dyn Source>>,
    unindexed: usize,
}

/// What the index knows of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo<'a> {
    /// The element type.
    pub dtype: Dtype,
    /// The shape; empty for a scalar.
    pub shape: &'a [u64],
    /// The file it lies in.
    pub source: SourceId,
    /// Where it begins in that file. Nothing is promised about alignment.
    pub offset: u64,
    /// Its size in the file.
    pub bytes: u64,
}

impl TensorIndex {
    /// Opens the checkpoint in the folder `dir`, or a single safetensors file.
    ///
    /// The files are those that `model.safetensors.index.json` names; without that file `model.safetensors`; without either
    /// every `*.safetensors`, sorted by name. `open` opens each shard, and so decides how they are read.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::ShortRead`] from the system and `open`; [`Error::Index`] when files are missing or do not
    /// fit together; [`Error::Shard`] when a file is damaged.
    #[expect(clippy::type_complexity, reason = "a closure that opens files, spelled out")]
    pub fn open(
        dir: &Path,
        open: &mut dyn FnMut(&Path) -> Result<Arc<dyn Source>, Error>,
    ) -> Result<Self, Error> {
        let index_path = dir.join(INDEX_FILE);
        if index_path.is_file() {
            let builder = Builder::from_index(&FileSource::open(index_path)?)?;
            let absent = |name: &&String| !dir.join(name).is_file();
            let missing: Vec<_> = builder.shards().iter().filter(absent).cloned().collect();
            if !missing.is_empty() {
                return Err(builder.missing(missing));
            }
            let sources = builder.shards().iter().map(|name| open(&dir.join(name)));
            let sources = sources.collect::<Result<_, _>>()?;
            return builder.finish(sources);
        }
        let (shards, sources): (Vec<_>, Vec<_>) = if dir.is_file() {
            (vec![dir.display().to_string()], vec![open(dir)?])
        } else if dir.join(SINGLE_FILE).is_file() {
            (vec![SINGLE_FILE.to_owned()], vec![open(&dir.join(SINGLE_FILE))?])
        } else {
            let mut names = Vec::new();
            let failed = |source| Error::Io { operation: "list", path: dir.to_path_buf(), source };
            for file in std::fs::read_dir(dir).map_err(failed)? {
                let path = file.map_err(failed)?.path();
                if path.extension().is_some_and(|extension| extension == "safetensors") && path.is_file() {
                    names.push(path);
                }
            }
            names.sort_unstable();
            let shard = |path: &std::path::PathBuf| Ok((path.display().to_string(), open(path)?));
            names.iter().map(shard).collect::<Result<Vec<_>, Error>>()?.into_iter().unzip()
        };
        if shards.is_empty() {
            return Err(Error::Index { path: dir.to_path_buf(), problem: IndexProblem::Empty });
        }
        Builder::from_shards(dir, shards)?.finish(sources)
    }

    /// Indexes shards that are open already, such as files embedded in a program.
    ///
    /// With an index file the shards are those that it names, and others are left alone; without one all shards count.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_sources(
        shards: Vec<(String, Arc<dyn Source>)>,
        index_json: Option<&dyn Source>,
    ) -> Result<Self, Error> {
        let Some(index_json) = index_json else {
            let (names, sources) = shards.into_iter().unzip();
            return Builder::from_shards(Path::new("checkpoint"), names)?.finish(sources);
        };
        let builder = Builder::from_index(index_json)?;
        let find = |name: &String| shards.iter().find(|shard| shard.0 == *name);
        let missing: Vec<_> = builder.shards().iter().filter(|name| find(name).is_none()).cloned().collect();
        if !missing.is_empty() {
            return Err(builder.missing(missing));
        }
        let sources = builder.shards().iter().filter_map(find).map(|shard| Arc::clone(&shard.1)).collect();
        builder.finish(sources)
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.entry(self.names.key(name)?)
    }

    /// A pattern such as `layers.{}.experts.{}.w1.weight`, if any tensor fits it.
    ///
    /// Up to three numbers that are whole components of a name are written `{}`, all of them: the released names have two at
    /// most. From the fourth on they are part of the pattern, as are numbers above 65,535 and numbers with leading zeros.
    pub fn template(&self, pattern: &str) -> Option<TemplateId> {
        self.names.template(pattern)
    }

    /// The tensor that `template` names with `numbers`, found without allocating.
    pub fn at(&self, template: TemplateId, numbers: &[u32]) -> Option<TensorInfo<'_>> {
        if self.names.numbers(template)? != numbers.len() {
            return None;
        }
        let mut key = Key { template: template.0, numbers: [0; NUMBERS] };
        for (to, &from) in key.numbers.iter_mut().zip(numbers) {
            let Ok(number) = u16::try_from(from) else {
                // Too large for a key, so such a name, if there is one, has a template of its own.
                return self.find(&self.names.fill(template, numbers));
            };
            *to = number;
        }
        self.entry(key)
    }

    /// All tensors, in the order of the shards and of their data in each.
    pub fn iter(&self) -> impl Iterator<Item = (String, TensorInfo<'_>)> {
        let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
        order.sort_unstable_by_key(|&at| file_order(&self.entries[at as usize], &self.kinds));
        order.into_iter().map(|at| {
            let entry = &self.entries[at as usize];
            (self.names.name(entry.key()), self.info(entry))
        })
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many tensors the shards have that the index file does not name. They can be found like the others.
    pub fn unindexed(&self) -> usize {
        self.unindexed
    }

    /// The memory that the index holds, without the sources.
    pub fn heap_bytes(&self) -> usize {
        let tables = self.names.heap_bytes() + self.kinds.heap_bytes();
        let sources = self.sources.capacity() * size_of::<Arc<dyn Source>>();
        self.entries.capacity() * size_of::<Entry>() + tables + sources
    }

    /// The file of a tensor.
    ///
    /// # Panics
    /// If `id` is of another index with more files.
    pub fn source(&self, id: SourceId) -> &Arc<dyn Source> {
        &self.sources[id.index()]
    }

    /// All files. A [`SourceId`] is a place in this list.
    pub fn sources(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    fn entry(&self, key: Key) -> Option<TensorInfo<'_>> {
        let at = self.entries.binary_search_by_key(&key, Entry::key).ok()?;
        Some(self.info(&self.entries[at]))
    }

    fn info(&self, entry: &Entry) -> TensorInfo<'_> {
        let kind = self.kinds.get(entry.kind().expect("a finished index knows all kinds"));
        TensorInfo {
            dtype: kind.dtype,
            shape: &kind.shape,
            source: SourceId::new(usize::from(entry.source())),
            offset: entry.offset(),
            bytes: kind.bytes,
        }
    }
}

impl fmt::Debug for TensorIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorIndex")
            .field("tensors", &self.entries.len())
            .field("sources", &self.sources)
            .field("unindexed", &self.unindexed)
            .finish_non_exhaustive()
    }
}

/// Sorts by place in the files; an empty tensor comes before the one that begins where it lies.
fn file_order(entry: &Entry, kinds: &Kinds) -> (u16, u64, u64, Key) {
    let bytes = entry.kind().map_or(0, |kind| kinds.get(kind).bytes);
    (entry.source(), entry.offset(), bytes, entry.key())
}
