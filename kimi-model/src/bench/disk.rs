//! A drive, read as an engine reads it: through the readers, the ring and the slots of `kimi-paging`.
//!
//! Reads go past the page cache where the file system allows that. Where it does not, what the cache holds of the files is
//! dropped before every sample, and the report says why. Caches of the drive itself, or of a host that plays it, are beyond
//! reach: every sample goes on where the one before stopped, so that what was read comes last.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kimi_paging::{Backend, Budget, Executor, FileSource, PAGE_BYTES, ReadSettings, Source, memory_limit};
use serde::Serialize;

use self::area::Area;
use self::play::{Player, Sample};
use self::scratch::ScratchFile;
use super::{BenchError, Spread, name};
use crate::Model;
use crate::doctor::file_system;

mod area;
mod play;
mod scratch;

/// Bytes of a tile of the tape.
pub(super) const TILE_BYTES: usize = 4 << 20;

/// An expert of K3: three matrices of 3072 x 3584 in MXFP4.
const K3_EXPERT_BYTES: u64 = 3 * 3072 * 3584 * 17 / 32;

/// A row of K3's embedding: 7168 values in BF16.
const K3_ROW_BYTES: u64 = 7168 * 2;

/// How often every row is measured.
const ROUNDS: usize = 3;

/// The share of the memory that reads may take.
const MEMORY_SHARE: u64 = 4;

/// What is read in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Pattern {
    /// Tiles of 4 MiB one behind the other, read ahead by a ring: the trunk.
    Tape,
    /// Rounds of 16 records at random places, in slots: experts.
    Experts,
    /// Both at once, four bytes of tape to one of records, as a token of K3 reads them.
    Mixed,
    /// One row of an embedding after another, each waited for.
    Row,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tape, Self::Experts, Self::Mixed, Self::Row];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tape => "tape",
            Self::Experts => "experts",
            Self::Mixed => "mixed",
            Self::Row => "row",
        }
    }
}

/// A way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "past the page cache or through it, and by whom")]
pub struct Reading {
    /// Past the page cache ([`Backend::Direct`]) or through it, dropped first ([`Backend::Pread`]).
    pub backend: Backend,
    /// Who reads, and how much is under way.
    pub settings: ReadSettings,
}

impl Reading {
    /// Past the page cache.
    pub const fn direct(settings: ReadSettings) -> Self {
        Self { backend: Backend::Direct, settings }
    }

    /// Through the page cache.
    pub const fn pread(settings: ReadSettings) -> Self {
        Self { backend: Backend::Pread, settings }
    }

    /// Few and many reads of both kinds past the page cache, and the default ones through it.
    pub const ALL: [Self; 9] = [
        Self::direct(ReadSettings::threads(1)),
        Self::direct(ReadSettings::threads(2)),
        Self::direct(ReadSettings::threads(4)),
        Self::direct(ReadSettings::threads(8)),
        Self::direct(ReadSettings::uring(4, 1 << 20)),
        Self::direct(ReadSettings::uring(16, 1 << 20)),
        Self::direct(ReadSettings::uring(8, 4 << 20)),
        Self::direct(ReadSettings::uring(64, 256 << 10)),
        Self::pread(ReadSettings::threads(4)),
    ];
}

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskOptions {
    /// Ways to read.
    pub readings: Vec<Reading>,
    /// What is read.
    pub patterns: Vec<Pattern>,
    /// Bytes of a record; `None` takes the model's experts, else those of K3.
    pub record_bytes: Option<u64>,
    /// How long each row is measured, all rounds together.
    pub time: Duration,
    /// Bytes of the file that is written where there is none to read.
    pub size: u64,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            readings: Reading::ALL.to_vec(),
            patterns: Pattern::ALL.to_vec(),
            record_bytes: None,
            time: Duration::from_millis(900),
            size: 2 << 30,
        }
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiskReport {
    /// The file or folder.
    pub path: PathBuf,
    /// Files that were read.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// A file was written for it, and is gone.
    pub temporary: bool,
    /// The kind of file system, where the system tells.
    pub file_system: Option<String>,
    /// Bytes of a tile.
    pub tile_bytes: u64,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// How often each row was measured.
    pub rounds: usize,
    /// What was refused, and what was done instead.
    pub notes: Vec<String>,
    /// The rows, by pattern.
    pub rows: Vec<DiskRow>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiskRow {
    /// What was read.
    pub pattern: Pattern,
    /// How the files were read in the end.
    pub backend: Backend,
    /// Who read.
    #[serde(serialize_with = "name")]
    pub executor: Executor,
    /// Reads under way at once.
    pub depth: usize,
    /// The most bytes of one read; `None` where a range is read at once.
    pub request_bytes: Option<u64>,
    /// Bytes read in all rounds.
    pub bytes: u64,
    /// Bytes a second.
    pub bytes_per_second: Spread,
    /// How long the one who wants the bytes waited for each tile, record or row.
    pub wait_seconds: Percentiles,
}

/// Some of a sorted list.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Percentiles {
    /// How many there were.
    pub count: usize,
    /// Half are at most this.
    pub p50: f64,
    /// Nine in ten are at most this.
    pub p90: f64,
    /// All but one in a hundred are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Percentiles {
    /// By nearest rank; zeros of nothing.
    fn new(waits: &mut [f64]) -> Self {
        waits.sort_unstable_by(f64::total_cmp);
        let count = waits.len();
        let rank = |percent: usize| match (count * percent).div_ceil(100) {
            0 => 0.0,
            rank => waits[rank - 1],
        };
        Self { count, p50: rank(50), p90: rank(90), p99: rank(99), max: rank(100) }
    }
}

