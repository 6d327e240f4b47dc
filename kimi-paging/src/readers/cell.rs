//! A buffer that a reader fills.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::job::{Job, Piece};
use super::landed::Landed;
use crate::{Buffer, Error, Source};

/// How often a piece is read before its error counts. Files try a few times themselves; this also covers sources that do not.
const ATTEMPTS: u32 = 2;

/// Where a cell is between two reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing worth keeping; may be submitted.
    Idle,
    /// Waits for a reader.
    Queued,
    /// A reader has the buffer.
    Reading,
    /// Holds what was asked for.
    Ready,
    /// The read failed; the error is kept for whoever waits.
    Failed,
}

/// A buffer, what to read into it, and how far that is.
///
/// The owner submits it, waits for it, takes the buffer out and puts it back; a reader fills it in between. Both sides meet in
/// this lock only.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(super) sources: Arc<[Arc<dyn Source>]>,
    state: Mutex<State>,
    settled: Condvar,
    /// Rings when this cell and others like it settle.
    landed: Option<Arc<Landed>>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// `None` while a reader fills it or the owner uses it.
    buffer: Option<Buffer>,
    job: Job,
    error: Option<Error>,
}

/// What a reader takes out of a cell, and puts back when it is done.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) buffer: Buffer,
    pub(super) job: Job,
}

/// What a read amounted to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) reads: u64,
    pub(super) bytes: u64,
}

/// A buffer with the bytes that were asked for, and where they begin in it.
pub(crate) type Filled = (Buffer, usize);

impl Cell {
    /// An idle cell that reads from `sources`, at most `pieces` pieces at once.
    pub(crate) fn new(
        sources: Arc<[Arc<dyn Source>]>,
        buffer: Buffer,
        pieces: usize,
        landed: Option<Arc<Landed>>,
    ) -> Self {
        let job = Job::with_capacity(pieces);
        let state = State { phase: Phase::Idle, buffer: Some(buffer), job, error: None };
        Self { sources, state: Mutex::new(state), settled: Condvar::new(), landed }
    }

    /// Puts back a buffer that was taken: with its bytes ([`Phase::Ready`]) or without ([`Phase::Idle`]).
    pub(crate) fn put_back(&self, buffer: Buffer, phase: Phase) {
        let mut state = self.state();
        (state.buffer, state.phase) = (Some(buffer), phase);
    }

    /// Forgets bytes that were read, or an error.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        debug_assert!(!matches!(state.phase, Phase::Queued | Phase::Reading));
        (state.phase, state.error) = (Phase::Idle, None);
    }

    /// False while the buffer is taken.
    pub(crate) fn has_buffer(&self) -> bool {
        self.state().buffer.is_some()
    }

    /// How far the cell is.
    pub(crate) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Takes the buffer out for good.
    pub(crate) fn dismantle(&self) -> Option<Buffer> {
        let mut state = self.state();
        state.phase = Phase::Idle;
        state.buffer.take()
    }

    pub(super) fn enqueue(&self, describe: impl FnOnce(&mut Job)) {
        let mut state = self.state();
        debug_assert!(state.phase == Phase::Idle && state.buffer.is_some());
        state.job.clear();
        describe(&mut state.job);
        state.phase = Phase::Queued;
    }

    /// Begins to read. `None` for a cell that was cancelled, which may still be met once.
    pub(super) fn begin(&self) -> Option<Work> {
        let mut state = self.state();
        if state.phase != Phase::Queued {
            return None;
        }
        let buffer = state.buffer.take()?;
        state.phase = Phase::Reading;
        Some(Work { buffer, job: std::mem::take(&mut state.job) })
    }

    /// Ends reading.
    pub(super) fn finish(&self, work: Work, result: Result<(), Error>) {
        let Work { buffer, job } = work;
        let mut state = self.state();
        (state.job, state.buffer) = (job, Some(buffer));
        state.phase = if result.is_ok() { Phase::Ready } else { Phase::Failed };
        state.error = result.err();
        drop(state);
        self.settle_waiters();
    }

    /// Ends a wait that nobody will serve.
    pub(super) fn fail(&self, error: Error) {
        let mut state = self.state();
        if state.phase == Phase::Queued {
            (state.phase, state.error) = (Phase::Failed, Some(error));
            drop(state);
            self.settle_waiters();
        }
    }

    fn settle_waiters(&self) {
        self.settled.notify_all();
        if let Some(landed) = &self.landed {
            landed.add();
        }
    }

    /// Waits for the bytes and takes them; also says how long it waited, if it had to.
    pub(super) fn wait(&self) -> (Option<Result<Filled, Error>>, Option<Duration>) {
        let (mut state, waited) = self.settled_state();
        let result = match state.phase {
            Phase::Ready => {
                let start = state.job.start;
                state.buffer.take().map(|buffer| Ok((buffer, start)))
            }
            Phase::Failed => {
                state.phase = Phase::Idle;
                state.error.take().map(Err)
            }
            _ => None,
        };
        (result, waited)
    }

    /// Cancels a read that has not begun, waits for one that has.
    pub(super) fn settle(&self) -> Phase {
        {
            let mut state = self.state();
            if state.phase == Phase::Queued {
                state.phase = Phase::Idle;
            }
        }
        self.settled_state().0.phase
    }

    fn settled_state(&self) -> (MutexGuard<'_, State>, Option<Duration>) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Queued | Phase::Reading) {
            return (state, None);
        }
        let start = Instant::now();
        while matches!(state.phase, Phase::Queued | Phase::Reading) {
            state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state, Some(start.elapsed()))
    }

    /// Reads everything with calls that block.
    pub(super) fn read(&self, work: &mut Work) -> (Done, Result<(), Error>) {
        let Work { buffer, job } = work;
        let (mut done, mut at) = (Done::default(), 0);
        // A source is foreign code. If it panics, the buffer holds unspecified bytes, as after any failed read.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while let Some(piece) = job.reads.get(at) {
                self.read_piece(piece, &mut buffer[piece.at..piece.at + piece.len])?;
                done.reads += 1;
                done.bytes += piece.len as u64;
                at += 1;
            }
            job.close_gaps(buffer);
            Ok(())
        }));
        let result = outcome.unwrap_or_else(|panic| {
            let path =
                job.reads.get(at).map_or_else(PathBuf::new, |piece| self.source(piece).name().to_path_buf());
            Err(Error::ReaderPanicked { path, message: message(&*panic) })
        });
        (done, result)
    }

    fn read_piece(&self, piece: &Piece, buffer: &mut [u8]) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            match self.source(piece).read_at(piece.offset, buffer) {
                Err(error) if error.is_transient() && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    pub(super) fn source(&self, piece: &Piece) -> &dyn Source {
        &*self.sources[piece.source.index()]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Foreign code runs outside the lock, so a poisoned lock still holds a whole state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}
