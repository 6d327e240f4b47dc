//! A source that fails, shortens and delays reads as it is told.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use kimi_paging::{Backend, Error, Source};

/// What happens to one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each test uses some")]
pub(crate) enum Fault {
    None,
    /// Half of the bytes, then an early end.
    Short,
    /// An error of this kind.
    Io(std::io::ErrorKind),
    /// A bug in the source.
    Panic,
    Delay(Duration),
}

type Decide = dyn Fn(usize, u64) -> Fault + Send + Sync;

/// Bytes in memory behind a function that decides, from the number of the read and its offset, what happens. The function may
/// block. Readers that give the system many reads at once may be shown a file with something else.
pub(crate) struct Faulty {
    name: PathBuf,
    bytes: Vec<u8>,
    decide: Box<Decide>,
    log: Mutex<Vec<(u64, usize)>>,
    file: Option<File>,
}

impl Faulty {
    pub(crate) fn new(bytes: Vec<u8>, decide: impl Fn(usize, u64) -> Fault + Send + Sync + 'static) -> Self {
        Self { name: "faulty".into(), bytes, decide: Box::new(decide), log: Mutex::default(), file: None }
    }

    /// As [`new`](Self::new), but readers that talk to the system read `file`, until that fails.
    #[allow(dead_code, reason = "each test uses some")]
    pub(crate) fn with_file(
        bytes: Vec<u8>,
        file: File,
        decide: impl Fn(usize, u64) -> Fault + Send + Sync + 'static,
    ) -> Self {
        Self { file: Some(file), ..Self::new(bytes, decide) }
    }

    /// Offset and length of every read so far.
    #[allow(dead_code, reason = "each test uses some")]
    pub(crate) fn log(&self) -> Vec<(u64, usize)> {
        self.log.lock().unwrap().clone()
    }
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Faulty({} bytes)", self.bytes.len())
    }
}

impl Source for Faulty {
    fn name(&self) -> &Path {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let number = {
            let mut log = self.log.lock().unwrap();
            log.push((offset, buf.len()));
            log.len() - 1
        };
        let path = || self.name.clone();
        match (self.decide)(number, offset) {
            Fault::None => {}
            Fault::Delay(time) => std::thread::sleep(time),
            Fault::Panic => panic!("read {number}"),
            Fault::Io(kind) => {
                return Err(Error::Io { operation: "read", path: path(), source: kind.into() });
            }
            Fault::Short => {
                buf.fill(0xee);
                let (expected, found) = (buf.len() as u64, buf.len() as u64 / 2);
                return Err(Error::ShortRead { path: path(), offset, expected, found });
            }
        }
        let start = offset as usize;
        buf.copy_from_slice(&self.bytes[start..start + buf.len()]);
        Ok(())
    }

    fn backend(&self) -> Backend {
        Backend::Pread
    }

    fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }
}
