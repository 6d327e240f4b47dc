//! What the file system tells about a drive.

use std::io;
use std::path::Path;

/// Bytes that a user may still write to the file system of a folder; `None` where the system does not tell.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<Option<u64>> {
    #[cfg(unix)]
    {
        let stats = rustix::fs::statvfs(dir)?;
        Ok(Some(stats.f_bavail.saturating_mul(stats.f_frsize)))
    }
    #[cfg(not(unix))]
    {
        let _ = dir;
        Ok(None)
    }
}
