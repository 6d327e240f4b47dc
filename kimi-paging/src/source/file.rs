//! Positioned reads of a file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Backend, Source, check_range};
use crate::Error;

/// The most bytes asked for in one call. macOS answers EINVAL from 2 GiB on, Linux stops at 2 GiB less a page; real
/// checkpoints have tensors beyond that.
const MAX_READ_BYTES: usize = 1 << 30;

/// How often a read is tried when the system says that it failed for now.
const ATTEMPTS: u32 = 3;

/// A file read at explicit offsets: no shared position, so any number of threads read it at once.
///
/// Symbolic links are followed, so a cache of linked shards works. Reads go through the page cache, which the system gives
/// back under pressure; nothing is mapped, so a file that shrinks is an error and never a signal.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
}

impl FileSource {
    /// Opens `path` for reading.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened or is not a regular file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        match open_regular(&path) {
            Ok((file, len)) => Ok(Self { file, path, len }),
            Err(source) => Err(Error::Io { operation: "open", path, source }),
        }
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
        read_fully(&self.path, offset, buf, |part, at| read_some(&self.file, part, at))
    }

    fn read_once(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        check_range(&self.path, self.len, offset, buf.len())?;
        read_once(&self.file, &self.path, offset, buf)
    }

    fn backend(&self) -> Backend {
        Backend::Pread
    }

    fn will_need(&self, offset: u64, len: u64) {
        advise(&self.file, offset, len, Hint::WillNeed);
    }

    fn release(&self, offset: u64, len: u64) {
        advise(&self.file, offset, len, Hint::Release);
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
    let result = read_fully(path, offset, buf, |part, at| read_some(file, part, at));
    advise(file, offset, len, Hint::Normal);
    advise(file, offset, len, Hint::Release);
    result
}

#[cfg(unix)]
fn read_some(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(windows)]
fn read_some(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    // Moves the file's own position too, which nothing here uses.
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

/// Fills `buf` by calls of `read`, which may return less than it was asked for.
fn read_fully(
    path: &Path,
    offset: u64,
    buf: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> Result<(), Error> {
    let (mut done, mut failures) = (0, 0);
    while done < buf.len() {
        let end = buf.len().min(done.saturating_add(MAX_READ_BYTES));
        match read(&mut buf[done..end], offset + done as u64) {
            Ok(0) => {
                let (expected, found) = (buf.len() as u64, done as u64);
                return Err(Error::ShortRead { path: path.to_path_buf(), offset, expected, found });
            }
            Ok(count) => (done, failures) = (done + count, 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_transient(&error) && failures + 1 < ATTEMPTS => {
                failures += 1;
                std::thread::sleep(Duration::from_millis(10 << failures));
            }
            Err(source) => return Err(Error::Io { operation: "read", path: path.to_path_buf(), source }),
        }
    }
    Ok(())
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

    /// Runs `read_fully` over `answers`, each a byte count or an error; returns the result and the calls made.
    fn play(len: usize, answers: &[Result<usize, i32>]) -> (Result<(), Error>, Vec<(usize, u64)>) {
        let mut calls = Vec::new();
        let mut answers = answers.iter();
        let result = read_fully(Path::new("shard"), 100, &mut vec![0; len], |part, at| {
            calls.push((part.len(), at));
            answers.next().unwrap().map_err(io::Error::from_raw_os_error)
        });
        (result, calls)
    }

    #[test]
    fn short_counts_are_continued() {
        let (result, calls) = play(10, &[Ok(3), Ok(1), Ok(6)]);
        assert!(result.is_ok());
        assert_eq!(calls, [(10, 100), (7, 103), (6, 104)]);
    }

    #[test]
    fn no_call_asks_for_two_gibibytes() {
        // Zeros that are never touched take no memory.
        let (result, calls) = play((2 << 30) + 5, &[Ok(1 << 30), Ok((1 << 30) - 1), Ok(6)]);
        assert!(result.is_ok());
        assert_eq!(calls, [(1 << 30, 100), (1 << 30, 100 + (1 << 30)), (6, 99 + (2 << 30))]);
    }

    #[test]
    fn the_end_of_the_file_is_a_short_read() {
        let (result, _) = play(10, &[Ok(3), Ok(0)]);
        let Err(Error::ShortRead { path, offset: 100, expected: 10, found: 3 }) = result else {
            panic!("{result:?}")
        };
        assert_eq!(path, Path::new("shard"));
    }

    #[cfg(unix)]
    #[test]
    fn transient_failures_are_tried_again_a_bounded_number_of_times() {
        const EINTR: i32 = 4;
        const EIO: i32 = 5;
        assert!(play(4, &[Err(EINTR); 50].into_iter().chain([Ok(4)]).collect::<Vec<_>>()).0.is_ok());
        assert!(play(4, &[Err(EIO), Err(EIO), Ok(4)]).0.is_ok());
        // Progress sets the count back.
        assert!(play(4, &[Err(EIO), Err(EIO), Ok(1), Err(EIO), Ok(3)]).0.is_ok());
        let (result, calls) = play(4, &[Err(EIO); 9]);
        assert!(matches!(result, Err(Error::Io { operation: "read", .. })));
        assert_eq!(calls.len(), ATTEMPTS as usize);
    }

    #[cfg(unix)]
    #[test]
    fn the_kind_of_an_error_is_kept() {
        const EINVAL: i32 = 22;
        let (result, calls) = play(4, &[Err(EINVAL)]);
        let Err(Error::Io { source, .. }) = result else { panic!("{result:?}") };
        assert_eq!((source.kind(), source.raw_os_error()), (io::ErrorKind::InvalidInput, Some(EINVAL)));
        assert_eq!(calls.len(), 1);
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
