//! A model folder while it is being made.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::SynthError;
use crate::drive::free_bytes;

/// What unfinished files are called, behind their name. Nobody else's files end so.
const PARTIAL: &str = ".synth-partial";

/// The size of the file that shows whether the file system stores holes.
const PROBE_BYTES: u64 = 64 << 20;

/// A folder whose files have other names until all of them are there. Dropped before, it takes away what it made.
#[derive(Debug)]
pub(super) struct Draft {
    dir: PathBuf,
    created: bool,
    names: Vec<String>,
    finished: bool,
}

impl Draft {
    /// Creates the folder, or takes one that holds nothing but what an interrupted run left, which goes away.
    pub(super) fn new(dir: &Path) -> Result<Self, SynthError> {
        let created = !dir.exists();
        if created {
            fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        }
        let mut left = Vec::new();
        for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
            let entry = entry.map_err(io_error("list", dir))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(PARTIAL) {
                return Err(SynthError::NotEmpty { dir: dir.to_path_buf(), entry: name });
            }
            left.push(entry.path());
        }
        for path in left {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        Ok(Self { dir: dir.to_path_buf(), created, names: Vec::new(), finished: false })
    }

    /// Creates a file that will be called `name`; returns it with its present path.
    pub(super) fn create(&mut self, name: &str) -> Result<(File, PathBuf), SynthError> {
        let path = self.partial(name);
        let file = File::create_new(&path).map_err(io_error("create", &path))?;
        self.names.push(name.to_owned());
        Ok((file, path))
    }

    fn partial(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}{PARTIAL}"))
    }

    /// Leaves the files as they are, with names that no model has: taking away a sparse file can take a second.
    pub(super) fn abandon(mut self) {
        self.names.clear();
    }

    /// Gives all files their names, in the order in which they were created.
    pub(super) fn finish(mut self) -> Result<(), SynthError> {
        for name in &self.names {
            let path = self.partial(name);
            fs::rename(&path, self.dir.join(name)).map_err(io_error("rename", &path))?;
        }
        // The names are on the drive once the folder is; other systems than Unix cannot open one.
        if cfg!(unix) {
            File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", &self.dir))?;
        }
        self.finished = true;
        Ok(())
    }

    /// Fails unless the file system keeps holes out of storage and holds files of `largest` bytes.
    pub(super) fn check_sparse(&self, largest: u64) -> Result<(), SynthError> {
        check_sparse(&self.dir, largest)
    }

    /// Fails when the file system has less than `needed` bytes left. Where it does not tell, nothing is checked.
    pub(super) fn check_free(&self, needed: u64) -> Result<(), SynthError> {
        match free_bytes(&self.dir).map_err(io_error("ask for the free space of", &self.dir))? {
            Some(free) if free < needed => Err(SynthError::NoSpace { dir: self.dir.clone(), needed, free }),
            _ => Ok(()),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // What cannot be removed still has no name that a model's file has, or no config.json beside it.
        for name in &self.names {
            let _ = fs::remove_file(self.partial(name));
            let _ = fs::remove_file(self.dir.join(name));
        }
        if self.created {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// Fails unless the file system of a folder keeps holes out of storage and holds files of `largest` bytes.
pub(super) fn check_sparse(dir: &Path, largest: u64) -> Result<(), SynthError> {
    let path = dir.join(format!("holes{PARTIAL}"));
    let checked = (|| {
        let file = File::create(&path).map_err(io_error("create", &path))?;
        let refuse = |reason| SynthError::NotSparse { dir: dir.to_path_buf(), reason };
        file.set_len(PROBE_BYTES).map_err(io_error("resize", &path))?;
        write_at(&file, &[1], PROBE_BYTES - 1).map_err(io_error("write", &path))?;
        file.sync_all().map_err(io_error("sync", &path))?;
        match stored_bytes(&file).map_err(io_error("read", &path))? {
            Some(stored) if stored < PROBE_BYTES / 2 => {}
            Some(_) => return Err(refuse("it stores holes in files".to_owned())),
            None => return Err(refuse("whether it stores holes is not known here".to_owned())),
        }
        file.set_len(largest.max(PROBE_BYTES))
            .map_err(|error| refuse(format!("no file of {largest} bytes: {error}")))
    })();
    let removed = fs::remove_file(&path).map_err(io_error("remove", &path));
    checked.and(removed)
}

/// Turns an error of the system into one that names the file.
pub(super) fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SynthError {
    let path = path.to_path_buf();
    move |source| SynthError::Io { operation, path, source }
}

/// Writes all of `bytes` at an offset, without a position that threads would share.
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::write_all_at(file, bytes, offset);
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < bytes.len() {
            match std::os::windows::fs::FileExt::seek_write(file, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        return Ok(());
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = (file, bytes, offset);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Bytes that a file takes on its drive; `None` where the system does not tell.
pub(super) fn stored_bytes(file: &File) -> io::Result<Option<u64>> {
    let metadata = file.metadata()?;
    #[cfg(unix)]
    return Ok(Some(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512));
    #[cfg(not(unix))]
    {
        let _ = metadata;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_folder_is_taken_away_and_a_finished_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let mut draft = Draft::new(&path).unwrap();
        draft.create("config.json").unwrap();
        assert!(path.join("config.json.synth-partial").exists());
        drop(draft);
        assert!(!path.exists());

        let mut draft = Draft::new(&path).unwrap();
        draft.create("config.json").unwrap();
        draft.finish().unwrap();
        assert!(path.join("config.json").exists() && !path.join("config.json.synth-partial").exists());
    }

    #[test]
    fn a_folder_that_was_there_stays_and_must_be_empty() {
        let dir = tempfile::tempdir().unwrap();
        let mut draft = Draft::new(dir.path()).unwrap();
        draft.create("x").unwrap();
        drop(draft);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let mut draft = Draft::new(dir.path()).unwrap();
        draft.create("x").unwrap();
        draft.abandon();
        assert!(dir.path().join("x.synth-partial").exists());
        fs::write(dir.path().join("mine"), "").unwrap();
        match Draft::new(dir.path()) {
            Err(SynthError::NotEmpty { entry, .. }) => assert_eq!(entry, "mine"),
            other => panic!("{other:?}"),
        }
        assert!(dir.path().join("mine").exists() && dir.path().join("x.synth-partial").exists());
        fs::remove_file(dir.path().join("mine")).unwrap();
        Draft::new(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn more_than_the_drive_holds_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let draft = Draft::new(dir.path()).unwrap();
        draft.check_free(1).unwrap();
        match draft.check_free(u64::MAX) {
            Err(SynthError::NoSpace { needed, free, .. }) => assert!(needed == u64::MAX && free > 0),
            other => panic!("{other:?}"),
        }
        match draft.check_sparse(u64::MAX >> 1) {
            Err(SynthError::NotSparse { reason, .. }) => {
                assert!(reason.contains("9223372036854775807"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
