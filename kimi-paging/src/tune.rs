//! A short measurement that finds settings for a set of files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    Backend, Budget, Entry, Error, Executor, Extent, ReadSettings, Readers, Ring, Source, SourceId, Tape,
};

/// The tiles of the measurement: what a ring reads unless told otherwise.
const TILE_BYTES: usize = 4 << 20;

/// Rows of the measurement's tape; any that divide a tile would do.
const ROW_BYTES: u64 = 4096;

/// Settings within this part of the fastest count as equally fast, as measurements differ by more from run to run.
const ALIKE: f64 = 0.05;

/// What is measured, in this order: few reads under way first, so that a lucky late run must be clearly better.
const CANDIDATES: [ReadSettings; 8] = [
    ReadSettings::threads(1),
    ReadSettings::threads(2),
    ReadSettings::threads(4),
    ReadSettings::threads(8),
    ReadSettings::uring(4, 1 << 20),
    ReadSettings::uring(16, 1 << 20),
    ReadSettings::uring(8, 4 << 20),
    ReadSettings::uring(64, 256 << 10),
];

/// How much a measurement may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a measurement costs bytes and time")]
pub struct TuneLimits {
    /// The most bytes that are read.
    pub bytes: u64,
    /// The time after which no read begins.
    pub time: Duration,
}

/// Two gigabytes or two seconds.
impl Default for TuneLimits {
    fn default() -> Self {
        Self { bytes: 2_000_000_000, time: Duration::from_secs(2) }
    }
}

/// The outcome of [`tune`]. It belongs to a set of files on a drive and is worth keeping with them.
///
/// ```
/// let json = r#"{"backend":"direct","settings":{"executor":"uring","depth":16,"request_bytes":1048576},
///     "bytes_per_second":6500000000,"samples":[]}"#;
/// let kept: kimi_paging::Tuning = serde_json::from_str(json)?;
/// let readers = kimi_paging::Readers::with_settings(&kept.settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tuning {
    /// How the files were read; [`Backend::Pread`] as soon as one of them was read through the page cache.
    pub backend: Backend,
    /// The fastest settings, or of several that are about as fast the ones with the fewest bytes under way.
    pub settings: ReadSettings,
    /// What they reached; 0 where there was nothing to measure.
    pub bytes_per_second: u64,
    /// Everything that was measured.
    pub samples: Vec<Sample>,
}

/// One measurement of a [`Tuning`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sample {
    /// The settings, as they were in use.
    pub settings: ReadSettings,
    /// The bytes that were read.
    pub bytes: u64,
    /// How long that took.
    pub elapsed_ns: u64,
}

