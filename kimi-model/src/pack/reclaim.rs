//! Freeing the storage of what is no longer needed, inside files that keep their size.

use std::path::Path;

use super::io_error;
use super::work::FileWork;
use crate::error::Error;
use crate::model::Model;

/// Frees the storage of everything in the source that went into a file. Returns the bytes.
///
/// # Errors
/// [`Error::Paging`] where the system or the file system cannot do that.
pub(super) fn free(model: &Model, work: &FileWork<'_>) -> Result<u64, Error> {
    let index = model.checkpoint.index();
    let mut freed = 0;
    let mut free = |name: &str| {
        // The halves of `kv_b` have names of their own in the target only.
        let Some(info) = index.find(name) else { return Ok(()) };
        punch(index.source(info.source).name(), info.offset, info.bytes)?;
        freed += info.bytes;
        Ok::<_, Error>(())
    };
    for matrix in &work.matrices {
        free(matrix.tensor.strip_suffix(".k").unwrap_or(&matrix.tensor))?;
    }
    if let Some(work) = &work.bank {
        for expert in 0..work.bank.count as u32 {
            for extent in work.bank.parts(index, expert).as_ref() {
                punch(index.source(extent.source).name(), extent.offset, extent.len)?;
                freed += extent.len;
            }
        }
    }
    Ok(freed)
}

#[cfg(target_os = "linux")]
fn punch(path: &Path, offset: u64, len: u64) -> Result<(), Error> {
    use rustix::fs::{FallocateFlags, fallocate};
    if len == 0 {
        return Ok(());
    }
    let file = std::fs::OpenOptions::new().write(true).open(path).map_err(io_error("open", path))?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, offset, len).map_err(|error| io_error("free the storage of", path)(error.into()))
}

#[cfg(not(target_os = "linux"))]
fn punch(path: &Path, _offset: u64, _len: u64) -> Result<(), Error> {
    let unsupported = std::io::Error::from(std::io::ErrorKind::Unsupported);
    Err(io_error("free the storage of", path)(unsupported))
}
