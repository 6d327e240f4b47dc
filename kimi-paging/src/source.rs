//! Where bytes come from: files, mapped files, memory.

use std::fmt;
use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;

mod direct;
mod file;
mod memory;
#[cfg(feature = "mmap")]
mod mmap;

pub use direct::DirectProblem;
pub(crate) use direct::prepare_thread;
pub use file::FileSource;
pub(crate) use file::is_transient;
pub use memory::MemorySource;
#[cfg(feature = "mmap")]
pub use mmap::MmapSource;

/// Bytes at fixed offsets, read by any number of threads at once.
///
/// The length is what it was when the source was opened. An implementation of one's own needs [`name`](Self::name),
/// [`len`](Self::len), [`read_at`](Self::read_at) and [`backend`](Self::backend) only.
pub trait Source: Send + Sync + fmt::Debug {
    /// The path of the file, or a name in its place, for errors.
    fn name(&self) -> &Path;

    /// The number of bytes.
    fn len(&self) -> u64;

    /// Fills `buf` with the bytes that start at `offset`.
    ///
    /// # Errors
    /// [`Error::ShortRead`] when the source ends earlier, [`Error::Io`] when the system refuses. What `buf` holds then is
    /// unspecified.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// As [`read_at`](Self::read_at), for bytes that are not wanted again: they do not stay in a cache of the system, and no
    /// others are read with them.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_once(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.read_at(offset, buf)?;
        self.release(offset, buf.len() as u64);
        Ok(())
    }

    /// How the bytes are read. [`Backend::Mmap`] and [`Backend::Memory`] promise that [`mapped`](Self::mapped) returns a
    /// view of every range.
    fn backend(&self) -> Backend;

    /// The `len` bytes that start at `offset` without a copy, where the backend can do that.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at): a file that has become shorter is an error, not a signal.
    fn mapped(&self, offset: u64, len: usize) -> Result<Option<&[u8]>, Error> {
        let _ = (offset, len);
        Ok(None)
    }

    /// A hint that these bytes are wanted soon. May start reading; never blocks for the bytes.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// A hint that these bytes are not wanted any more. They may still be read, more slowly.
    fn release(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Where the last of these bytes ends that may be other than zero: those behind it are known to be zeros.
    ///
    /// What knows of no holes says that there may be something up to the end.
    fn data_end(&self, offset: u64, len: u64) -> u64 {
        offset.saturating_add(len)
    }

    /// What offset, length and memory of a read should be a multiple of: a power of two, at most 65,536 (other values count
    /// as 1). Reads elsewhere work too, through a copy.
    fn alignment(&self) -> usize {
        1
    }

    /// The file that has these bytes at these offsets, for readers that give the system many reads at once. `None` leaves all
    /// reading to [`read_at`](Self::read_at), which stays the judge of every read that fails.
    fn file(&self) -> Option<&File> {
        None
    }

    /// Why a file that was to be read past the page cache is not; `None` where everything is as asked for.
    fn fallback(&self) -> Option<&DirectProblem> {
        None
    }

    /// True when there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a [`Source`] is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Backend {
    /// Positioned reads of a file, through the page cache.
    Pread,
    /// Positioned reads of a file, past the page cache.
    Direct,
    /// A file mapped into memory.
    Mmap,
    /// Bytes that are in memory anyway.
    Memory,
}

impl Backend {
    /// True where every range can be looked at without a copy.
    pub(crate) fn has_views(self) -> bool {
        matches!(self, Self::Mmap | Self::Memory)
    }

    /// The name that reports use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::Direct => "direct",
            Self::Mmap => "mmap",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The place of a source in a list of sources, such as [`TensorIndex::sources`](crate::TensorIndex::sources).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(u32);

impl SourceId {
    /// The id of the source at `index` of its list.
    ///
    /// # Panics
    /// If `index` does not fit 32 bits.
    pub fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("no list holds 2^32 sources"))
    }

    /// The place in the list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A range of bytes in one of a list of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a range of bytes has these three parts")]
pub struct Extent {
    /// The source.
    pub source: SourceId,
    /// Where the range begins in it.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The largest alignment that readers keep.
pub(crate) const MAX_ALIGNMENT: usize = 1 << 16;

/// The alignment that readers keep for a source.
pub(crate) fn alignment(source: &dyn Source) -> u64 {
    let alignment = source.alignment();
    // Offsets of a real file have 63 bits, so none of them can be rounded out of range.
    let usable = alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT && source.len() <= 1 << 62;
    if usable { alignment as u64 } else { 1 }
}

/// Checks that `len` bytes at `offset` lie in a source of `source_len` bytes.
pub(crate) fn check_range(name: &Path, source_len: u64, offset: u64, len: usize) -> Result<(), Error> {
    let found = source_len.saturating_sub(offset);
    if found >= len as u64 {
        return Ok(());
    }
    Err(Error::ShortRead { path: name.to_path_buf(), offset, expected: len as u64, found })
}
