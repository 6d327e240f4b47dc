//! Who reads: threads that block, or one thread with many reads under way.
//!
//! A drive needs several reads at once to be fast. Two queues hold what is wanted: reads that someone waits for (*urgent*)
//! before reads ahead of time (*tape*), each in the order in which they were asked for. An *executor* serves them: a few threads
//! with one blocking read each ([`threads`]), or one that hands the kernel many through io_uring ([`uring`]). What is read, and
//! where to, lies in a [`Cell`]; queues only pass cells on, so nothing is allocated per read.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use self::queue::Shared;
use crate::Error;

mod cell;
mod job;
mod landed;
mod queue;
mod threads;
#[cfg(all(
    target_os = "linux",
    any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )
))]
mod uring;
/// What stands for io_uring where there is none.
#[cfg(not(all(
    target_os = "linux",
    any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "loongarch64",
        target_arch = "powerpc64"
    )
)))]
mod uring {
    use std::io;
    use std::sync::Arc;

    use super::{ReadSettings, Shared};

    #[derive(Debug)]
    pub(super) enum Uring {}

    impl Uring {
        pub(super) fn new(_: &ReadSettings) -> io::Result<(Self, Arc<Shared>)> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn serve(self, _: &Shared) {
            match self {}
        }
    }
}

pub(crate) use cell::{Cell, Filled, Phase};
pub(crate) use job::{Job, Piece};
pub(crate) use landed::Landed;
pub(crate) use queue::{Class, Handle};

/// How reads are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Executor {
    /// Threads, each with one blocking read.
    Threads,
    /// One thread with many reads under way through io_uring (Linux).
    Uring,
}

impl Executor {
    /// The name that reports use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Uring => "uring",
        }
    }
}

impl fmt::Display for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How [`Readers`] read. [`tune`](crate::tune) measures which settings are fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "what a measurement can choose from")]
pub struct ReadSettings {
    /// Who reads.
    pub executor: Executor,
    /// How many reads are under way at once, which for [`Executor::Threads`] is the number of threads.
    pub depth: usize,
    /// The most bytes of one read under [`Executor::Uring`], a multiple of 65,536; larger ranges are several reads. Threads
    /// read a range at once.
    pub request_bytes: usize,
}

impl ReadSettings {
    /// Settings for threads.
    pub const fn threads(threads: usize) -> Self {
        Self { executor: Executor::Threads, depth: threads, request_bytes: Self::REQUEST_UNIT }
    }

    /// Settings for io_uring: `depth` reads of at most `request_bytes` bytes under way.
    pub const fn uring(depth: usize, request_bytes: usize) -> Self {
        Self { executor: Executor::Uring, depth, request_bytes }
    }

    /// What `request_bytes` is a multiple of.
    pub const REQUEST_UNIT: usize = crate::source::MAX_ALIGNMENT;

    /// The most reads under way.
    const MAX_DEPTH: usize = 1024;

    /// The largest request: what every system takes at once.
    const MAX_REQUEST_BYTES: usize = 1 << 30;

    fn check(&self) -> Result<(), Error> {
        let setting =
            |what, expected, found: usize| Err(Error::Setting { what, expected, found: found as u64 });
        match self.executor {
            Executor::Threads if self.depth == 0 => setting("reader threads", "at least 1", 0),
            Executor::Uring if self.depth == 0 || self.depth > Self::MAX_DEPTH => {
                setting("reads under way", "1 to 1024", self.depth)
            }
            Executor::Uring
                if self.request_bytes == 0
                    || self.request_bytes > Self::MAX_REQUEST_BYTES
                    || !self.request_bytes.is_multiple_of(Self::REQUEST_UNIT) =>
            {
                setting("request_bytes", "a multiple of 65536, at most 1 GiB", self.request_bytes)
            }
            _ => Ok(()),
        }
    }
}

/// A few threads, with four reads under way.
impl Default for ReadSettings {
    fn default() -> Self {
        Self::threads(Readers::DEFAULT_THREADS)
    }
}

