//! How many threads tests may start.

/// The number in `KIMI_TEST_THREADS`, for emulators that run a single thread; no limit where it is not set.
///
/// # Panics
/// If the variable is set and no number.
pub fn max_threads() -> usize {
    match std::env::var("KIMI_TEST_THREADS") {
        Ok(count) => count.parse().expect("KIMI_TEST_THREADS is a number"),
        Err(_) => usize::MAX,
    }
}
