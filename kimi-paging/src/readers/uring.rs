//! One thread that hands the kernel many reads at once through io_uring.
//!
//! The kernel only sees plain reads of open files. Everything else (sources without a file, reads that no alignment fits, and
//! every read that did not go well) takes the way of the threads: [`Cell::read`] blocks this thread meanwhile, tries again as
//! always, and words the errors.

#![expect(unsafe_code, reason = "the kernel writes to buffers while we hold them")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, types};
use rustix::event::{EventfdFlags, PollFlags, eventfd};

use self::files::Files;
use self::flight::{Active, Flight, Step};
use super::ReadSettings;
use super::queue::{Class, Rest, Shared};
use crate::Error;
use crate::source::prepare_thread;

mod files;
mod flight;

/// Marks the completion that says that there is something in the queues.
const WAKE: u64 = u64::MAX;

/// An answer to a read that says nothing more.
const FAILED: i32 = -1;

/// The executor.
pub(super) struct Uring {
    ring: IoUring,
    files: Files,
    flight: Flight,
    /// Readable once a submission wants this thread to look.
    woken: Arc<OwnedFd>,
    /// The kernel watches `woken`.
    watching: bool,
}

impl Uring {
    /// Sets up a ring, or says why the system has none.
    pub(super) fn new(settings: &ReadSettings) -> io::Result<(Self, Arc<Shared>)> {
        // One entry for every read under way, and one for `woken`.
        let ring = IoUring::new(settings.depth as u32 + 1)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::PollAdd::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let woken = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bell = Arc::clone(&woken);
        let wake = move || {
            // Can only fail when the counter is full, and then it is readable anyway.
            let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
        };
        let files = Files::new(&ring.submitter());
        let flight = Flight::new(settings.depth, settings.request_bytes);
        Ok((Self { ring, files, flight, woken, watching: false }, Arc::new(Shared::new(Box::new(wake)))))
    }

    /// Reads until the queues are closed.
    pub(super) fn serve(mut self, shared: &Shared) {
        // Nobody else would serve the queues if this thread panicked.
        let _close = Close(shared);
        prepare_thread();
        loop {
            self.fill(shared);
            if self.flight.has_room() {
                match shared.rest() {
                    Rest::Work => continue,
                    Rest::Closed if self.flight.is_idle() => return,
                    Rest::Closed | Rest::Yes => {}
                }
            }
            self.watch();
            self.wait();
            self.collect(shared);
        }
    }

    /// Begins reads until as many are under way as may be: those that someone waits for first, and what has been begun before
    /// what has not.
    fn fill(&mut self, shared: &Shared) {
        while self.flight.has_room() {
            let begun = [Class::Urgent, Class::Tape]
                .into_iter()
                .any(|class| self.issue(shared, class) || self.begin(shared, class));
            if !begun {
                return;
            }
        }
    }

    /// Begins the next read of a cell that has been begun.
    fn issue(&mut self, shared: &Shared, class: Class) -> bool {
        let Some(request) = self.flight.issue(class) else { return false };
        self.push(shared, request);
        true
    }

    /// Takes the next cell from the queue; false if there is none.
    fn begin(&mut self, shared: &Shared, class: Class) -> bool {
        let Some(cell) = shared.take(class) else { return false };
        let Some(work) = cell.begin() else {
            shared.ended();
            return true;
        };
        let active = Active::new(class, cell, work);
        if active.is_plain() {
            self.flight.add(active);
        } else {
            read_blocking(shared, active);
        }
        true
    }

    /// Hands a read to the kernel.
    fn push(&mut self, shared: &Shared, request: usize) {
        let cell = Arc::clone(self.flight.cell(request));
        let span = self.flight.span(request);
        let Some(file) = cell.sources[span.source.index()].file() else {
            // A source that changed its mind.
            return self.complete(shared, request, FAILED);
        };
        let (memory, len) = (span.memory.as_mut_ptr(), span.len);
        let read = match self.files.index(&self.ring.submitter(), &cell.sources, span.source) {
            Some(index) => opcode::Read::new(types::Fixed(index), memory, len),
            None => opcode::Read::new(types::Fd(file.as_raw_fd()), memory, len),
        };
        let entry = read.offset(span.offset).build().user_data(request as u64);
        // SAFETY: `memory` points to `len` bytes of a buffer that the flight owns and nobody touches before the completion of
        // this request has been seen: `Flight` lets go of a buffer when none of its requests is under way, and dropping `self`
        // waits for all. The flight holds the cell, and with it the open file, as long.
        unsafe { self.enqueue(&entry) };
    }

    /// Takes the answer to a read.
    fn complete(&mut self, shared: &Shared, request: usize, result: i32) {
        match self.flight.complete(request, result) {
            Step::Again => self.push(shared, request),
            Step::Wait => {}
            Step::Landed(active) => land(shared, active),
        }
    }

    /// # Safety
    /// What the entry points to must stay valid until it is completed.
    unsafe fn enqueue(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: passed on to the caller.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // Cannot be: there is an entry for everything that may be under way. Submitting makes room in any case.
            self.enter(0);
        }
    }

    /// Has the kernel watch for the next submission.
    fn watch(&mut self) {
        if !self.watching {
            let poll =
                opcode::PollAdd::new(types::Fd(self.woken.as_raw_fd()), u32::from(PollFlags::IN.bits()));
            // SAFETY: the entry holds no pointer, and the ring is gone before the descriptor.
            unsafe { self.enqueue(&poll.build().user_data(WAKE)) };
            self.watching = true;
        }
    }

    /// Submits what was prepared, and waits until something is done.
    fn wait(&mut self) {
        self.enter(1);
    }

    fn enter(&mut self, want: usize) {
        match self.ring.submit_and_wait(want) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Short of memory, or too many completions not yet taken. Nothing is lost: the entries stay queued.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    /// Takes the completions that are there.
    fn collect(&mut self, shared: &Shared) {
        while let Some((request, result)) = self.next_completion() {
            self.complete(shared, request, result);
        }
    }

    fn next_completion(&mut self) -> Option<(usize, i32)> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() != WAKE {
                return Some((completion.user_data() as usize, completion.result()));
            }
            self.watching = false;
            // Takes the count back; empty if it was taken already.
            let _ = rustix::io::read(self.woken.as_fd(), &mut [0u8; 8][..]);
        }
    }
}

impl Drop for Uring {
    /// Waits for the kernel to be done with all buffers. There are none left unless [`Uring::serve`] panicked.
    fn drop(&mut self) {
        let close = |active: Active| active.cell.finish(active.work, Err(Error::ReadersClosed));
        self.flight.give_up().for_each(close);
        while !self.flight.is_idle() {
            self.wait();
            while let Some((request, result)) = self.next_completion() {
                if let Step::Landed(active) = self.flight.complete(request, result) {
                    close(active);
                }
            }
        }
    }
}

/// Closes the queues at the end, however that comes.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").finish_non_exhaustive()
    }
}

/// Hands over what was read, if it went well; otherwise reads it again the slow way, which knows what to do about failures.
fn land(shared: &Shared, active: Active) {
    if active.failed {
        return read_blocking(shared, active);
    }
    let Active { class, cell, mut work, .. } = active;
    work.job.close_gaps(&mut work.buffer);
    shared.count(class, active.done, active.begun.elapsed());
    cell.finish(work, Ok(()));
    shared.ended();
}

fn read_blocking(shared: &Shared, active: Active) {
    let Active { class, cell, mut work, begun, .. } = active;
    let (done, result) = cell.read(&mut work);
    shared.count(class, done, begun.elapsed());
    cell.finish(work, result);
    shared.ended();
}