/// How far a measurement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a file is written, then read")]
pub enum DiskProgress {
    /// Bytes written, of all.
    Writing(u64, u64),
    /// Samples taken, of all.
    Reading(u64, u64),
}

/// Measures the drive of a model, of a file, or of a folder without a model, in which a file is written for the time being.
///
/// The file loses its name before it is read where the system allows that, so that nothing is left behind however the program ends.
/// `cancel` is looked at between any two tiles.
///
/// # Errors
/// [`BenchError::NoSpace`], [`BenchError::TooSmall`], [`BenchError::Cancelled`] and errors of the system.
pub fn measure(
    path: &Path,
    options: &DiskOptions,
    progress: &dyn Fn(DiskProgress),
    cancel: &AtomicBool,
) -> Result<DiskReport, BenchError> {
    let found = files(path)?;
    let scratch = match found {
        Some(_) => None,
        None => Some(ScratchFile::write(path, options.size, progress, cancel)?),
    };
    let files = match (&found, &scratch) {
        (Some(files), _) => files.clone(),
        (None, Some(scratch)) => vec![scratch.path().to_path_buf()],
        (None, None) => Vec::new(),
    };
    let direct = open(&files, |file| FileSource::open_direct(file))?;
    let pread = open(&files, |file| FileSource::open(file))?;
    let temporary = scratch.is_some();
    let _kept = scratch.map(ScratchFile::unname).transpose()?;

    let area = Area::new(&direct);
    if area.bytes() == 0 {
        return Err(BenchError::TooSmall { path: path.to_path_buf(), needed: PAGE_BYTES as u64 });
    }
    let record_bytes = options.record_bytes.or_else(|| expert_bytes(path)).unwrap_or(K3_EXPERT_BYTES);
    let record_bytes = record_bytes.clamp(1, area.bytes());
    let (readings, notes) = usable(&options.readings, &direct)?;

    let budget = Budget::new(memory_limit().bytes().unwrap_or(u64::MAX) / MEMORY_SHARE);
    let mut rows = Vec::new();
    for &pattern in &options.patterns {
        let mut seen = HashSet::new();
        for &reading in &readings {
            // A row is read by the one who wants it: the readers have no part in it.
            let settings = match pattern {
                Pattern::Row => ReadSettings::threads(1),
                _ => reading.settings,
            };
            let reading = Reading { settings, ..reading };
            if seen.insert(reading) {
                rows.push((pattern, reading, Vec::<Sample>::new()));
            }
        }
    }
    let mut player = Player::new(area, budget, record_bytes, K3_ROW_BYTES, cancel);
    let total = (rows.len() * ROUNDS) as u64;
    let mut done = 0;
    for _ in 0..ROUNDS {
        for (pattern, reading, samples) in &mut rows {
            progress(DiskProgress::Reading(done, total));
            let sources = if reading.backend == Backend::Direct { &direct } else { &pread };
            samples.push(player.sample(sources, reading.settings, *pattern, options.time / ROUNDS as u32)?);
            done += 1;
        }
    }
    progress(DiskProgress::Reading(total, total));
    Ok(DiskReport {
        path: path.to_path_buf(),
        files: files.len(),
        bytes: direct.iter().map(|source| source.len()).sum(),
        temporary,
        file_system: file_system(path).map(|found| found.kind),
        tile_bytes: TILE_BYTES as u64,
        record_bytes,
        row_bytes: K3_ROW_BYTES,
        rounds: ROUNDS,
        notes,
        rows: rows
            .into_iter()
            .map(|(pattern, reading, samples)| DiskRow::new(pattern, reading, samples))
            .collect(),
    })
}

