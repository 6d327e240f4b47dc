//! Synthetic models: any geometry in the released layout, with random weights, made without reading a source.
//!
//! A *sparse* model has its full size by name only. Routers, embedding, output matrix, norms and everything small are random;
//! every big matrix has its first rows, every code plane and every scale plane of an expert its first page, and the rest are
//! holes that read as zeros and take no storage. Its cost in bytes and time is that of the real model, and its logits depend on
//! every matrix.
//!
//! Weights are a function of seed, tensor name and position alone.

mod configs;
mod folder;
mod generated;
mod geometry;
mod packed;
pub(crate) mod random;
mod storage;
mod tensor;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rayon::prelude::*;

use folder::{Draft, io_error, stored_bytes, write_at};
use random::{Stream, Tables};
use tensor::PAGE_BYTES;

pub use geometry::{GEOMETRIES, Geometry};
pub use packed::{PackedSynthError, synthesize_packed};
pub use tensor::Tensor;

/// Bytes that a thread computes at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes that are written before they are put on the drive: what a cancelled run has to wait for.
const SYNC_BYTES: u64 = 256 << 20;

/// How to make a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SynthOptions {
    /// Leave holes in the big matrices.
    pub sparse: bool,
    /// Selects the weights.
    pub seed: u64,
    /// Threads; `None` takes what affinity and CPU quota allow. The result does not depend on it.
    pub threads: Option<usize>,
}

/// How far a model is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SynthProgress {
    /// Bytes of weights written.
    pub done_bytes: u64,
    /// Bytes of weights to write in all.
    pub total_bytes: u64,
}

/// What was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct SynthReport {
    /// Files with tensors.
    pub files: usize,
    /// Tensors.
    pub tensors: u64,
    /// Bytes of all tensors, holes included.
    pub tensor_bytes: u64,
    /// Bytes of weights written.
    pub written_bytes: u64,
    /// Bytes that the files with tensors take on the drive; `None` where the system does not tell.
    pub stored_bytes: Option<u64>,
}

