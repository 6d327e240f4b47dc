//! From an index file and headers to a checked index.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::entry::{Entry, MAX_OFFSET, MAX_SOURCES};
use super::header::{self, Described};
use super::json::{Stream, WeightMap};
use super::kind::Kinds;
use super::name::Names;
use super::{TensorIndex, file_order};
use crate::{Error, IndexProblem, ShardProblem, Source};

/// How many tensors an error lists.
const LISTED: usize = 5;

/// An index under construction.
#[derive(Debug)]
pub(super) struct Builder {
    /// The index file, or the folder, for errors.
    path: PathBuf,
    names: Names,
    kinds: Kinds,
    shards: Vec<String>,
    /// Tensors of the index file, sorted by key. Their kinds and offsets are filled in as headers are read.
    promised: Vec<Entry>,
    /// Tensors that only a header has.
    others: Vec<Entry>,
}

impl Builder {
    /// Without an index file: the shards are known, all tensors come from their headers.
    pub(super) fn from_shards(path: &Path, shards: Vec<String>) -> Result<Self, Error> {
        let (names, kinds) = (Names::default(), Kinds::default());
        let builder =
            Self { path: path.to_path_buf(), names, kinds, shards, promised: Vec::new(), others: Vec::new() };
        if builder.shards.len() > MAX_SOURCES {
            return Err(builder.refuse(too_many_shards()));
        }
        Ok(builder)
    }

    /// Reads an index file: which tensor lies in which shard.
    pub(super) fn from_index(source: &dyn Source) -> Result<Self, Error> {
        let mut builder = Self::from_shards(source.name(), Vec::new())?;
        let mut shard_ids = HashMap::new();
        let mut latest = (String::new(), 0);
        let mut problem = None;
        let map = WeightMap(|tensor: &str, shard: &str| {
            // Neighbours in the file mostly lie in the same shard.
            if builder.shards.is_empty() || latest.0 != shard {
                match builder.shard_id(&mut shard_ids, shard) {
                    Ok(id) => latest = (shard.to_owned(), id),
                    Err(found) => problem = Some(found),
                }
            }
            match builder.names.intern(tensor) {
                Ok(key) => push(&mut builder.promised, Entry::promised(key, latest.1)),
                Err(found) => problem = Some(found),
            }
            problem.is_none()
        });
        let path = source.name();
        let parsed = Stream::new(source, 0, source.len()).parse(map, |error| Error::Index {
            path: path.to_path_buf(),
            problem: IndexProblem::Json { reason: error.to_string() },
        });
        source.release(0, source.len());
        if let Some(problem) = problem {
            return Err(builder.refuse(problem));
        }
        parsed?;
        builder.sort_shards();
        builder.promised.sort_unstable_by_key(Entry::key);
        if let Some([a, _]) = repeated(&builder.promised) {
            let tensor = builder.names.name(a.key());
            return Err(builder.refuse(IndexProblem::Duplicate { tensor, shards: None }));
        }
        Ok(builder)
    }

    /// Numbers the shards in the order of their names, whatever the order of the tensors in the index file.
    fn sort_shards(&mut self) {
        let mut order: Vec<usize> = (0..self.shards.len()).collect();
        order.sort_unstable_by(|&a, &b| self.shards[a].cmp(&self.shards[b]));
        let mut ids = vec![0; order.len()];
        for (id, &before) in order.iter().enumerate() {
            ids[before] = id as u16;
        }
        for entry in &mut self.promised {
            *entry = Entry::promised(entry.key(), ids[usize::from(entry.source())]);
        }
        self.shards.sort_unstable();
    }

    /// The shards in the order of their ids, which is that of their names.
    pub(super) fn shards(&self) -> &[String] {
        &self.shards
    }

    /// An error about shards that are not there.
    pub(super) fn missing(&self, shards: Vec<String>) -> Error {
        self.refuse(IndexProblem::MissingShards { shards, total: self.shards.len() })
    }

    /// Reads the headers of `sources`, one for each shard, and checks that everything fits together.
    pub(super) fn finish(mut self, sources: Vec<Arc<dyn Source>>) -> Result<TensorIndex, Error> {
        debug_assert_eq!(sources.len(), self.shards.len());
        for (id, source) in sources.iter().enumerate() {
            self.read_shard(id as u16, &**source)?;
        }
        let absent = || self.promised.iter().filter(|entry| entry.kind().is_none());
        let count = absent().count() as u64;
        if count > 0 {
            let place =
                |entry: &Entry| format!("{} ({})", self.names.name(entry.key()), self.shard(entry.source()));
            let tensors = absent().take(LISTED).map(place).collect();
            return Err(self.refuse(IndexProblem::MissingTensors { tensors, count }));
        }

        let unindexed = if self.promised.is_empty() { 0 } else { self.others.len() };
        let mut entries = std::mem::take(&mut self.promised);
        entries.append(&mut self.others);
        entries.sort_unstable_by_key(Entry::key);
        if let Some([a, b]) = repeated(&entries) {
            let tensor = self.names.name(a.key());
            let shards = [a, b].map(|entry| self.shard(entry.source()).to_owned());
            return Err(self.refuse(IndexProblem::Duplicate { tensor, shards: Some(shards) }));
        }
        entries.shrink_to_fit();
        self.names.shrink();
        self.kinds.shrink();
        Ok(TensorIndex { entries, names: self.names, kinds: self.kinds, sources, unindexed })
    }

