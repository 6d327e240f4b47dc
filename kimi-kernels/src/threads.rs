//! Splitting work over threads without touching results: threads own whole outputs, never parts of a sum.

#[cfg(feature = "rayon")]
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ThreadsError;

/// A fixed number of compute threads; a clone is the same threads.
///
/// With one thread, or without the `rayon` feature, everything runs on the caller's.
#[derive(Debug, Clone)]
pub struct Threads {
    #[cfg(feature = "rayon")]
    pool: Option<Arc<rayon::ThreadPool>>,
}

impl Threads {
    /// Starts `count` threads; 0 counts as 1.
    ///
    /// # Errors
    /// [`ThreadsError`] when the system refuses.
    #[cfg(feature = "rayon")]
    pub fn new(count: usize) -> Result<Self, ThreadsError> {
        if count <= 1 {
            return Ok(Self { pool: None });
        }
        let builder =
            rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(|i| format!("kimi-compute-{i}"));
        match builder.build() {
            Ok(pool) => Ok(Self { pool: Some(Arc::new(pool)) }),
            Err(error) => Err(ThreadsError { count, source: Box::new(error) }),
        }
    }

    /// One thread, the caller's: this build has no `rayon`.
    ///
    /// # Errors
    /// None in this build.
    #[cfg(not(feature = "rayon"))]
    pub fn new(_count: usize) -> Result<Self, ThreadsError> {
        Ok(Self {})
    }

    /// How many threads compute.
    pub fn count(&self) -> usize {
        #[cfg(feature = "rayon")]
        return self.pool.as_ref().map_or(1, |pool| pool.current_num_threads());
        #[cfg(not(feature = "rayon"))]
        1
    }

    /// Runs `work` on one of the threads, so that the parallel regions inside start without waking anybody first.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        #[cfg(feature = "rayon")]
        if let Some(pool) = &self.pool {
            return pool.install(work);
        }
        work()
    }

    /// Calls `work(i, chunk i)` for all chunks of `chunk` values of `data` (the last may be shorter), in any order.
    ///
    /// # Panics
    /// If `chunk` is 0.
    pub fn chunks<T: Send>(&self, data: &mut [T], chunk: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        #[cfg(feature = "rayon")]
        if let Some(pool) = &self.pool
            && data.len() > chunk
        {
            use rayon::prelude::*;
            return pool
                .install(|| data.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part)));
        }
        for (i, part) in data.chunks_mut(chunk).enumerate() {
            work(i, part);
        }
    }

    /// As [`chunks`](Self::chunks), with the matching chunks of two slices.
    ///
    /// # Panics
    /// If a chunk size is 0 or the slices have different numbers of chunks.
    pub fn chunk_pairs<A: Send, B: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let ((a, a_chunk), (b, b_chunk)) = (a, b);
        assert_eq!(a.len().div_ceil(a_chunk), b.len().div_ceil(b_chunk), "as many chunks in both");
        #[cfg(feature = "rayon")]
        if let Some(pool) = &self.pool
            && a.len() > a_chunk
        {
            use rayon::prelude::*;
            let pairs = a.par_chunks_mut(a_chunk).zip(b.par_chunks_mut(b_chunk)).enumerate();
            return pool.install(|| pairs.for_each(|(i, (a, b))| work(i, a, b)));
        }
        for (i, (a, b)) in a.chunks_mut(a_chunk).zip(b.chunks_mut(b_chunk)).enumerate() {
            work(i, a, b);
        }
    }

    fn worker(&self) -> usize {
        #[cfg(feature = "rayon")]
        if let Some(pool) = &self.pool {
            return pool.current_thread_index().unwrap_or(0);
        }
        0
    }
}

/// Working memory of known size, one piece per thread.
#[derive(Debug)]
pub struct Scratch {
    pieces: Vec<Mutex<Vec<f32>>>,
}

impl Scratch {
    /// `floats` values for each thread.
    pub fn new(threads: &Threads, floats: usize) -> Self {
        Self { pieces: (0..threads.count()).map(|_| Mutex::new(vec![0.0; floats])).collect() }
    }

    /// Values per thread.
    pub fn floats(&self) -> usize {
        self.pieces.first().map_or(0, |piece| piece.lock().unwrap_or_else(PoisonError::into_inner).len())
    }

    /// The piece of the calling thread. Its contents are whatever the last user left.
    ///
    /// Every thread has its own piece, so nobody waits here.
    pub fn piece(&self, threads: &Threads) -> MutexGuard<'_, Vec<f32>> {
        let worker = threads.worker() % self.pieces.len();
        // A panic of an earlier user leaves numbers behind, and nobody relies on what is left behind.
        self.pieces[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_testing::max_threads;

    #[test]
    fn every_chunk_is_visited_once_whatever_the_number_of_threads() {
        for count in [0, 1, 2, 5].into_iter().filter(|&count| count <= max_threads()) {
            let threads = Threads::new(count).unwrap();
            let (mut a, mut b) = (vec![0u32; 23], vec![0u32; 6]);
            threads.chunks(&mut a, 4, |i, part| part.iter_mut().for_each(|value| *value += i as u32 + 1));
            assert_eq!(a, (0..23).map(|i| i / 4 + 1).collect::<Vec<_>>());
            threads.chunk_pairs((&mut a, 4), (&mut b, 1), |_, a, b| b[0] = a.iter().sum());
            assert_eq!(b, [4, 8, 12, 16, 20, 18]);
        }
    }

    #[test]
    fn scratch_serves_every_thread() {
        let threads = Threads::new(max_threads().min(3)).unwrap();
        let scratch = Scratch::new(&threads, 8);
        let mut data = vec![0.0f32; 64];
        threads.chunks(&mut data, 1, |i, value| {
            let mut piece = scratch.piece(&threads);
            piece.fill(i as f32);
            value[0] = piece.iter().sum();
        });
        assert_eq!(data[5], 40.0);
        assert_eq!(scratch.floats(), 8);
    }
}