/// Why a model could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// The folder holds something.
    #[error("{} is not empty: it holds `{entry}`; give a new folder or an empty one", dir.display())]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
        /// One of its entries.
        entry: String,
    },
    /// The file system would store the holes of a sparse model.
    #[error("the file system of {} does not hold a sparse model: {reason}", dir.display())]
    NotSparse {
        /// The folder.
        dir: PathBuf,
        /// What it cannot do.
        reason: String,
    },
    /// The drive has too little room.
    #[error("{} needs {:.1} GB, {:.1} GB are free", dir.display(), *needed as f64 / 1e9, *free as f64 / 1e9)]
    NoSpace {
        /// The folder.
        dir: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// The system refused an operation on a file.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The threads could not be started.
    #[error("the threads could not be started")]
    Threads {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Somebody asked for the end.
    #[error("cancelled")]
    Cancelled,
}

/// Makes a model in a folder that does not exist yet, is empty, or holds what a cancelled run left.
///
/// `progress` is called from several threads, often. Files have other names until all of them are on the drive; then
/// `config.json` gets its name last. After an error what was made is taken away again; after `cancel` became true it stays, under
/// names that no model has, so that nobody waits.
///
/// # Errors
/// [`SynthError`]; free space and, for a sparse model, the file system are checked before anything big is written.
pub fn synthesize(
    geometry: &Geometry,
    dir: &Path,
    options: SynthOptions,
    progress: &(dyn Fn(SynthProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<SynthReport, SynthError> {
    let mut draft = Draft::new(dir)?;
    match fill(&mut draft, geometry, options, progress, cancel) {
        Ok(report) => draft.finish().map(|()| report),
        Err(error) => {
            if matches!(error, SynthError::Cancelled) {
                draft.abandon();
            }
            Err(error)
        }
    }
}

/// Makes all files of a folder.
fn fill(
    draft: &mut Draft,
    geometry: &Geometry,
    options: SynthOptions,
    progress: &(dyn Fn(SynthProgress) + Sync),
    cancel: &AtomicBool,
) -> Result<SynthReport, SynthError> {
    let sizes = Sizes::new(geometry, options.sparse, cancel)?;
    draft.check_free(sizes.needed)?;
    if options.sparse {
        draft.check_sparse(sizes.largest_shard)?;
    }
    let threads = rayon::ThreadPoolBuilder::new()
        .num_threads(
            options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        )
        .thread_name(|i| format!("kimi-synth-{i}"))
        .build()
        .map_err(|error| SynthError::Threads { source: Box::new(error) })?;
    let writer = Writer {
        tables: Tables::new(),
        seed: options.seed,
        done: AtomicU64::new(0),
        total: sizes.report.written_bytes,
        progress,
        cancel,
    };
    let mut report = sizes.report;
    report.stored_bytes = Some(0);
    for shard in 0..geometry.shards() {
        let tensors = geometry.tensors(shard, options.sparse);
        let (file, path) = draft.create(&geometry.shard_name(shard))?;
        threads.install(|| writer.shard(&tensors, &file, &path))?;
        let stored = stored_bytes(&file).map_err(io_error("read", &path))?;
        report.stored_bytes = report.stored_bytes.zip(stored).map(|(sum, stored)| sum + stored);
    }
    let (file, path) = draft.create("model.safetensors.index.json")?;
    write_index(geometry, report.tensor_bytes, &file).map_err(io_error("write", &path))?;
    let (mut file, path) = draft.create("config.json")?;
    file.write_all(geometry.json()).and_then(|()| file.sync_all()).map_err(io_error("write", &path))?;
    stop_if(cancel)?;
    Ok(report)
}

/// What a model will take.
struct Sizes {
    report: SynthReport,
    largest_shard: u64,
    /// Bytes on the drive.
    needed: u64,
}

impl Sizes {
    fn new(geometry: &Geometry, sparse: bool, cancel: &AtomicBool) -> Result<Self, SynthError> {
        let mut sizes = Self { report: SynthReport::default(), largest_shard: 0, needed: 0 };
        sizes.report.files = geometry.shards();
        for shard in 0..geometry.shards() {
            stop_if(cancel)?;
            let tensors = geometry.tensors(shard, sparse);
            let header = header(&tensors).len() as u64;
            let bytes = data_bytes(&tensors);
            sizes.report.tensors += tensors.len() as u64;
            sizes.report.tensor_bytes += bytes;
            sizes.largest_shard = sizes.largest_shard.max(header + bytes);
            // The index repeats the names of the header.
            sizes.needed += 2 * header;
            for range in tensors.iter().flat_map(|tensor| &tensor.written) {
                let bytes = range.end - range.start;
                sizes.report.written_bytes += bytes;
                // Where holes follow, whole pages are stored.
                sizes.needed += if sparse { bytes.next_multiple_of(PAGE_BYTES) } else { bytes };
            }
        }
        Ok(sizes)
    }
}

fn data_bytes(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(Tensor::bytes).sum()
}

/// The header of a safetensors file with its length before it.
///
/// It is padded with spaces so that the first plane of an expert, and in K3 with it all others, begins on a page.
fn header(tensors: &[Tensor]) -> Vec<u8> {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let (mut begin, mut before_planes) = (0, None);
    for tensor in tensors {
        let end = begin + tensor.bytes();
        let Tensor { name, dtype, shape, .. } = tensor;
        // Names are ours: there is nothing to escape.
        let _ = write!(
            json,
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
        );
        if tensor.dtype.bits() == Some(8) {
            before_planes.get_or_insert(begin);
        }
        begin = end;
    }
    json.push('}');
    // Data begin on eight bytes in any case.
    let before = before_planes.unwrap_or(0).next_multiple_of(8);
    let used = 8 + json.len() as u64;
    let length = (used + before).next_multiple_of(PAGE_BYTES) - before;
    json.extend(std::iter::repeat_n(' ', (length - used) as usize));
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.into_bytes());
    bytes
}

/// The header of a file, and the size of the whole.
pub(crate) fn shard_outline(geometry: &Geometry, shard: usize) -> (Vec<u8>, u64) {
    let tensors = geometry.tensors(shard, true);
    let header = header(&tensors);
    let len = header.len() as u64 + data_bytes(&tensors);
    (header, len)
}

/// The index of all files, in the order of their tensors.
fn write_index(geometry: &Geometry, total_size: u64, file: &File) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write!(out, "{{\n  \"metadata\": {{\"total_size\": {total_size}}},\n  \"weight_map\": {{")?;
    let mut comma = "";
    for shard in 0..geometry.shards() {
        let file = geometry.shard_name(shard);
        for tensor in geometry.tensors(shard, false) {
            write!(out, "{comma}\n    \"{}\": \"{file}\"", tensor.name)?;
            comma = ",";
        }
    }
    out.write_all(b"\n  }\n}\n")?;
    out.flush()?;
    file.sync_all()
}

/// Writes the weights.
struct Writer<'a> {
    tables: Tables,
    seed: u64,
    done: AtomicU64,
    total: u64,
    progress: &'a (dyn Fn(SynthProgress) + Sync),
    cancel: &'a AtomicBool,
}

/// Some bytes of a tensor, and where they go.
struct Chunk<'a> {
    tensor: &'a Tensor,
    bytes: Range<u64>,
    /// Where the tensor begins in its file.
    offset: u64,
}

