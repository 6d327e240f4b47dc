//! Files in every way of reading them, and every way of executing the reads.
#![allow(dead_code, reason = "each test uses some")]

use std::path::Path;
use std::sync::Arc;

use kimi_paging::{Backend, FileSource, ReadSettings, Readers, Source};
use proptest::prelude::*;

/// Settings of every executor that read one thing after another.
pub(crate) const ONE_BY_ONE: [ReadSettings; 2] = [ReadSettings::threads(1), ReadSettings::uring(1, 1 << 16)];

/// Settings of every executor, with one read under way and with several.
pub(crate) const EXECUTORS: [ReadSettings; 4] = [
    ReadSettings::threads(1),
    ReadSettings::threads(3),
    ReadSettings::uring(1, 1 << 16),
    ReadSettings::uring(8, 1 << 16),
];

/// Any settings.
pub(crate) fn settings() -> impl Strategy<Value = ReadSettings> {
    let uring = (1..9usize, 1..4usize).prop_map(|(depth, units)| ReadSettings::uring(depth, units << 16));
    prop_oneof![(1..4usize).prop_map(ReadSettings::threads), uring]
}

/// Readers that are what was asked for, or a message that this system has none.
pub(crate) fn readers(settings: ReadSettings) -> Readers {
    let readers = Readers::with_settings(&settings).unwrap();
    match readers.fallback() {
        Some(why) => eprintln!("no io_uring here, so threads read: {why}"),
        None => assert_eq!(readers.settings(), settings),
    }
    readers
}

/// The file at `path`, read through the page cache, past it and in memory.
pub(crate) fn every_backend(path: &Path) -> Vec<Arc<dyn Source>> {
    vec![Arc::new(FileSource::open(path).unwrap()), direct(path), mapped(path)]
}

/// The file at `path` read past the page cache, or a message that its file system has no direct reads.
pub(crate) fn direct(path: &Path) -> Arc<dyn Source> {
    let source = FileSource::open_direct(path).unwrap();
    match source.fallback() {
        Some(why) => eprintln!("no direct reads here: {why}"),
        None => assert_eq!(source.backend(), Backend::Direct),
    }
    Arc::new(source)
}

#[cfg(feature = "mmap")]
#[expect(unsafe_code, reason = "mapping is unsafe for the caller")]
pub(crate) fn mapped(path: &Path) -> Arc<dyn Source> {
    // SAFETY: the tests that change a file meanwhile touch no byte that it has lost.
    Arc::new(unsafe { kimi_paging::MmapSource::open(path) }.unwrap())
}

#[cfg(not(feature = "mmap"))]
pub(crate) fn mapped(path: &Path) -> Arc<dyn Source> {
    Arc::new(FileSource::open(path).unwrap())
}