/// A small set of threads that read for any number of [`Ring`](crate::Ring)s and [`Slots`](crate::Slots).
///
/// Dropping it ends and joins the threads; who still waits for bytes gets [`Error::ReadersClosed`].
#[derive(Debug)]
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    settings: ReadSettings,
    fallback: Option<io::Error>,
}

/// What the readers did, and how long someone waited for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStats {
    /// Reads ahead of time, for rings.
    pub tape: ClassStats,
    /// Reads that someone waited for, for slots.
    pub urgent: ClassStats,
    /// Nanoseconds in which at least one read was under way.
    pub active_ns: u64,
    /// The number of threads.
    pub threads: usize,
}

/// The part of [`ReadStats`] that belongs to one queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Ranges that were read.
    pub reads: u64,
    /// Bytes that arrived, those included that were read only for the alignment.
    pub bytes: u64,
    /// Nanoseconds that tiles and records were under way, summed over them; for threads, the time that they spent reading.
    pub busy_ns: u64,
    /// Nanoseconds that consumers waited for bytes.
    pub wait_ns: u64,
}

impl Readers {
    /// A few: reads of megabytes keep a drive busy with one thread, and more than four gained nothing where it was measured
    /// (`docs/paging.md`).
    pub const DEFAULT_THREADS: usize = 4;

    /// Starts `threads` threads with blocking reads.
    ///
    /// # Errors
    /// [`Error::Setting`] for no threads, [`Error::Spawn`] when the system refuses one.
    pub fn new(threads: usize) -> Result<Self, Error> {
        Self::with_settings(&ReadSettings::threads(threads))
    }

    /// Starts readers with these settings.
    ///
    /// Where io_uring is refused (an old kernel, a container that forbids it, another system), threads read instead, at most
    /// [`DEFAULT_THREADS`](Self::DEFAULT_THREADS); [`settings`](Self::settings) and [`fallback`](Self::fallback) say so.
    ///
    /// # Errors
    /// [`Error::Setting`] for settings out of range, [`Error::Spawn`] when the system refuses a thread.
    pub fn with_settings(settings: &ReadSettings) -> Result<Self, Error> {
        settings.check()?;
        if settings.executor == Executor::Threads {
            return Self::start_threads(*settings, None);
        }
        match uring::Uring::new(settings) {
            Ok((uring, shared)) => {
                let mut readers = Self { shared, threads: Vec::new(), settings: *settings, fallback: None };
                let shared = Arc::clone(&readers.shared);
                readers.spawn(move || uring.serve(&shared))?;
                Ok(readers)
            }
            Err(refused) => {
                let threads = ReadSettings::threads(settings.depth.min(Self::DEFAULT_THREADS));
                Self::start_threads(threads, Some(refused))
            }
        }
    }

    fn start_threads(settings: ReadSettings, fallback: Option<io::Error>) -> Result<Self, Error> {
        // Threads wait for the queues themselves.
        let shared = Arc::new(Shared::new(Box::new(|| {})));
        let mut readers = Self { shared, threads: Vec::with_capacity(settings.depth), settings, fallback };
        for _ in 0..settings.depth {
            let shared = Arc::clone(&readers.shared);
            // On failure `readers` is dropped, which ends the threads that did start.
            readers.spawn(move || threads::serve(&shared))?;
        }
        Ok(readers)
    }

    fn spawn(&mut self, serve: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let name = format!("kimi-reader-{}", self.threads.len());
        let thread = std::thread::Builder::new().name(name).spawn(serve).map_err(Error::Spawn)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The settings in use.
    pub fn settings(&self) -> ReadSettings {
        self.settings
    }

    /// Why threads read although io_uring was asked for; `None` where everything is as asked for.
    pub fn fallback(&self) -> Option<&io::Error> {
        self.fallback.as_ref()
    }

    /// What happened since the start.
    pub fn stats(&self) -> ReadStats {
        self.shared.stats(self.threads.len())
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            // A reader catches the panics of sources, so there is nothing to learn from its result.
            let _ = thread.join();
        }
    }
}
