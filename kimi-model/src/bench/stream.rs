//! How fast memory is read: the yardstick for products that do nothing but read weights.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kimi_kernels::Threads;

/// Sums side by side, so that no addition waits for the one before: the compiler makes registers of them.
const LANES: usize = 16;

/// A buffer that no cache holds, and the loop that adds it up.
#[derive(Debug)]
pub(super) struct Stream {
    words: Vec<[u64; LANES]>,
    /// One sum for each thread.
    sums: Vec<u64>,
}

impl Stream {
    /// About `bytes` bytes, touched by the threads that will read them.
    pub(super) fn new(threads: &Threads, bytes: u64) -> Self {
        let count = (bytes as usize / size_of::<[u64; LANES]>()).max(threads.count());
        let mut words = vec![[0; LANES]; count];
        threads.chunks(&mut words, count.div_ceil(threads.count()), |_, words| words.fill([1; LANES]));
        Self { words, sums: vec![0; threads.count()] }
    }

    /// Bytes a second, of whole passes over the buffer until `time` is over.
    pub(super) fn sample(&mut self, threads: &Threads, time: Duration) -> f64 {
        let Self { words, sums } = self;
        let words = words.as_slice();
        let part = words.len().div_ceil(sums.len());
        let start = Instant::now();
        let mut passes = 0u64;
        loop {
            threads.chunks(sums, 1, |i, sum| {
                let words = words.get(i * part..words.len().min((i + 1) * part)).unwrap_or_default();
                sum[0] = add(black_box(words));
            });
            black_box(&*sums);
            passes += 1;
            let elapsed = start.elapsed();
            if elapsed >= time {
                return (passes * size_of_val(words) as u64) as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

fn add(words: &[[u64; LANES]]) -> u64 {
    let mut sums = [0u64; LANES];
    for words in words {
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |sum, lane| sum.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_added_once_whatever_the_threads() {
        for threads in [1, 3, 7] {
            let threads = Threads::new(threads).unwrap();
            for bytes in [0, 128 * 5, 128 * 7, 128 * 100 + 1] {
                let mut stream = Stream::new(&threads, bytes);
                assert!(stream.sample(&threads, Duration::ZERO) > 0.0);
                let expected = (stream.words.len() * LANES) as u64;
                assert!(expected * 8 >= bytes / 128 * 128);
                assert_eq!(stream.sums.iter().sum::<u64>(), expected);
            }
        }
    }
}
