//! A file that exists only while it is read.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use tempfile::{Builder, TempPath};

use super::{BenchError, DiskProgress, check};
use crate::drive::free_bytes;
use crate::synth::random::Stream;

/// Bytes written at once.
const STEP: usize = 4 << 20;

/// Bytes after which the system is asked to write what it holds back, so that nobody waits for it long.
const SYNC: u64 = 64 << 20;

/// What is left free.
const SPARE: u64 = 64 << 20;

/// A file of random bytes; dropping it removes it.
#[derive(Debug)]
pub(super) struct ScratchFile(TempPath);

impl ScratchFile {
    /// Writes `size` bytes, down to the drive.
    pub(super) fn write(
        dir: &Path,
        size: u64,
        progress: &dyn Fn(DiskProgress),
        cancel: &AtomicBool,
    ) -> Result<Self, BenchError> {
        let failed = |operation, path: &Path| {
            let path = path.to_path_buf();
            move |source| BenchError::Io { operation, path, source }
        };
        let free = free_bytes(dir).map_err(failed("ask for the free space of", dir))?.unwrap_or(u64::MAX);
        let needed = size.saturating_add(SPARE);
        if free < needed {
            return Err(BenchError::NoSpace { dir: dir.to_path_buf(), needed, free });
        }
        let file = Builder::new().prefix(".kimi-bench-").suffix(".tmp").tempfile_in(dir);
        let (mut file, path) = file.map_err(failed("create a file in", dir))?.into_parts();
        // Drives and file systems must not be able to shorten it: every word is random.
        let mut step = vec![0; STEP];
        let stream = Stream::new(0, "bench disk");
        let mut done = 0;
        while done < size {
            check(cancel)?;
            progress(DiskProgress::Writing(done, size));
            stream.fill(done / 2, &mut step, u16::to_le_bytes);
            let part = STEP.min((size - done) as usize);
            file.write_all(&step[..part]).map_err(failed("write", &path))?;
            done += part as u64;
            if done == size || done.is_multiple_of(SYNC) {
                file.sync_data().map_err(failed("write", &path))?;
            }
        }
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Takes the name away where open files do without; else the result keeps it until dropped.
    pub(super) fn unname(self) -> Result<Option<Self>, BenchError> {
        if !cfg!(unix) {
            return Ok(Some(self));
        }
        let path: PathBuf = self.0.to_path_buf();
        let failed = |source| BenchError::Io { operation: "remove", path, source };
        self.0.close().map(|()| None).map_err(failed)
    }
}