impl DiskRow {
    fn new(pattern: Pattern, reading: Reading, samples: Vec<Sample>) -> Self {
        let rates: Vec<_> = samples.iter().map(|sample| sample.bytes as f64 / sample.seconds).collect();
        let Reading { backend, settings: ReadSettings { executor, depth, request_bytes } } = reading;
        Self {
            pattern,
            backend,
            executor,
            depth,
            request_bytes: (executor == Executor::Uring).then_some(request_bytes as u64),
            bytes: samples.iter().map(|sample| sample.bytes).sum(),
            bytes_per_second: Spread::new(&rates).expect("there are rounds"),
            wait_seconds: Percentiles::new(
                &mut samples.into_iter().flat_map(|sample| sample.waits).collect::<Vec<_>>(),
            ),
        }
    }
}

/// The files of a model, or the one file; `None` of a folder without a model.
fn files(path: &Path) -> Result<Option<Vec<PathBuf>>, BenchError> {
    let failed = |operation| move |source| BenchError::Io { operation, path: path.to_path_buf(), source };
    // Through links, as the shards of a download cache are.
    if !std::fs::metadata(path).map_err(failed("open"))?.is_dir() {
        return Ok(Some(vec![path.to_path_buf()]));
    }
    let mut shards = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed("list"))? {
        let file = entry.map_err(failed("list"))?.path();
        if file.extension().is_some_and(|extension| extension == "safetensors") && file.is_file() {
            shards.push(file);
        }
    }
    shards.sort_unstable();
    Ok((!shards.is_empty()).then_some(shards))
}

fn open(
    files: &[PathBuf],
    open: impl Fn(&Path) -> Result<FileSource, kimi_paging::Error>,
) -> Result<Vec<Arc<dyn Source>>, BenchError> {
    let open = |file: &PathBuf| Ok(Arc::new(open(file)?) as Arc<dyn Source>);
    files.iter().map(open).collect()
}

/// Bytes of an expert of a model, if it is one that opens.
fn expert_bytes(path: &Path) -> Option<u64> {
    let mut open = |file: &Path| Ok(Arc::new(FileSource::open(file)?) as Arc<dyn Source>);
    let model = Model::open(path, &mut open).ok()?;
    Some(model.layout.slot_bytes() as u64).filter(|&bytes| bytes > 0)
}

/// The readings as this system executes them, each once, and what it refuses.
fn usable(wanted: &[Reading], direct: &[Arc<dyn Source>]) -> Result<(Vec<Reading>, Vec<String>), BenchError> {
    let mut notes = Vec::new();
    let refused = direct.iter().find_map(|source| Some((source.name(), source.fallback()?)));
    let mut readings = Vec::new();
    for reading in wanted {
        let mut reading = *reading;
        if let (Backend::Direct, Some((file, problem))) = (reading.backend, refused) {
            reading.backend = Backend::Pread;
            let why = std::error::Error::source(problem).map_or_else(String::new, |why| format!(": {why}"));
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            notes.push(format!(
                "{name}: {problem}{why}; read through the page cache, dropped before every sample"
            ));
        }
        let readers = kimi_paging::Readers::with_settings(&reading.settings)?;
        match readers.fallback() {
            Some(problem) => notes.push(format!("no io_uring here: {problem}")),
            None if !readings.contains(&reading) => readings.push(reading),
            None => {}
        }
    }
    notes.sort_unstable();
    notes.dedup();
    if readings.is_empty() {
        let problem = notes.pop().unwrap_or_default();
        let source = std::io::Error::other(problem);
        let path = direct.first().map_or_else(PathBuf::new, |source| source.name().to_path_buf());
        return Err(BenchError::Io { operation: "read as asked for", path, source });
    }
    Ok((readings, notes))
}

/// [`BenchError::Cancelled`] once somebody asked for the end.
fn check(cancel: &AtomicBool) -> Result<(), BenchError> {
    if cancel.load(Ordering::Relaxed) { Err(BenchError::Cancelled) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
