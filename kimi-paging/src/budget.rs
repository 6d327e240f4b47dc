//! A ledger of bytes: memory is paid for before it is allocated.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;

/// Alignment of a [`Buffer`], in bytes: the page size of common CPUs, and what direct reads ask for.
pub const PAGE_BYTES: usize = 4096;

/// A limit on bytes in use, shared by all its clones.
///
/// Every allocation of consequence takes a [`Lease`] first and holds it as long as the memory lives, so the sum of all
/// leases never passes the limit, whatever the number of threads:
///
/// ```
/// use kimi_paging::{Budget, Error};
///
/// let budget = Budget::new(1000);
/// let lease = budget.lease(600, "key-value cache")?;
/// assert!(matches!(budget.lease(500, "ring"), Err(Error::OverBudget { needed: 500, available: 400, .. })));
/// drop(lease);
/// assert_eq!((budget.used_bytes(), budget.peak_bytes()), (0, 600));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Budget {
    ledger: Arc<Ledger>,
}

struct Ledger {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    /// What the bytes are used for: a handful of names, in order of first use.
    uses: Mutex<Vec<Usage>>,
}

/// The bytes that one purpose holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The purpose, as given to [`Budget::lease`].
    pub what: &'static str,
    /// Bytes leased now.
    pub used_bytes: u64,
    /// The most bytes that were leased at once.
    pub peak_bytes: u64,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        let (used, peak) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { ledger: Arc::new(Ledger { limit: limit_bytes, used, peak, uses: Mutex::default() }) }
    }

    /// A budget that only counts.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Takes `bytes` from the budget until the lease is dropped; `what` names the purpose in errors and reports.
    ///
    /// # Errors
    /// [`Error::OverBudget`] when fewer than `bytes` are left; nothing is taken then.
    pub fn lease(&self, bytes: u64, what: &'static str) -> Result<Lease, Error> {
        let ledger = &self.ledger;
        let grow = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= ledger.limit);
        let before =
            ledger.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).map_err(|used| {
                Error::OverBudget { what, needed: bytes, available: ledger.limit - used, limit: ledger.limit }
            })?;
        ledger.peak.fetch_max(before + bytes, Ordering::Relaxed);
        ledger.record(what, |usage| {
            usage.used_bytes += bytes;
            usage.peak_bytes = usage.peak_bytes.max(usage.used_bytes);
        });
        Ok(Lease { budget: self.clone(), bytes, what })
    }

    /// A slice of `len` default values (zeros, for numbers), paid for by a lease.
    ///
    /// Zeros come from the system page by page, so memory that is never touched is never resident.
    ///
    /// # Errors
    /// [`Error::OverBudget`], or [`Error::TooLarge`] when the size does not fit the address space.
    pub fn zeroed<T: Copy + Default>(&self, len: usize, what: &'static str) -> Result<LeasedVec<T>, Error> {
        let bytes = array_bytes(len, size_of::<T>(), what)?;
        let lease = self.lease(bytes as u64, what)?;
        Ok(LeasedVec { values: vec![T::default(); len], lease })
    }

    /// A page-aligned buffer of `len` zero bytes, paid for by a lease of [`Buffer::footprint`] bytes.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn buffer(&self, len: usize, what: &'static str) -> Result<Buffer, Error> {
        array_bytes(len, 1, what)?;
        let lease = self.lease(Buffer::footprint(len), what)?;
        let bytes = vec![0; len + PAGE_BYTES - 1];
        // A Vec of bytes has any address; its heap block does not move, so the offset stays right.
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE_BYTES) - bytes.as_ptr().addr();
        Ok(Buffer { bytes, start, len, lease })
    }

    /// The limit; `u64::MAX` when there is none.
    pub fn limit_bytes(&self) -> u64 {
        self.ledger.limit
    }

    /// Bytes leased now.
    pub fn used_bytes(&self) -> u64 {
        self.ledger.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were leased at once.
    pub fn peak_bytes(&self) -> u64 {
        self.ledger.peak.load(Ordering::Relaxed)
    }

    /// Bytes that can still be leased.
    pub fn available_bytes(&self) -> u64 {
        self.limit_bytes() - self.used_bytes()
    }

    /// The bytes of each purpose, in order of first use. A purpose whose leases have all ended stays listed, for its peak.
    pub fn usage(&self) -> Vec<Usage> {
        self.ledger.uses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("limit_bytes", &self.limit_bytes())
            .field("used_bytes", &self.used_bytes())
            .field("peak_bytes", &self.peak_bytes())
            .finish()
    }
}

impl Ledger {
    fn record(&self, what: &'static str, change: impl FnOnce(&mut Usage)) {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        let at = uses.iter().position(|usage| usage.what == what).unwrap_or_else(|| {
            uses.push(Usage { what, used_bytes: 0, peak_bytes: 0 });
            uses.len() - 1
        });
        change(&mut uses[at]);
    }
}

/// Bytes taken from a [`Budget`], given back on drop.
pub struct Lease {
    budget: Budget,
    bytes: u64,
    what: &'static str,
}

