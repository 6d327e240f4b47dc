//! How fast a file streams through a ring, and how little memory that takes.
//!
//! `cargo run --release -p kimi-paging --example stream -- FILE [BACKEND] [EXECUTOR] [DEPTH] [REQUEST_KIB] [--laps N] [--cold]`
//!
//! `BACKEND` is `pread`, `direct` or `mmap`; `EXECUTOR` is `threads` (as many as `DEPTH`) or `uring` (`DEPTH` requests of
//! `REQUEST_KIB` under way). `tune` in place of the executor measures and takes what was fastest. `--cold` has the system forget
//! the file first, as far as it can.
//!
//! Every byte is added up on one thread, as a stand-in for the compute.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kimi_paging::{
    Budget, Entry, Executor, Extent, FileSource, ReadSettings, Readers, Ring, Source, SourceId, Tape,
    TuneLimits, peak_rss_bytes, tune,
};

const ROW_BYTES: u64 = 1 << 13;
const TILE_BYTES: usize = 4 << 20;
const USAGE: &str =
    "usage: stream FILE [pread|direct|mmap] [threads|uring|tune] [DEPTH] [REQUEST_KIB] [--laps N] [--cold]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<_> = std::env::args().skip(1).collect();
    let cold = args.iter().position(|arg| arg == "--cold").map(|at| args.remove(at)).is_some();
    let laps = match args.iter().position(|arg| arg == "--laps") {
        Some(at) => args.drain(at..at + 2).nth(1).ok_or(USAGE)?.parse()?,
        None => 1,
    };
    let word = |at: usize, default: &'static str| args.get(at).map_or(default, String::as_str);
    let path = Path::new(args.first().ok_or(USAGE)?);
    let source = open(path, word(1, "pread"))?;
    let len = source.len() / ROW_BYTES * ROW_BYTES;
    let sources = [source];
    let settings = match word(2, "threads") {
        "threads" => ReadSettings::threads(word(3, "4").parse()?),
        "uring" => ReadSettings::uring(word(3, "16").parse()?, word(4, "1024").parse::<usize>()? << 10),
        "tune" => {
            let tuning = tune(&sources, &Budget::unlimited(), TuneLimits::default())?;
            for sample in &tuning.samples {
                println!(
                    "tried      {:.2} GB/s  {:?}",
                    sample.bytes_per_second() as f64 / 1e9,
                    sample.settings
                );
            }
            tuning.settings
        }
        _ => return Err(USAGE.into()),
    };
    if cold {
        // Mapped files have pages of their own to give up; the page cache is asked through a plain file.
        FileSource::open(path)?.release(0, sources[0].len());
    }
    let extent = Extent { source: SourceId::new(0), offset: 0, len };
    let tape = Tape::new(vec![Entry::new(extent, ROW_BYTES)])?;
    let (budget, readers) = (Budget::unlimited(), Readers::with_settings(&settings)?);
    // As many tiles as are under way, at least eight, and the one in use.
    let under_way = match settings.executor {
        Executor::Uring => (settings.depth * settings.request_bytes).div_ceil(TILE_BYTES),
        _ => settings.depth,
    };
    let depth = under_way.max(8) + 1;
    let mut ring =
        Ring::builder(&sources, tape).tile_bytes(TILE_BYTES).depth(depth).build(&budget, &readers)?;

    let start = Instant::now();
    let mut sum = 0u64;
    for _ in 0..laps {
        ring.push(0..1);
    }
    while let Some(tile) = ring.next()? {
        sum = tile.as_chunks().0.iter().fold(sum, |sum, chunk| sum.wrapping_add(u64::from_le_bytes(*chunk)));
    }
    let seconds = start.elapsed().as_secs_f64();
    let (stats, settings) = (readers.stats(), readers.settings());
    println!("backend    {}, sum {sum:x}", sources[0].backend());
    println!("reads      {settings:?}, {depth} tiles");
    for why in [sources[0].fallback().map(ToString::to_string), readers.fallback().map(ToString::to_string)] {
        why.iter().for_each(|why| println!("fell back  {why}"));
    }
    println!("speed      {:.2} GB/s", ring.bytes_read() as f64 / seconds / 1e9);
    println!("waited     {:.1} % of {seconds:.2} s", stats.tape.wait_ns as f64 / seconds / 1e7);
    println!("reading    {:.1} % of the time", stats.active_ns as f64 / seconds / 1e7);
    println!("leased     {:.1} MB at the peak", budget.peak_bytes() as f64 / 1e6);
    if let Some(bytes) = peak_rss_bytes() {
        println!("resident   {:.1} MB at the peak", bytes as f64 / 1e6);
    }
    Ok(())
}

fn open(path: &Path, backend: &str) -> Result<Arc<dyn Source>, Box<dyn std::error::Error>> {
    Ok(match backend {
        "pread" => Arc::new(FileSource::open(path)?),
        "direct" => Arc::new(FileSource::open_direct(path)?),
        "mmap" => map(path)?,
        _ => return Err(USAGE.into()),
    })
}

#[cfg(feature = "mmap")]
#[expect(unsafe_code, reason = "mapping is unsafe for the caller")]
fn map(path: &Path) -> Result<Arc<dyn Source>, Box<dyn std::error::Error>> {
    // SAFETY: this example is for files that nobody changes meanwhile.
    Ok(Arc::new(unsafe { kimi_paging::MmapSource::open(path) }?))
}

#[cfg(not(feature = "mmap"))]
fn map(_: &Path) -> Result<Arc<dyn Source>, Box<dyn std::error::Error>> {
    Err("built without the feature `mmap`".into())
}