    fn read_shard(&mut self, id: u16, source: &dyn Source) -> Result<(), Error> {
        if source.len() > MAX_OFFSET {
            return Err(self.refuse(IndexProblem::TooMany { what: "bytes in a shard", limit: MAX_OFFSET }));
        }
        let first_other = self.others.len();
        // The tensors of this shard as places in `promised`; those in `others` follow from `first_other`.
        let mut filled: Vec<u32> = Vec::new();
        let data = header::read(source, |tensor| self.add(id, source, &tensor, &mut filled))?;
        // Pages that two reads shared.
        source.release(0, data);

        let others = &mut self.others[first_other..];
        others.sort_unstable_by_key(Entry::key);
        if let Some([a, _]) = repeated(others) {
            return Err(duplicate(source, self.names.name(a.key())));
        }
        others.sort_unstable_by_key(|entry| file_order(entry, &self.kinds));
        filled.sort_unstable_by_key(|&at| file_order(&self.promised[at as usize], &self.kinds));
        self.check_coverage(source, data, &filled, first_other)
    }

    fn add(
        &mut self,
        id: u16,
        source: &dyn Source,
        tensor: &Described<'_>,
        filled: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let key = self.names.intern(tensor.name).map_err(|problem| self.refuse(problem))?;
        let kind = self.kinds.intern(tensor.dtype, tensor.shape, tensor.bytes);
        let kind = kind.map_err(|problem| self.refuse(problem))?;
        let Ok(at) = self.promised.binary_search_by_key(&key, Entry::key) else {
            push(&mut self.others, Entry::promised(key, id).found(kind, tensor.offset));
            return Ok(());
        };
        let entry = self.promised[at];
        if entry.source() == id && entry.kind().is_none() {
            self.promised[at] = entry.found(kind, tensor.offset);
            filled.push(at as u32);
            return Ok(());
        }
        let tensor = tensor.name.to_owned();
        if entry.source() == id {
            return Err(duplicate(source, tensor));
        }
        let (expected, found) = (self.shard(entry.source()).to_owned(), self.shard(id).to_owned());
        Err(self.refuse(match entry.kind() {
            Some(_) => IndexProblem::Duplicate { tensor, shards: Some([expected, found]) },
            None => IndexProblem::Misplaced { tensor, expected, found },
        }))
    }

    /// Checks that the tensors of a shard cover its data: no overlap, no hole, nothing behind the last.
    ///
    /// Both lists are in file order.
    fn check_coverage(
        &self,
        source: &dyn Source,
        data: u64,
        filled: &[u32],
        first_other: usize,
    ) -> Result<(), Error> {
        let refuse = |problem| Error::Shard { path: source.name().to_path_buf(), problem };
        let order = |entry: &&Entry| file_order(entry, &self.kinds);
        let mut promised = filled.iter().map(|&at| &self.promised[at as usize]).peekable();
        let mut others = self.others[first_other..].iter().peekable();
        let (mut end, mut last) = (data, None);
        loop {
            let other_first = match (promised.peek(), others.peek()) {
                (Some(a), Some(b)) => order(b) < order(a),
                (None, _) => true,
                (Some(_), None) => false,
            };
            let next = if other_first { others.next() } else { promised.next() };
            let Some(entry) = next else { break };
            let (begin, bytes) = (entry.offset(), self.bytes(entry));
            if begin > end {
                let before = self.names.name(entry.key());
                return Err(refuse(ShardProblem::Hole { before, bytes: begin - end }));
            }
            if let (Some(first), true) = (last, begin < end) {
                let [first, second] = [first, entry.key()].map(|key| self.names.name(key));
                let bytes = bytes.min(end - begin);
                return Err(refuse(ShardProblem::Overlap { first, second, bytes }));
            }
            (end, last) = (begin + bytes, Some(entry.key()));
        }
        match source.len() - end {
            0 => Ok(()),
            bytes => Err(refuse(ShardProblem::Trailing { bytes })),
        }
    }

    fn bytes(&self, entry: &Entry) -> u64 {
        entry.kind().map_or(0, |kind| self.kinds.get(kind).bytes)
    }

    fn shard_id(&mut self, ids: &mut HashMap<String, u16>, shard: &str) -> Result<u16, IndexProblem> {
        if let Some(&id) = ids.get(shard) {
            return Ok(id);
        }
        if !is_file_name(shard) {
            return Err(IndexProblem::ShardName { shard: shard.to_owned() });
        }
        let id = u16::try_from(self.shards.len()).map_err(|_| too_many_shards())?;
        self.shards.push(shard.to_owned());
        ids.insert(shard.to_owned(), id);
        Ok(id)
    }

    fn shard(&self, id: u16) -> &str {
        &self.shards[usize::from(id)]
    }

    fn refuse(&self, problem: IndexProblem) -> Error {
        Error::Index { path: self.path.clone(), problem }
    }
}

/// True for names that stay in their folder on every system: no separators, no drive letters, no `..`.
fn is_file_name(name: &str) -> bool {
    let plain = |c: char| !matches!(c, '/' | '\\' | ':' | '\0');
    !matches!(name, "" | "." | "..") && name.chars().all(plain)
}

/// Appends, growing by a quarter: doubling would hold up to twice the index for a moment.
fn push(entries: &mut Vec<Entry>, entry: Entry) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact((entries.len() / 4).max(1024));
    }
    entries.push(entry);
}

/// The first two neighbours of the same name among sorted entries.
fn repeated(entries: &[Entry]) -> Option<[Entry; 2]> {
    entries.array_windows().find(|[a, b]| a.key() == b.key()).copied()
}

fn duplicate(source: &dyn Source, tensor: String) -> Error {
    Error::Shard { path: source.name().to_path_buf(), problem: ShardProblem::Duplicate { tensor } }
}

fn too_many_shards() -> IndexProblem {
    IndexProblem::TooMany { what: "shards", limit: MAX_SOURCES as u64 }
}
