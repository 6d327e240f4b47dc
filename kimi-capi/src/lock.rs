//! A lock that other threads wait for, and that its own thread is refused.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::Error;

/// A mutex that answers a second call of the thread that holds it, from inside a callback, with [`Error::Busy`] in place of
/// a deadlock.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    what: &'static str,
    value: Mutex<T>,
    /// The number of the thread that holds it, or 0.
    holder: AtomicU64,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: u64 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

impl<T> Lock<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { what, value: Mutex::new(value), holder: AtomicU64::new(0) }
    }

    pub(crate) fn lock(&self) -> Result<Held<'_, T>, Error> {
        let thread = THREAD.with(|&thread| thread);
        // Only this thread ever stores its number, so what it reads of it is never out of date.
        if self.holder.load(Ordering::Relaxed) == thread {
            return Err(Error::Busy { what: self.what });
        }
        let value = self.value.lock().map_err(|_| Error::Poisoned { what: self.what })?;
        self.holder.store(thread, Ordering::Relaxed);
        Ok(Held { value, holder: &self.holder })
    }
}

/// A [`Lock`] that is held.
#[derive(Debug)]
pub(crate) struct Held<'a, T> {
    value: MutexGuard<'a, T>,
    holder: &'a AtomicU64,
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_threads_wait_and_the_own_one_is_refused() {
        let lock = Lock::new("number", 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut number = lock.lock().unwrap();
                        assert!(matches!(lock.lock(), Err(Error::Busy { what: "number" })));
                        *number += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock().unwrap(), 4000);
    }

    #[test]
    fn a_panic_inside_is_remembered() {
        let lock = Lock::new("number", 0);
        let panicked = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _held = lock.lock().unwrap();
                    panic!("on purpose");
                })
                .join()
        });
        assert!(panicked.is_err());
        assert!(matches!(lock.lock(), Err(Error::Poisoned { what: "number" })));
    }
}
