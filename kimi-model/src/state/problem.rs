//! Why a saved session is refused.

use std::path::PathBuf;

use crate::kv::KvFormat;
use crate::operand::Arith;

/// A file that no session can be taken from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
#[non_exhaustive]
pub struct StateError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: StateProblem,
}

/// What is wrong with a saved session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateProblem {
    /// The file does not begin as one.
    #[error("is no saved session; give a file that `--save-state` wrote")]
    NotAState,
    /// A later program wrote it.
    #[error(
        "has format {found}, this program reads {known}; use the program that wrote it, or save the session anew"
    )]
    Version {
        /// The file's format.
        found: u32,
        /// The format that this program reads.
        known: u32,
    },
    /// Bytes are missing or too many.
    #[error(
        "has {found} bytes, its header asks for {expected}; it is incomplete or was changed: save the session anew"
    )]
    Length {
        /// Bytes that the header asks for.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// Bytes changed.
    #[error("is damaged ({part}); save the session anew")]
    Damaged {
        /// Where.
        part: String,
    },
    /// Another number format of latents.
    #[error("was saved with latents in {saved}, this run has {running}; use `--kv {saved}`")]
    Kv {
        /// As saved.
        saved: KvFormat,
        /// As run.
        running: KvFormat,
    },
    /// Another tier of arithmetic.
    #[error("was saved with {saved} arithmetic, this run has {running}; use `--arith {saved}`")]
    Arith {
        /// As saved.
        saved: Arith,
        /// As run.
        running: Arith,
    },
    /// Another model.
    #[error("was saved with another model; use the model that it was saved with")]
    Model,
    /// The context is too short for it.
    #[error("holds {tokens} tokens, the context has room for {capacity}; raise `--context`")]
    Context {
        /// Tokens of the file.
        tokens: u64,
        /// Tokens that a session can hold.
        capacity: usize,
    },
}

impl StateProblem {
    /// With the name of the file.
    pub(crate) fn of(self, path: &std::path::Path) -> crate::error::Error {
        StateError { path: path.to_path_buf(), problem: self }.into()
    }
}