impl Lease {
    /// The bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What they are for.
    pub fn what(&self) -> &'static str {
        self.what
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.ledger.record(self.what, |usage| usage.used_bytes -= self.bytes);
        self.budget.ledger.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes, {})", self.bytes, self.what)
    }
}

/// A slice of fixed length whose memory is paid for; made by [`Budget::zeroed`].
pub struct LeasedVec<T> {
    // Declared before the lease: memory is freed before the bytes are given back.
    values: Vec<T>,
    lease: Lease,
}

impl<T> LeasedVec<T> {
    /// The lease that pays for it.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl<T> Deref for LeasedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for LeasedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<T> fmt::Debug for LeasedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedVec").field("len", &self.values.len()).field("lease", &self.lease).finish()
    }
}

/// Bytes that start on a page and are paid for; made by [`Budget::buffer`].
pub struct Buffer {
    // Declared before the lease: memory is freed before the bytes are given back.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    lease: Lease,
}

impl Buffer {
    /// What a buffer of `len` bytes takes from a budget: whole pages, and one more that pays for the alignment and the
    /// allocator's own header.
    pub const fn footprint(len: usize) -> u64 {
        match (len as u64).checked_next_multiple_of(PAGE_BYTES as u64) {
            Some(pages) => pages.saturating_add(PAGE_BYTES as u64),
            None => u64::MAX,
        }
    }

    /// The lease that pays for it.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("lease", &self.lease).finish()
    }
}

/// `len * size` where an allocation of that many bytes (and a page more) is possible at all.
fn array_bytes(len: usize, size: usize, what: &'static str) -> Result<usize, Error> {
    len.checked_mul(size)
        .filter(|&bytes| bytes <= isize::MAX as usize - 2 * PAGE_BYTES)
        .ok_or(Error::TooLarge { what, count: len as u64, size: size as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_given_back_and_remembered_by_purpose() {
        let budget = Budget::new(100);
        let a = budget.lease(40, "a").unwrap();
        let b = budget.lease(60, "b").unwrap();
        assert_eq!((a.bytes(), b.what(), budget.available_bytes()), (40, "b", 0));
        drop(a);
        let c = budget.lease(10, "b").unwrap();
        assert_eq!((budget.used_bytes(), budget.peak_bytes()), (70, 100));
        let usage = budget.usage();
        assert_eq!((usage[0].what, usage[0].used_bytes, usage[0].peak_bytes), ("a", 0, 40));
        assert_eq!((usage[1].what, usage[1].used_bytes, usage[1].peak_bytes), ("b", 70, 70));
        drop((b, c));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_refused_lease_says_what_and_takes_nothing() {
        let budget = Budget::new(100);
        let _held = budget.lease(70, "state").unwrap();
        let error = budget.lease(31, "ring").unwrap_err();
        assert!(matches!(error, Error::OverBudget { what: "ring", needed: 31, available: 30, limit: 100 }));
        assert_eq!(error.to_string(), "ring needs 31 bytes, but only 30 of the budget of 100 bytes are left");
        assert_eq!(budget.used_bytes(), 70);
        // The sum may not wrap around either.
        assert!(budget.lease(u64::MAX, "ring").is_err());
        let unlimited = Budget::unlimited();
        let _held = unlimited.lease(u64::MAX, "all").unwrap();
        assert!(unlimited.lease(1, "more").is_err());
    }

    #[test]
    fn threads_never_pass_the_limit() {
        let budget = Budget::new(1000);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let budget = budget.clone();
                scope.spawn(move || {
                    for round in 0..2000 {
                        if let Ok(lease) = budget.lease(1 + (thread * 131 + round * 17) % 400, "shared") {
                            assert!(budget.used_bytes() <= 1000);
                            drop(lease);
                        }
                    }
                });
            }
        });
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.peak_bytes() <= 1000);
        assert_eq!(budget.usage()[0].used_bytes, 0);
    }

    #[test]
    fn buffers_are_aligned_and_charged_for_what_they_take() {
        let budget = Budget::new(1 << 20);
        for len in [0, 1, 4095, 4096, 4097, 100_000] {
            let mut buffer = budget.buffer(len, "buffer").unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % PAGE_BYTES), (len, 0));
            assert_eq!(budget.used_bytes(), Buffer::footprint(len));
            assert!(Buffer::footprint(len) >= (len + PAGE_BYTES - 1) as u64);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            let moved = Box::new(buffer);
            assert!(moved.as_ptr().addr().is_multiple_of(PAGE_BYTES) && moved.iter().all(|&byte| byte == 7));
        }
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn sizes_that_cannot_exist_are_errors() {
        let budget = Budget::unlimited();
        assert!(matches!(budget.zeroed::<f32>(usize::MAX, "state"), Err(Error::TooLarge { .. })));
        assert!(matches!(budget.zeroed::<f32>(usize::MAX / 4, "state"), Err(Error::TooLarge { .. })));
        assert!(matches!(budget.buffer(usize::MAX, "slot"), Err(Error::TooLarge { .. })));
        assert_eq!(Buffer::footprint(usize::MAX), u64::MAX);
        let mut values = budget.zeroed::<f32>(3, "state").unwrap();
        values[1] = 2.0;
        assert_eq!((&*values, budget.used_bytes()), (&[0.0, 2.0, 0.0][..], 12));
    }
}
