//! A bell that rings whenever one of several buffers has been filled.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts reads that ended, for who waits for any of several.
#[derive(Debug, Default)]
pub(crate) struct Landed {
    count: Mutex<u64>,
    more: Condvar,
}

impl Landed {
    /// How many reads have ended so far.
    pub(crate) fn count(&self) -> u64 {
        *self.lock()
    }

    pub(super) fn add(&self) {
        *self.lock() += 1;
        self.more.notify_all();
    }

    /// Waits until more than `seen` have ended.
    pub(super) fn wait_beyond(&self, seen: u64) {
        let mut count = self.lock();
        while *count <= seen {
            count = self.more.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        // Nothing panics while it holds this lock.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
