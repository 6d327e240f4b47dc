//! A file mapped into memory.
#![expect(unsafe_code, reason = "a mapping is sound only while nobody changes the file")]

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::file::{open_regular, read_once};
use super::{Backend, Source, check_range};
use crate::Error;

/// A fault maps the pages around it too, up to this much by default on Linux (`fault_around_bytes`), and in windows
/// aligned to it. Releasing less than that would leave pages behind.
#[cfg(unix)]
const FAULT_AROUND_BYTES: u64 = 64 << 10;

/// A file mapped into memory: no copy, and the system keeps what fits.
///
/// The best reader when the whole model fits in memory. Before bytes are handed out the file is asked for its length, so
/// that a file which was truncated after it was opened is an error. Between that question and the use of the bytes a race
/// remains, in which the process dies of a signal; hence the contract of [`open`](Self::open).
#[derive(Debug)]
pub struct MmapSource {
    map: Mmap,
    file: File,
    path: PathBuf,
}

impl MmapSource {
    /// Maps `path` for reading.
    ///
    /// # Safety
    /// As long as the source lives, nobody may change or truncate the file: the bytes are handed out as `&[u8]`, which
    /// promises that they do not change, and touching a page that the file has lost raises a signal.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened or mapped, or is not a regular file.
    pub unsafe fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let (file, _) = match open_regular(&path) {
            Ok(opened) => opened,
            Err(source) => return Err(Error::Io { operation: "open", path, source }),
        };
        // SAFETY: the caller promises that the file stays as it is while this mapping lives, which is as long as `self`.
        match unsafe { Mmap::map(&file) } {
            Ok(map) => Ok(Self { map, file, path }),
            Err(source) => Err(Error::Io { operation: "map", path, source }),
        }
    }

    fn view(&self, offset: u64, len: usize) -> Result<&[u8], Error> {
        check_range(&self.path, self.len(), offset, len)?;
        let now = match self.file.metadata() {
            Ok(metadata) => metadata.len(),
            Err(source) => return Err(Error::Io { operation: "stat", path: self.path.clone(), source }),
        };
        check_range(&self.path, now, offset, len)?;
        let start = offset as usize; // at most the length of the mapping, which is a usize
        Ok(&self.map[start..start + len])
    }
}

impl Source for MmapSource {
    fn name(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        buf.copy_from_slice(self.view(offset, buf.len())?);
        Ok(())
    }

    /// Reads the file beside the mapping: a fault would read megabytes around it.
    fn read_once(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        check_range(&self.path, self.len(), offset, buf.len())?;
        read_once(&self.file, &self.path, offset, buf)
    }

    fn backend(&self) -> Backend {
        Backend::Mmap
    }

    fn mapped(&self, offset: u64, len: usize) -> Result<Option<&[u8]>, Error> {
        self.view(offset, len).map(Some)
    }

    #[cfg(unix)]
    fn will_need(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len());
        if offset < end {
            let _ =
                self.map.advise_range(memmap2::Advice::WillNeed, offset as usize, (end - offset) as usize);
        }
    }

    /// Takes the pages out of the process, outward to whole fault windows. They stay in the page cache while there is room.
    #[cfg(unix)]
    fn release(&self, offset: u64, len: u64) {
        let start = offset / FAULT_AROUND_BYTES * FAULT_AROUND_BYTES;
        let end = offset.saturating_add(len).min(self.len());
        let end = end.next_multiple_of(FAULT_AROUND_BYTES).min(self.len());
        if start < end {
            let (start, len) = (start as usize, (end - start) as usize);
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the mapping is shared, read-only and backed by a file that does not change, so a page that is
            // dropped and faulted in again holds the same bytes; views of it stay valid.
            let _ = unsafe { self.map.unchecked_advise_range(advice, start, len) };
        }
    }
}
