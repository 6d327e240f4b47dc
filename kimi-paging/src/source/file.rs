//! Positioned reads of a file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Backend, DirectProblem, Source, check_range, direct};
use crate::Error;

/// The most bytes asked for in one call. macOS answers EINVAL from 2 GiB on, Linux stops at 2 GiB less a page; real
/// checkpoints have tensors beyond that.
const MAX_READ_BYTES: usize = 1 << 30;

/// How often a read is tried when the system says that it failed for now.
const ATTEMPTS: u32 = 3;

/// A file read at explicit offsets: no shared position, so any number of threads read it at once.
///
/// Symbolic links are followed, so a cache of linked shards works. Nothing is mapped, so a file that shrinks is an error and
/// never a signal. Reads go through the page cache, which the system gives back under pressure, or past it with
/// [`open_direct`](Self::open_direct).
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
    /// What direct reads are a multiple of; 1 for reads through the page cache.
    alignment: usize,
    fallback: Option<DirectProblem>,
}

impl FileSource {
    /// Opens `path` for reading.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened or is not a regular file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        match open_regular(&path) {
            Ok((file, len)) => Ok(Self { file, path, len, alignment: 1, fallback: None }),
            Err(source) => Err(Error::Io { operation: "open", path, source }),
        }
    }

    /// Opens `path` for reading past the page cache ([`Backend::Direct`]): what is read takes no memory but the caller's.
    ///
    /// The alignment comes from the system, and is tried out with reads of the first and the last block. Where that fails the
    /// file is read through the page cache instead ([`Backend::Pread`]), and [`Source::fallback`] says why. Linux only; other
    /// systems always fall back.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_direct(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::open_with(path.into(), direct::enable)
    }

    fn open_with(
        path: PathBuf,
        enable: impl FnOnce(&File, u64) -> Result<usize, DirectProblem>,
    ) -> Result<Self, Error> {
        let mut source = Self::open(path)?;
        match enable(&source.file, source.len) {
            Ok(alignment) => source.alignment = alignment,
            Err(problem) => source.fallback = Some(problem),
        }
        Ok(source)
    }

    fn is_direct(&self) -> bool {
        self.alignment > 1
    }
}

impl Source for FileSource {
    fn name(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        check_range(&self.path, self.len, offset, buf.len())?;
        let read = |part: &mut [u8], at| read_some(&self.file, part, at);
        let (path, expected) = (&self.path, buf.len() as u64);
        let found = if self.is_direct() {
            direct::fill(offset, buf, self.alignment, read)
        } else {
            fill(offset, buf, expected as usize, 1, read)
        };
        complete(path, offset, expected, found)
    }

    fn read_once(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if self.is_direct() {
            return self.read_at(offset, buf);
        }
        check_range(&self.path, self.len, offset, buf.len())?;
        read_once(&self.file, &self.path, offset, buf)
    }

    fn backend(&self) -> Backend {
        if self.is_direct() { Backend::Direct } else { Backend::Pread }
    }

    fn will_need(&self, offset: u64, len: u64) {
        if !self.is_direct() {
            advise(&self.file, offset, len, Hint::WillNeed);
        }
    }

