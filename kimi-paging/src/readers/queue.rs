//! The two queues between who wants bytes and who reads them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::cell::{Cell, Done, Filled, Phase};
use super::job::Job;
use super::landed::Landed;
use super::{ClassStats, ReadStats};
use crate::Error;

/// Which queue a read waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Tape,
    Urgent,
}

/// Lets rings and slots use the readers without keeping the threads alive.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(super) shared: Arc<Shared>,
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

    /// Has an idle cell filled as `describe` says.
    pub(crate) fn submit(&self, class: Class, cell: &Arc<Cell>, describe: impl FnOnce(&mut Job)) {
        cell.enqueue(describe);
        let mut queues = self.shared.queues();
        if queues.closed {
            drop(queues);
            cell.fail(Error::ReadersClosed);
            return;
        }
        queues.get(class).0.push_back(Arc::clone(cell));
        let asleep = std::mem::take(&mut queues.asleep);
        drop(queues);
        self.shared.work.notify_one();
        if asleep {
            (self.shared.wake)();
        }
    }

    /// Waits until the cell has been read, and takes its bytes.
    ///
    /// `None` for a cell that nobody asked to fill, or whose buffer is elsewhere. After an error the cell is idle.
    pub(crate) fn wait(&self, class: Class, cell: &Cell) -> Option<Result<Filled, Error>> {
        let (result, waited) = cell.wait();
        if let Some(waited) = waited {
            self.count_wait(class, waited);
        }
        result
    }

    /// Waits until more than `seen` cells have settled.
    pub(crate) fn wait_for_any(&self, class: Class, landed: &Landed, seen: u64) {
        let start = Instant::now();
        landed.wait_beyond(seen);
        self.count_wait(class, start.elapsed());
    }

    /// Makes sure that nobody will write to the cell any more: takes it out of the queue, or waits for a read under way.
    /// Returns what it holds then: [`Phase::Ready`] if it was read to the end.
    pub(crate) fn cancel(&self, class: Class, cell: &Arc<Cell>) -> Phase {
        self.shared.queues().get(class).0.retain(|queued| !Arc::ptr_eq(queued, cell));
        cell.settle()
    }

    fn count_wait(&self, class: Class, waited: Duration) {
        self.shared.counters(class).wait_ns.fetch_add(nanoseconds(waited), Ordering::Relaxed);
    }
}

/// What consumers and readers share.
pub(super) struct Shared {
    queues: Mutex<Queues>,
    work: Condvar,
    /// Wakes an executor that does not wait for `work`.
    wake: Box<dyn Fn() + Send + Sync>,
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
    /// An executor waits for [`Shared::wake`].
    asleep: bool,
    /// Cells that are being read now, since when there is at least one, and how long there was one before.
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

/// Why an executor may not rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "for executors that do more than wait for work")
)]
pub(super) enum Rest {
    /// It may: the next submission wakes it.
    Yes,
    /// There is something to read.
    Work,
    /// Nothing will come any more.
    Closed,
}

impl Shared {
    pub(super) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            queues: Mutex::default(),
            work: Condvar::new(),
            wake,
            tape: Counters::default(),
            urgent: Counters::default(),
        }
    }

    /// Waits for work; `None` at the end.
    pub(super) fn next_job(&self) -> Option<(Class, Arc<Cell>)> {
        let mut queues = self.queues();
        loop {
            if queues.closed {
                return None;
            }
            for class in [Class::Urgent, Class::Tape] {
                if let Some(cell) = queues.take(class) {
                    return Some((class, cell));
                }
            }
            queues = self.work.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next cell of a queue, if there is one.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "for executors that do more than wait for work")
    )]
    pub(super) fn take(&self, class: Class) -> Option<Arc<Cell>> {
        self.queues().take(class)
    }

    /// Says whether there is work, and if not has the next submission call `wake`.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "for executors that do more than wait for work")
    )]
    pub(super) fn rest(&self) -> Rest {
        let mut queues = self.queues();
        if queues.closed {
            Rest::Closed
        } else if queues.urgent.is_empty() && queues.tape.is_empty() {
            queues.asleep = true;
            Rest::Yes
        } else {
            Rest::Work
        }
    }

    /// Counts what a read amounted to, before anyone can see the bytes.
    pub(super) fn count(&self, class: Class, done: Done, elapsed: Duration) {
        let counters = self.counters(class);
        counters.reads.fetch_add(done.reads, Ordering::Relaxed);
        counters.bytes.fetch_add(done.bytes, Ordering::Relaxed);
        counters.busy_ns.fetch_add(nanoseconds(elapsed), Ordering::Relaxed);
    }

    /// A cell that was taken is not being read any more.
    pub(super) fn ended(&self) {
        let mut queues = self.queues();
        queues.reading -= 1;
        if queues.reading == 0
            && let Some(since) = queues.active_since.take()
        {
            queues.active += since.elapsed();
        }
    }

    /// Refuses all work from now on; what waits fails.
    pub(super) fn close(&self) {
        let waiting = {
            let mut queues = self.queues();
            queues.closed = true;
            let Queues { urgent, tape, .. } = &mut *queues;
            urgent.drain(..).chain(tape.drain(..)).collect::<Vec<_>>()
        };
        self.work.notify_all();
        (self.wake)();
        for cell in waiting {
            cell.fail(Error::ReadersClosed);
        }
    }

    pub(super) fn stats(&self, threads: usize) -> ReadStats {
        let [tape, urgent] = [Class::Tape, Class::Urgent].map(|class| self.counters(class).load());
        let queues = self.queues();
        let active = queues.active_since.map_or(Duration::ZERO, |since| since.elapsed()) + queues.active;
        ReadStats { tape, urgent, active_ns: nanoseconds(active), threads }
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

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl Queues {
    fn get(&mut self, class: Class) -> (&mut VecDeque<Arc<Cell>>, &mut usize) {
        match class {
            Class::Tape => (&mut self.tape, &mut self.registered[0]),
            Class::Urgent => (&mut self.urgent, &mut self.registered[1]),
        }
    }

    fn take(&mut self, class: Class) -> Option<Arc<Cell>> {
        let cell = self.get(class).0.pop_front()?;
        if self.reading == 0 {
            self.active_since = Some(Instant::now());
        }
        self.reading += 1;
        Some(cell)
    }
}

impl Counters {
    fn load(&self) -> ClassStats {
        let [reads, bytes, busy_ns, wait_ns] = [&self.reads, &self.bytes, &self.busy_ns, &self.wait_ns]
            .map(|counter| counter.load(Ordering::Relaxed));
        ClassStats { reads, bytes, busy_ns, wait_ns }
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    // 584 years.
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
