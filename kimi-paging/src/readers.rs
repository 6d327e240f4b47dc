//! The threads that read.
//!
//! A blocking read needs a thread, and a drive needs several reads at once to be fast. A few named threads serve two queues:
//! reads that someone waits for (*urgent*) before reads ahead of time (*tape*), each in the order in which they were asked
//! for. What is read, and where to, lies in a [`Cell`]; queues only pass cells on, so nothing is allocated per read.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Buffer, Error};

mod cell;

pub(crate) use cell::{Cell, Phase, Piece};

/// A small set of threads that read for any number of [`Ring`](crate::Ring)s and [`Slots`](crate::Slots).
///
/// Dropping it ends and joins the threads; who still waits for bytes gets [`Error::ReadersClosed`].
#[derive(Debug)]
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
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
    /// Reads, each of one contiguous range.
    pub reads: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Nanoseconds that threads spent reading, summed over threads.
    pub busy_ns: u64,
    /// Nanoseconds that consumers waited for bytes.
    pub wait_ns: u64,
}

impl Readers {
    /// A few: reads of megabytes keep a drive busy with one thread, and more than four gained nothing where it was measured
    /// (`docs/paging.md`).
    pub const DEFAULT_THREADS: usize = 4;

    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Setting`] for no threads, [`Error::Spawn`] when the system refuses one.
    pub fn new(threads: usize) -> Result<Self, Error> {
        if threads == 0 {
            return Err(Error::Setting { what: "reader threads", expected: "at least 1", found: 0 });
        }
        let mut readers = Self { shared: Arc::default(), threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let shared = Arc::clone(&readers.shared);
            let thread = std::thread::Builder::new().name(format!("kimi-reader-{number}"));
            // On failure `readers` is dropped, which ends the threads that did start.
            readers.threads.push(thread.spawn(move || shared.serve()).map_err(Error::Spawn)?);
        }
        Ok(readers)
    }

    /// What happened since the start.
    pub fn stats(&self) -> ReadStats {
        let [tape, urgent] = [Class::Tape, Class::Urgent].map(|class| self.shared.counters(class).load());
        let queues = self.shared.queues();
        let active = queues.active_since.map_or(Duration::ZERO, |since| since.elapsed()) + queues.active;
        ReadStats { tape, urgent, active_ns: nanoseconds(active), threads: self.threads.len() }
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let waiting = {
            let mut queues = self.shared.queues();
            queues.closed = true;
            let Queues { urgent, tape, .. } = &mut *queues;
            urgent.drain(..).chain(tape.drain(..)).collect::<Vec<_>>()
        };
        self.shared.work.notify_all();
        for cell in waiting {
            cell.fail(Error::ReadersClosed);
        }
        for thread in self.threads.drain(..) {
            // A reader catches the panics of sources, so there is nothing to learn from its result.
            let _ = thread.join();
        }
    }
}

/// Which queue a read waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Tape,
    Urgent,
}

/// Lets rings and slots use the readers without keeping the threads alive.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// Makes room in a queue for as many cells as will ever wait there, so that queueing never allocates.
    pub(crate) fn register(&self, class: Class, cells: usize) {
        let mut queues = self.shared.queues();
        let (queue, registered) = queues.get(class);
        *registered += cells;
        let more = registered.saturating_sub(queue.len());
        queue.reserve(more);
    }

    /// Takes the room back.
    pub(crate) fn unregister(&self, class: Class, cells: usize) {
        let mut queues = self.shared.queues();
        let (_, registered) = queues.get(class);
        *registered -= cells;
    }

    /// Has an idle cell filled with the pieces that `describe` writes.
    pub(crate) fn submit(&self, class: Class, cell: &Arc<Cell>, describe: impl FnOnce(&mut Vec<Piece>)) {
        cell.enqueue(describe);
        let mut queues = self.shared.queues();
        if queues.closed {
            drop(queues);
            cell.fail(Error::ReadersClosed);
            return;
        }
        queues.get(class).0.push_back(Arc::clone(cell));
        drop(queues);
        self.shared.work.notify_one();
    }

    /// Waits until the cell has been read, and takes its bytes.
    ///
    /// `None` for a cell that nobody asked to fill, or whose buffer is elsewhere. After an error the cell is idle.
    pub(crate) fn wait(&self, class: Class, cell: &Cell) -> Option<Result<Buffer, Error>> {
        let (result, waited) = cell.wait();
        if let Some(waited) = waited {
            self.shared.counters(class).wait_ns.fetch_add(nanoseconds(waited), Ordering::Relaxed);
        }
        result
    }

    /// Makes sure that nobody will write to the cell any more: takes it out of the queue, or waits for a read under way.
    /// Returns what it holds then: [`Phase::Ready`] if it was read to the end.
    pub(crate) fn cancel(&self, class: Class, cell: &Arc<Cell>) -> Phase {
        self.shared.queues().get(class).0.retain(|queued| !Arc::ptr_eq(queued, cell));
        cell.settle()
    }
}

#[derive(Debug, Default)]
struct Shared {
    queues: Mutex<Queues>,
    work: Condvar,
    tape: Counters,
    urgent: Counters,
}

#[derive(Debug, Default)]
struct Queues {
    tape: VecDeque<Arc<Cell>>,
    urgent: VecDeque<Arc<Cell>>,
    /// How many cells may wait in each queue at once.
    registered: [usize; 2],
    closed: bool,
    /// Threads that read now, since when there is at least one, and how long there was one before.
    reading: usize,
    active_since: Option<Instant>,
    active: Duration,
}

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
    wait_ns: AtomicU64,
}

impl Shared {
    /// What a reader thread does.
    fn serve(&self) {
        while let Some((class, cell)) = self.next_job() {
            let start = Instant::now();
            cell.read(|done| {
                let counters = self.counters(class);
                counters.reads.fetch_add(done.reads, Ordering::Relaxed);
                counters.bytes.fetch_add(done.bytes, Ordering::Relaxed);
                counters.busy_ns.fetch_add(nanoseconds(start.elapsed()), Ordering::Relaxed);
            });
            let mut queues = self.queues();
            queues.reading -= 1;
            if queues.reading == 0 {
                let since = queues.active_since.take().unwrap_or(start);
                queues.active += since.elapsed();
            }
        }
    }

    /// Waits for work; `None` at the end.
    fn next_job(&self) -> Option<(Class, Arc<Cell>)> {
        let mut queues = self.queues();
        loop {
            if queues.closed {
                return None;
            }
            let urgent = queues.urgent.pop_front().map(|cell| (Class::Urgent, cell));
            if let Some(job) = urgent.or_else(|| queues.tape.pop_front().map(|cell| (Class::Tape, cell))) {
                if queues.reading == 0 {
                    queues.active_since = Some(Instant::now());
                }
                queues.reading += 1;
                return Some(job);
            }
            queues = self.work.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn counters(&self, class: Class) -> &Counters {
        match class {
            Class::Tape => &self.tape,
            Class::Urgent => &self.urgent,
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // Nothing panics while it holds this lock.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn get(&mut self, class: Class) -> (&mut VecDeque<Arc<Cell>>, &mut usize) {
        match class {
            Class::Tape => (&mut self.tape, &mut self.registered[0]),
            Class::Urgent => (&mut self.urgent, &mut self.registered[1]),
        }
    }
}

impl Counters {
    fn load(&self) -> ClassStats {
        let [reads, bytes, busy_ns, wait_ns] = [&self.reads, &self.bytes, &self.busy_ns, &self.wait_ns]
            .map(|counter| counter.load(Ordering::Relaxed));
        ClassStats { reads, bytes, busy_ns, wait_ns }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    // 584 years.
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
