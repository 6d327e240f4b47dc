//! What can be wrong with the files of a tokenizer, or with an id.

use std::path::{Path, PathBuf};

use crate::TokenId;

/// A tokenizer file that cannot be used: which file, and what is wrong with it.
#[derive(Debug)]
pub struct LoadError {
    /// The file: its path where one is known, else the name that it has in a release.
    pub file: PathBuf,
    /// What is wrong.
    pub kind: LoadErrorKind,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.kind)
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The kind is part of this message already, so the chain goes on with what lies below it.
        std::error::Error::source(&self.kind)
    }
}

/// What is wrong with a tokenizer file. Lines count from 1, offsets and columns are in bytes from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadErrorKind {
    /// The file cannot be read.
    #[error("cannot be read")]
    Io(#[source] std::io::Error),
    /// The file, or a list of tokens, is larger than any that makes sense.
    #[error("expected at most {expected} bytes, found {found}")]
    TooLarge {
        /// The largest size that is accepted.
        expected: usize,
        /// The size that was met; a file is not read further than one byte past the limit.
        found: usize,
    },

    /// A line is not "base64 rank".
    #[error("line {line}: expected a token in base64 and its rank, found {found:?}")]
    Line {
        /// The line.
        line: usize,
        /// How it begins.
        found: String,
    },
    /// The first field of a line is not base64.
    #[error("line {line}: expected padded base64, found {found:?}")]
    Base64 {
        /// The line.
        line: usize,
        /// How the field begins.
        found: String,
        /// Where and how the decoder stopped.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The second field of a line is not a number that fits an id.
    #[error("line {line}: expected a rank of at most {}, found {found:?}", u32::MAX)]
    Rank {
        /// The line.
        line: usize,
        /// How the field begins.
        found: String,
    },
    /// One rank is given to two tokens.
    #[error("line {line}: rank {rank} is taken by line {first_line}")]
    DuplicateRank {
        /// The second line.
        line: usize,
        /// The first line.
        first_line: usize,
        /// The rank of both.
        rank: u32,
    },
    /// The ranks do not run from 0 without a gap.
    #[error("line {line}: expected rank {expected} to come next, found {found}")]
    MissingRank {
        /// The line with the rank after the gap.
        line: usize,
        /// The lowest rank that no line has.
        expected: u32,
        /// The next rank that a line has.
        found: u32,
    },
    /// There are more tokens than any vocabulary has.
    #[error("expected at most {expected} tokens")]
    TooManyTokens {
        /// The most tokens that are accepted.
        expected: usize,
    },
    /// A token has no bytes.
    #[error("the token of rank {rank} is empty")]
    EmptyToken {
        /// Its rank.
        rank: u32,
    },
    /// Two ranks have the same bytes.
    #[error("the tokens of ranks {first} and {second} have the same bytes")]
    DuplicateToken {
        /// The lower rank.
        first: u32,
        /// The higher rank.
        second: u32,
    },
    /// A byte is no token by itself, so that some text could not be encoded.
    #[error("expected every byte to be a token, but 0x{byte:02x} is none")]
    MissingByte {
        /// The lowest such byte.
        byte: u8,
    },

    /// The file is not UTF-8.
    #[error("offset {offset}: expected UTF-8, found byte 0x{found:02x}")]
    NotUtf8 {
        /// The first byte that is not.
        offset: usize,
        /// Its value.
        found: u8,
    },
    /// The file is not JSON, or a field has another type than expected.
    #[error("line {line}, column {column}: not the JSON of such a file")]
    Json {
        /// The line.
        line: usize,
        /// The column in that line.
        column: usize,
        /// What was expected.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A key of `added_tokens_decoder` is not a number.
    #[error("added_tokens_decoder: expected an id, found {found:?}")]
    SpecialKey {
        /// How the key begins.
        found: String,
    },
    /// A special token has the id of an ordinary one.
    #[error(
        "added_tokens_decoder: {name:?} has id {found}, expected {expected} or more: lower ids are ranks"
    )]
    SpecialIsRank {
        /// The name of the special token.
        name: String,
        /// The first id after the ranks.
        expected: u32,
        /// The id that was given.
        found: u64,
    },
    /// A special token has an id after the last slot.
    #[error("added_tokens_decoder: {name:?} has id {found}, expected at most {expected}, the last slot")]
    SpecialOutOfRange {
        /// The name of the special token.
        name: String,
        /// The id of the last slot.
        expected: u32,
        /// The id that was given.
        found: u64,
    },
    /// One id is given two names.
    #[error("added_tokens_decoder: id {id} is named {first:?} and {second:?}")]
    DuplicateSpecialId {
        /// The id.
        id: u32,
        /// The name that came first.
        first: String,
        /// The name that came second.
        second: String,
    },
    /// Two special tokens have one name; the name of a slot that the configuration leaves out counts as well.
    #[error("added_tokens_decoder: ids {first} and {second} are both named {name:?}")]
    DuplicateSpecialName {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// The name.
        name: String,
    },
    /// The name of a special token is empty, or longer than any that makes sense.
    #[error("added_tokens_decoder: expected a name of 1 to {longest} bytes for id {id}, found {found}")]
    SpecialNameLength {
        /// The id.
        id: u32,
        /// The most bytes that are accepted.
        longest: usize,
        /// The bytes that the name has.
        found: usize,
    },
    /// `bos_token` or `eos_token` is no special token.
    #[error("{field}: expected the name of a special token, found {found:?}")]
    UnknownSpecial {
        /// The field of the configuration.
        field: &'static str,
        /// The name that it holds.
        found: String,
    },
}

impl LoadErrorKind {
    /// The error with the file that it is about.
    pub(crate) fn at(self, file: impl AsRef<Path>) -> LoadError {
        LoadError { file: file.as_ref().to_path_buf(), kind: self }
    }
}

/// An id that no token has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a token id below {vocab_size}, found {found}")]
pub struct UnknownToken {
    /// The id.
    pub found: TokenId,
    /// Ids that the tokenizer has, special ones included.
    pub vocab_size: u32,
}

/// A stop string without characters: it would match everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stop string {index} is empty")]
pub struct EmptyStop {
    /// Its place in the list, from 0.
    pub index: usize,
}