impl Sample {
    /// Bytes per second.
    pub fn bytes_per_second(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.elapsed_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Measures which [`ReadSettings`] read these files fastest, the way a ring does: in tiles, one after another.
///
/// Each of a handful of settings reads its own part of the files, so that none finds what another has read. Pages that the
/// page cache holds are dropped first where files are read through it. To decide between backends, measure both and compare.
/// Mapped files and memory have no settings; of them alone nothing is measured and the settings are the default ones.
///
/// Memory for the reads is leased from `budget` meanwhile; settings that do not fit it are left out.
///
/// # Errors
/// What reading returns.
pub fn tune(sources: &[Arc<dyn Source>], budget: &Budget, limits: TuneLimits) -> Result<Tuning, Error> {
    let start = Instant::now();
    let files: Vec<_> = (0..sources.len())
        .filter(|&at| matches!(sources[at].backend(), Backend::Direct | Backend::Pread))
        .map(|at| (SourceId::new(at), sources[at].len() / ROW_BYTES * ROW_BYTES))
        .collect();
    let backends = files.iter().map(|(id, _)| sources[id.index()].backend());
    let direct = !files.is_empty() && backends.clone().all(|backend| backend == Backend::Direct);
    let backend = match (files.first(), sources.first()) {
        (None, Some(source)) => source.backend(),
        _ if direct => Backend::Direct,
        _ => Backend::Pread,
    };
    let count = CANDIDATES.len() as u64;
    let total: u64 = files.iter().map(|file| file.1).sum();
    let share = (limits.bytes.min(total) / count) / ROW_BYTES * ROW_BYTES;
    let mut samples = Vec::new();
    for (number, settings) in (0u64..).zip(&CANDIDATES) {
        let until = start + limits.time.mul_f64((number + 1) as f64 / count as f64);
        // Evenly over all files.
        let extents = cut(&files, total / count * number / ROW_BYTES * ROW_BYTES, share);
        let sample = measure(sources, &extents, settings, budget, until)?;
        samples.extend(sample.filter(|sample| sample.bytes > 0));
    }
    let best = choose(&samples);
    Ok(Tuning {
        backend,
        settings: best.map_or_else(ReadSettings::default, |best| best.settings),
        bytes_per_second: best.map_or(0, |best| best.bytes_per_second()),
        samples,
    })
}

/// The fastest, or what is about as fast with fewer bytes under way.
fn choose(samples: &[Sample]) -> Option<Sample> {
    let fastest = samples.iter().map(Sample::bytes_per_second).max()?;
    let fast =
        samples.iter().filter(|sample| sample.bytes_per_second() as f64 >= fastest as f64 * (1.0 - ALIKE));
    fast.min_by_key(|sample| in_flight(&sample.settings)).copied()
}

/// Bytes under way at once.
fn in_flight(settings: &ReadSettings) -> usize {
    settings.depth
        * match settings.executor {
            Executor::Threads => TILE_BYTES,
            Executor::Uring => settings.request_bytes,
        }
}

/// The extents of `len` bytes from byte `from` of all files, taken as one.
fn cut(files: &[(SourceId, u64)], from: u64, len: u64) -> Vec<Extent> {
    let (mut skip, mut left) = (from, len);
    let mut extents = Vec::new();
    for &(source, bytes) in files {
        let offset = skip.min(bytes);
        let part = (bytes - offset).min(left);
        if part > 0 {
            extents.push(Extent { source, offset, len: part });
        }
        (skip, left) = (skip - offset, left - part);
    }
    extents
}

/// Reads `extents` until the end or the deadline. `None` for settings that the system or the budget refuses.
fn measure(
    sources: &[Arc<dyn Source>],
    extents: &[Extent],
    settings: &ReadSettings,
    budget: &Budget,
    until: Instant,
) -> Result<Option<Sample>, Error> {
    if extents.is_empty() {
        return Ok(None);
    }
    let release = || extents.iter().for_each(|at| sources[at.source.index()].release(at.offset, at.len));
    let entries = extents.iter().map(|&extent| Entry::new(extent, ROW_BYTES)).collect::<Vec<_>>();
    let (count, tape) = (entries.len(), Tape::new(entries)?);
    // One tile is with the consumer.
    let depth = in_flight(settings).div_ceil(TILE_BYTES) + 1;
    let builder = Ring::builder(sources, tape).tile_bytes(TILE_BYTES).depth(depth);
    if builder.leased_bytes()? > budget.available_bytes() {
        return Ok(None);
    }
    let readers = Readers::with_settings(settings)?;
    if readers.fallback().is_some() {
        return Ok(None);
    }
    let mut ring = match builder.build(budget, &readers) {
        // Someone else was faster.
        Err(Error::OverBudget { .. }) => return Ok(None),
        ring => ring?,
    };
    release();
    let start = Instant::now();
    ring.push(0..count);
    while Instant::now() < until && ring.next()?.is_some() {}
    let elapsed = start.elapsed();
    let bytes = ring.bytes_read();
    drop(ring);
    release();
    let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    Ok(Some(Sample { settings: readers.settings(), bytes, elapsed_ns }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(settings: ReadSettings, bytes: u64) -> Sample {
        Sample { settings, bytes, elapsed_ns: 1_000_000_000 }
    }

    #[test]
    fn about_as_fast_with_less_under_way_is_better() {
        let [slow, deep, modest] =
            [ReadSettings::threads(1), ReadSettings::threads(8), ReadSettings::uring(4, 1 << 20)];
        assert_eq!(choose(&[]), None);
        let chosen = |samples: &[Sample]| choose(samples).unwrap().settings;
        assert_eq!(chosen(&[sample(slow, 500), sample(deep, 1000), sample(modest, 960)]), modest);
        assert_eq!(chosen(&[sample(slow, 500), sample(deep, 1000), sample(modest, 940)]), deep);
    }

    #[test]
    fn parts_go_over_the_ends_of_files() {
        let files = [(SourceId::new(0), 100), (SourceId::new(2), 0), (SourceId::new(3), 50)];
        let cut = |from, len| {
            cut(&files, from, len).iter().map(|at| (at.source.index(), at.offset, at.len)).collect::<Vec<_>>()
        };
        assert_eq!(cut(0, 100), [(0, 0, 100)]);
        assert_eq!(cut(90, 30), [(0, 90, 10), (3, 0, 20)]);
        assert_eq!(cut(120, 100), [(3, 20, 30)]);
        assert_eq!(cut(150, 10), []);
    }
}