    fn release(&self, offset: u64, len: u64) {
        if !self.is_direct() {
            advise(&self.file, offset, len, Hint::Release);
        }
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn fallback(&self) -> Option<&DirectProblem> {
        self.fallback.as_ref()
    }
}

/// Opens a regular file, and only that: opening a pipe would wait for its writer.
pub(super) fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

/// Reads without reading ahead, and drops what was read from the page cache.
///
/// The advice holds for the whole file, so other reads at this moment do without reading ahead too.
pub(super) fn read_once(file: &File, path: &Path, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
    let len = buf.len() as u64;
    advise(file, offset, len, Hint::Exact);
    let found = fill(offset, buf, buf.len(), 1, |part, at| read_some(file, part, at));
    let result = complete(path, offset, len, found);
    advise(file, offset, len, Hint::Normal);
    advise(file, offset, len, Hint::Release);
    result
}

#[cfg(unix)]
pub(super) fn read_some(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(windows)]
pub(super) fn read_some(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    // Moves the file's own position too, which nothing here uses.
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

/// Fills `buf` by calls of `read`, which may return less than it was asked for, until at least `wanted` bytes are there.
/// Returns how many are; fewer than `wanted` where the file ends.
///
/// Offset and length of every call are a multiple of `align`, if `offset` and the length of `buf` are.
pub(super) fn fill(
    offset: u64,
    buf: &mut [u8],
    wanted: usize,
    align: usize,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let (mut done, mut failures) = (0, 0);
    while done < wanted {
        // After a count that ends inside a block, that block is read again.
        let from = done / align * align;
        let end = buf.len().min(from.saturating_add(MAX_READ_BYTES));
        match read(&mut buf[from..end], offset + from as u64) {
            Ok(count) if from + count <= done => break,
            Ok(count) => (done, failures) = (from + count, 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_transient(&error) && failures + 1 < ATTEMPTS => {
                failures += 1;
                std::thread::sleep(Duration::from_millis(10 << failures));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The result of a read that wanted `expected` bytes.
fn complete(path: &Path, offset: u64, expected: u64, found: io::Result<usize>) -> Result<(), Error> {
    match found {
        Ok(found) if found as u64 >= expected => Ok(()),
        Ok(found) => {
            Err(Error::ShortRead { path: path.to_path_buf(), offset, expected, found: found as u64 })
        }
        Err(source) => Err(Error::Io { operation: "read", path: path.to_path_buf(), source }),
    }
}

/// True for failures that the same call may not meet again: a busy or slow device, a bus error on a cable.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind;
    /// `EIO` on every Unix; the standard library gives it no kind of its own.
    const EIO: i32 = 5;
    let by_kind = matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ResourceBusy
    );
    by_kind || (cfg!(unix) && error.raw_os_error() == Some(EIO))
}

#[derive(Clone, Copy)]
enum Hint {
    /// Read what is asked for, and nothing beyond.
    Exact,
    Normal,
    WillNeed,
    Release,
}

/// Tells the page cache about a range. Hints may be ignored, so failures are too.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn advise(file: &File, offset: u64, len: u64, hint: Hint) {
    use rustix::fs::Advice;
    let advice = match hint {
        Hint::Exact => Advice::Random,
        Hint::Normal => Advice::Normal,
        Hint::WillNeed => Advice::WillNeed,
        Hint::Release => Advice::DontNeed,
    };
    // Without a length the advice would reach to the end of the file.
    if let Some(len) = std::num::NonZeroU64::new(len) {
        let _ = rustix::fs::fadvise(file, offset, Some(len), advice);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn advise(_file: &File, _offset: u64, _len: u64, _hint: Hint) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a read over `answers`, each a byte count or an error; returns the result and the calls made.
    fn play(
        len: usize,
        align: usize,
        answers: &[Result<usize, i32>],
    ) -> (Result<(), Error>, Vec<(usize, u64)>) {
        let mut calls = Vec::new();
        let mut answers = answers.iter();
        let found = fill(4096, &mut vec![0; len], len, align, |part, at| {
            calls.push((part.len(), at - 4096));
            answers.next().unwrap().map_err(io::Error::from_raw_os_error)
        });
        (complete(Path::new("shard"), 4096, len as u64, found), calls)
    }

    #[test]
    fn short_counts_are_continued() {
        let (result, calls) = play(10, 1, &[Ok(3), Ok(1), Ok(6)]);
        assert!(result.is_ok());
        assert_eq!(calls, [(10, 0), (7, 3), (6, 4)]);
    }

    #[test]
    fn aligned_reads_go_on_at_the_beginning_of_a_block() {
        let (result, calls) = play(2048, 512, &[Ok(700), Ok(100), Ok(1536)]);
        assert!(matches!(result, Err(Error::ShortRead { expected: 2048, found: 700, .. })));
        assert_eq!(calls, [(2048, 0), (1536, 512)]);
        let (result, calls) = play(2048, 512, &[Ok(700), Ok(600), Ok(1024)]);
        assert!(result.is_ok());
        assert_eq!(calls, [(2048, 0), (1536, 512), (1024, 1024)]);
    }

    #[test]
    fn no_call_asks_for_two_gibibytes() {
        // Zeros that are never touched take no memory.
        let (result, calls) = play((2 << 30) + 5, 1, &[Ok(1 << 30), Ok((1 << 30) - 1), Ok(6)]);
        assert!(result.is_ok());
        assert_eq!(calls, [(1 << 30, 0), (1 << 30, 1 << 30), (6, (2 << 30) - 1)]);
    }

    #[test]
    fn the_end_of_the_file_is_a_short_read() {
        let (result, _) = play(10, 1, &[Ok(3), Ok(0)]);
        let Err(Error::ShortRead { path, offset: 4096, expected: 10, found: 3 }) = result else {
            panic!("{result:?}")
        };
        assert_eq!(path, Path::new("shard"));
    }

    #[cfg(unix)]
    #[test]
    fn transient_failures_are_tried_again_a_bounded_number_of_times() {
        const EINTR: i32 = 4;
        const EIO: i32 = 5;
        assert!(play(4, 1, &[Err(EINTR); 50].into_iter().chain([Ok(4)]).collect::<Vec<_>>()).0.is_ok());
        assert!(play(4, 1, &[Err(EIO), Err(EIO), Ok(4)]).0.is_ok());
        // Progress sets the count back.
        assert!(play(4, 1, &[Err(EIO), Err(EIO), Ok(1), Err(EIO), Ok(3)]).0.is_ok());
        let (result, calls) = play(4, 1, &[Err(EIO); 9]);
        assert!(matches!(result, Err(Error::Io { operation: "read", .. })));
        assert_eq!(calls.len(), ATTEMPTS as usize);
    }

    #[cfg(unix)]
    #[test]
    fn the_kind_of_an_error_is_kept() {
        const EINVAL: i32 = 22;
        let (result, calls) = play(4, 1, &[Err(EINVAL)]);
        let Err(Error::Io { source, .. }) = result else { panic!("{result:?}") };
        assert_eq!((source.kind(), source.raw_os_error()), (io::ErrorKind::InvalidInput, Some(EINVAL)));
        assert_eq!(calls.len(), 1);
    }

    #[test]
    fn a_file_without_direct_reads_is_read_through_the_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shard");
        std::fs::write(&path, b"bytes").unwrap();
        let source = FileSource::open_with(path, |_, len| {
            assert_eq!(len, 5);
            Err(DirectProblem::Probe(io::ErrorKind::InvalidInput.into()))
        })
        .unwrap();
        assert_eq!((source.backend(), source.alignment()), (Backend::Pread, 1));
        let why = source.fallback().unwrap();
        assert!(
            matches!(why, DirectProblem::Probe(error) if error.kind() == io::ErrorKind::InvalidInput),
            "{why:?}"
        );
        let mut bytes = [0; 3];
        source.read_at(1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"yte");
    }

    #[test]
    fn what_is_not_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let Err(Error::Io { source, .. }) = FileSource::open(dir.path()) else { panic!() };
        assert_eq!(source.kind(), io::ErrorKind::InvalidInput);
        let Err(Error::Io { source, .. }) = FileSource::open(dir.path().join("absent")) else { panic!() };
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
    }
}
