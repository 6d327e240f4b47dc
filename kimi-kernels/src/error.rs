//! What can go wrong before a kernel runs.

use std::fmt;

/// An operand has another length than the shapes of the others call for. No output was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShapeError {
    /// The operand.
    pub operand: &'static str,
    /// The length that the shapes call for.
    pub expected: usize,
    /// The length it has.
    pub found: usize,
}

impl ShapeError {
    /// `Ok` when an operand has the length that it should have.
    pub(crate) fn check(operand: &'static str, expected: usize, found: usize) -> Result<(), Self> {
        if expected == found { Ok(()) } else { Err(Self { operand, expected, found }) }
    }
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needs {} values, found {}", self.operand, self.expected, self.found)
    }
}

impl std::error::Error for ShapeError {}

/// The threads could not be started.
#[derive(Debug)]
pub struct ThreadsError {
    pub(crate) count: usize,
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Display for ThreadsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not start {} compute threads", self.count)
    }
}

impl std::error::Error for ThreadsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
