//! How fast a file streams through a ring, and how little memory that takes.
//!
//! `cargo run --release -p kimi-paging --example stream -- FILE [pread|mmap] [THREADS] [DEPTH] [LAPS]`
//!
//! Every byte is added up on one thread, as a stand-in for the compute. To measure the drive and not the page cache, take a file
//! that was not read before, or is larger than memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kimi_paging::{Budget, Entry, Extent, FileSource, Readers, Ring, Source, SourceId, Tape, peak_rss_bytes};

const ROW_BYTES: u64 = 1 << 13;
const TILE_BYTES: usize = 4 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: stream FILE [pread|mmap] [THREADS] [DEPTH] [LAPS]")?;
    let number = |at: usize, default: usize| args.get(at).map_or(Ok(default), |text| text.parse());
    let (threads, depth, laps) = (number(2, Readers::DEFAULT_THREADS)?, number(3, 8)?, number(4, 1)?);
    let source = open(Path::new(path), args.get(1).is_some_and(|mode| mode == "mmap"))?;
    let backend = source.backend();

    let extent = Extent { source: SourceId::new(0), offset: 0, len: source.len() / ROW_BYTES * ROW_BYTES };
    let tape = Tape::new(vec![Entry::new(extent, ROW_BYTES)])?;
    let (budget, readers) = (Budget::unlimited(), Readers::new(threads)?);
    let mut ring =
        Ring::builder(&[source], tape).tile_bytes(TILE_BYTES).depth(depth).build(&budget, &readers)?;

    let start = Instant::now();
    let mut sum = 0u64;
    for _ in 0..laps {
        ring.push(0..1);
    }
    while let Some(tile) = ring.next()? {
        sum = tile.as_chunks().0.iter().fold(sum, |sum, chunk| sum.wrapping_add(u64::from_le_bytes(*chunk)));
    }
    let seconds = start.elapsed().as_secs_f64();
    let stats = readers.stats();
    println!("backend    {backend}, {threads} threads, depth {depth}, sum {sum:x}");
    println!("speed      {:.2} GB/s", ring.bytes_read() as f64 / seconds / 1e9);
    println!("waited     {:.1} % of {seconds:.2} s", stats.tape.wait_ns as f64 / seconds / 1e7);
    println!("reading    {:.1} % of the time", stats.active_ns as f64 / seconds / 1e7);
    println!("leased     {:.1} MB at the peak", budget.peak_bytes() as f64 / 1e6);
    if let Some(bytes) = peak_rss_bytes() {
        println!("resident   {:.1} MB at the peak", bytes as f64 / 1e6);
    }
    Ok(())
}

#[cfg(feature = "mmap")]
#[expect(unsafe_code, reason = "mapping is unsafe for the caller")]
fn open(path: &Path, map: bool) -> Result<Arc<dyn Source>, kimi_paging::Error> {
    if map {
        // SAFETY: this example is for files that nobody changes meanwhile.
        return Ok(Arc::new(unsafe { kimi_paging::MmapSource::open(path) }?));
    }
    Ok(Arc::new(FileSource::open(path)?))
}

#[cfg(not(feature = "mmap"))]
fn open(path: &Path, _: bool) -> Result<Arc<dyn Source>, kimi_paging::Error> {
    Ok(Arc::new(FileSource::open(path)?))
}