impl Writer<'_> {
    /// Writes a file on all threads of the pool that this runs in.
    fn shard(&self, tensors: &[Tensor], file: &File, path: &Path) -> Result<(), SynthError> {
        stop_if(self.cancel)?;
        let header = header(tensors);
        let length = header.len() as u64 + data_bytes(tensors);
        file.set_len(length).map_err(io_error("resize", path))?;
        write_at(file, &header, 0).map_err(io_error("write", path))?;
        let chunks = chunks(tensors, header.len() as u64);
        let mut rest = chunks.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let within = |chunk: &&Chunk<'_>| {
                bytes += chunk.bytes.end - chunk.bytes.start;
                bytes <= SYNC_BYTES
            };
            let count = rest.iter().take_while(within).count().max(1);
            let batch = rest.split_off(..count).expect("there are that many");
            batch
                .par_iter()
                .try_for_each_init(Vec::new, |buffer, chunk| self.chunk(chunk, buffer, file, path))?;
            file.sync_data().map_err(io_error("sync", path))?;
        }
        Ok(())
    }

    fn chunk(
        &self,
        chunk: &Chunk<'_>,
        buffer: &mut Vec<u8>,
        file: &File,
        path: &Path,
    ) -> Result<(), SynthError> {
        stop_if(self.cancel)?;
        let Chunk { tensor, bytes: Range { start, end }, offset } = chunk;
        buffer.resize((end - start) as usize, 0);
        tensor.compute(Stream::new(self.seed, &tensor.name), &self.tables, *start, buffer);
        write_at(file, buffer, offset + start).map_err(io_error("write", path))?;
        let done = self.done.fetch_add(end - start, Ordering::Relaxed) + end - start;
        (self.progress)(SynthProgress { done_bytes: done, total_bytes: self.total });
        Ok(())
    }
}

/// What is written of some tensors that lie one after another from `offset` on.
fn chunks(tensors: &[Tensor], mut offset: u64) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    for tensor in tensors {
        for Range { start, end } in tensor.written.iter().cloned() {
            let starts = (start..end).step_by(CHUNK_BYTES as usize);
            let part = |start: u64| start..(start + CHUNK_BYTES).min(end);
            chunks.extend(starts.map(|start| Chunk { tensor, bytes: part(start), offset }));
        }
        offset += tensor.bytes();
    }
    chunks
}

fn stop_if(cancel: &AtomicBool) -> Result<(), SynthError> {
    if cancel.load(Ordering::Relaxed) { Err(SynthError::Cancelled) } else { Ok(()) }
}
