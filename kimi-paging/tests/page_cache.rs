//! What direct reads leave in the page cache: nothing.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "asks the system which pages of a file are in memory")]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use kimi_paging::{
    Backend, Budget, Entry, Extent, FileSource, Ring, Run, Slots, Source, SourceId, Tape, TuneLimits, tune,
};

#[path = "support/sources.rs"]
mod sources;

const FILE_BYTES: usize = (8 << 20) + 1234;
const PAGE: usize = 4096;

/// The number of pages of a file that are in the page cache.
fn cached_pages(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: a new mapping of an open file that is only asked about, never looked at, and removed at the end; `pages` has a byte
    // for each of its pages.
    unsafe {
        let map =
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, len, pages.as_mut_ptr()), 0);
        assert_eq!(libc::munmap(map, len), 0);
    }
    pages.iter().filter(|&&page| page & 1 == 1).count()
}

/// Writes a file and has the system forget its pages.
fn cold_file(path: &Path) {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![7; FILE_BYTES]).unwrap();
    file.sync_all().unwrap();
    FileSource::open(path).unwrap().release(0, u64::MAX);
    FileSource::open(path).unwrap().release(0, FILE_BYTES as u64 + PAGE as u64);
}

#[test]
fn direct_reads_leave_files_out_of_the_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    cold_file(&path);
    let source = sources::direct(&path);
    if source.backend() != Backend::Direct || cached_pages(&path) > 0 {
        eprintln!("skipped: no direct reads here, or pages that do not leave the page cache");
        return;
    }
    let list: Vec<Arc<dyn Source>> = vec![source];
    let extent = |offset, len| Extent { source: SourceId::new(0), offset, len };
    let strided =
        Run { source: SourceId::new(0), offset: 12_345, run_bytes: 50_000, count: 9, stride: 200_000 };
    let tape = Tape::new(vec![
        Entry::new(extent(77, 7_000_000), 1000),
        Entry::from_runs([strided], 1000),
        Entry::new(extent(FILE_BYTES as u64 - 100_000, 100_000), 100),
    ])
    .unwrap();
    for settings in sources::EXECUTORS {
        let readers = sources::readers(settings);
        let builder = Ring::builder(&list, tape.clone()).tile_bytes(1 << 20).depth(4);
        let mut ring = builder.build(&Budget::unlimited(), &readers).unwrap();
        ring.push(0..3);
        while let Some(tile) = ring.next().unwrap() {
            assert!(tile.iter().all(|&byte| byte == 7));
        }
        let mut slots = Slots::new(&list, &Budget::unlimited(), &readers, 2, 300_000, 1).unwrap();
        slots.begin((0..20).map(|n| (n, [extent(n * 300_007, 299_999)]))).unwrap();
        while let Some(record) = slots.next().unwrap() {
            assert!(record.part(0).iter().all(|&byte| byte == 7));
        }
        assert_eq!(cached_pages(&path), 0, "{settings:?}");
    }
    // Single rows and headers.
    let mut row = vec![0; 10_001];
    list[0].read_once(4_000_001, &mut row).unwrap();
    list[0].read_at(FILE_BYTES as u64 - 10_001, &mut row).unwrap();
    tune(&list, &Budget::unlimited(), TuneLimits::default()).unwrap();
    assert_eq!(cached_pages(&path), 0);

    // The same through the page cache is seen.
    FileSource::open(&path).unwrap().read_at(0, &mut row).unwrap();
    assert!(cached_pages(&path) > 0);
}
