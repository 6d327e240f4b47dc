//! What a machine gives: weights a second of its kernels, bytes a second of its memory and of its drive.
//!
//! Measurements that are compared take turns: every row of a table is measured once in each of several rounds, and the median
//! of the rounds counts. On a machine with other work to do the range tells how far to trust it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::Error;

pub mod decode;
pub mod disk;
pub mod kernels;
mod stored;
mod stream;

/// The middle of several measurements of one thing, and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Spread {
    /// Half of the measurements are at most this, of an even number the mean of the middle two.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(crate) fn new(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median, min, max })
    }

    /// All three times a factor that is not negative.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }
}

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The drive has too little room for a file to read.
    #[error("{} needs {:.1} MB for a file to read, {:.1} MB are free; --size makes it smaller", dir.display(), *needed as f64 / 1e6, *free as f64 / 1e6)]
    NoSpace {
        /// The folder.
        dir: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// The system refused an operation on a file.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Files without a block to read.
    #[error("{}: the files hold less than {needed} bytes, too little to measure", path.display())]
    TooSmall {
        /// The file or folder.
        path: PathBuf,
        /// What they must hold.
        needed: u64,
    },
    /// A setting that makes no measurement.
    #[error("{what} must be {expected}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// Somebody asked for the end.
    #[error("cancelled")]
    Cancelled,
    /// The machine has no such instruction set, no memory, no readers.
    #[error(transparent)]
    Run(#[from] Error),
}

impl From<kimi_paging::Error> for BenchError {
    fn from(error: kimi_paging::Error) -> Self {
        Self::Run(error.into())
    }
}

/// Serializes something by its name.
fn name<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Serializes a list of things by their names.
fn names<S: Serializer>(values: &[impl fmt::Display], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_middle_two() {
        assert_eq!(Spread::new(&[]), None);
        let spread = |samples: &[f64]| Spread::new(samples).map(|s| (s.min, s.median, s.max));
        assert_eq!(spread(&[3.0]), Some((3.0, 3.0, 3.0)));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some((1.0, 2.0, 9.0)));
        assert_eq!(spread(&[9.0, 1.0, 2.0, 4.0]), Some((1.0, 3.0, 9.0)));
        assert_eq!(Spread::new(&[1.0, 2.0]).map(|s| s.scaled(2.0).median), Some(3.0));
    }
}
