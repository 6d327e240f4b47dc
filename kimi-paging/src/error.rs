//! What can go wrong, by who can act on it.

use std::io;
use std::path::PathBuf;

/// Why a call of this crate failed.
///
/// [`OverBudget`](Self::OverBudget) and [`TooLarge`](Self::TooLarge) are about memory, [`Io`](Self::Io) and
/// [`ShortRead`](Self::ShortRead) about the system, [`Shard`](Self::Shard) and [`Index`](Self::Index) about files that are
/// damaged or incomplete, the others about a caller that asks for something impossible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A lease did not fit the budget.
    #[error("{what} needs {needed} bytes, but only {available} of the budget of {limit} bytes are left")]
    OverBudget {
        /// What the bytes were for.
        what: &'static str,
        /// The bytes asked for.
        needed: u64,
        /// The bytes that were left.
        available: u64,
        /// The whole budget.
        limit: u64,
    },

    /// An allocation that no address space holds.
    #[error("{what}: {count} elements of {size} bytes do not fit the address space")]
    TooLarge {
        /// What the bytes were for.
        what: &'static str,
        /// The number of elements.
        count: u64,
        /// Bytes of an element.
        size: u64,
    },

    /// The system refused an operation on a file.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried: "open", "read", "map".
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said, with its kind.
        #[source]
        source: io::Error,
    },

    /// A file holds fewer bytes than it should: it was truncated, or is being changed.
    #[error("{} ends too early: expected {expected} bytes at offset {offset}, found {found}", path.display())]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset: u64,
        /// The bytes asked for.
        expected: u64,
        /// The bytes that were there.
        found: u64,
    },

    /// A safetensors file is damaged.
    #[error("{}: {problem}", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: ShardProblem,
    },

    /// The files of a checkpoint do not fit together.
    #[error("{}: {problem}", path.display())]
    Index {
        /// The index file, or the folder where there is none.
        path: PathBuf,
        /// What is wrong with it.
        problem: IndexProblem,
    },

    /// A tape that cannot be played.
    #[error("tape entry {entry}: {problem}")]
    Tape {
        /// The entry, counted from 0.
        entry: usize,
        /// What is wrong with it.
        problem: TapeProblem,
    },

    /// A record that cannot be read into a slot.
    #[error("record {key}: {problem}")]
    Record {
        /// The key of the request.
        key: u64,
        /// What is wrong with it.
        problem: RecordProblem,
    },

    /// A ring without slots, or slots for nothing.
    #[error("{what} must be {expected}, found {found}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it was.
        found: u64,
    },

    /// A source that calls itself mapped has no view of a range.
    #[error("{} promises views of its bytes and has none at offset {offset}", path.display())]
    Unmapped {
        /// The source.
        path: PathBuf,
        /// Where the view was to begin.
        offset: u64,
    },

    /// A thread that reads could not be started.
    #[error("cannot start a reader thread")]
    Spawn(#[source] io::Error),

    /// A source panicked while it was read; the reader goes on with other work.
    #[error("reading {} panicked: {message}", path.display())]
    ReaderPanicked {
        /// The source.
        path: PathBuf,
        /// The message of the panic.
        message: String,
    },

    /// The readers were dropped while someone still waited for bytes.
    #[error("the readers have been shut down")]
    ReadersClosed,

    /// A tile or record was leaked (`std::mem::forget`), and its buffer with it.
    #[error("a {what} was leaked, and its buffer with it")]
    Leaked {
        /// "tile" or "record".
        what: &'static str,
    },
}

impl Error {
    /// True for failures that the same read may not meet again.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::ShortRead { .. } => true,
            Self::Io { source, .. } => crate::source::is_transient(source),
            _ => false,
        }
    }
}

/// What is wrong with a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardProblem {
    /// Not even a header length.
    #[error("{found} bytes are too few for a safetensors file; fetch it again")]
    TooShort {
        /// The size of the file.
        found: u64,
    },

    /// The header does not fit the file: the file was truncated, or is no safetensors file.
    #[error(
        "the header claims {claimed} bytes, but only {available} follow; the file is truncated or no safetensors file"
    )]
    HeaderPastEnd {
        /// The length that the first eight bytes give.
        claimed: u64,
        /// The bytes behind them.
        available: u64,
    },

    /// A header beyond the cap of the format.
    #[error("the header claims {claimed} bytes, more than the {limit} that the format allows")]
    HeaderTooLarge {
        /// The length that the first eight bytes give.
        claimed: u64,
        /// The cap.
        limit: u64,
    },

    /// The header is not the JSON that the format asks for.
    #[error("the header is not valid{}: {reason}", tensor.as_ref().map(|name| format!(" at tensor `{name}`")).unwrap_or_default())]
    Header {
        /// The tensor whose description is wrong, where it got that far.
        tensor: Option<String>,
        /// What the parser said.
        reason: String,
    },

    /// A name that occurs twice in one header.
    #[error("duplicate tensor name `{tensor}`")]
    Duplicate {
        /// The name.
        tensor: String,
    },

    /// A tensor that ends before it begins.
    #[error("tensor `{tensor}` begins at {begin} and ends at {end}")]
    Reversed {
        /// The tensor.
        tensor: String,
        /// Its first byte, counted from the end of the header.
        begin: u64,
        /// The byte behind its last.
        end: u64,
    },

    /// A shape whose size in bytes is not the size of its range.
    #[error("tensor `{tensor}` of type {dtype} and shape {shape:?} cannot have {found} bytes{}", expected.map(|n| format!(" (expected {n})")).unwrap_or_default())]
    Size {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
        /// Its shape.
        shape: Vec<u64>,
        /// What type and shape multiply to; `None` when that overflows or is no whole number of bytes.
        expected: Option<u64>,
        /// The bytes of its range.
        found: u64,
    },

    /// A type name too long to be one.
    #[error("tensor `{tensor}` has the type `{dtype}`, which is longer than {limit} bytes")]
    DtypeName {
        /// The tensor.
        tensor: String,
        /// The beginning of the name.
        dtype: String,
        /// The longest name that is kept.
        limit: usize,
    },

    /// The last bytes are missing.
    #[error(
        "{missing} bytes are missing at the end (tensor `{tensor}` ends at {expected}, the file at {found}); the download is incomplete, fetch it again"
    )]
    Truncated {
        /// The tensor that reaches furthest.
        tensor: String,
        /// Where it ends in the file.
        expected: u64,
        /// The size of the file.
        found: u64,
        /// The difference.
        missing: u64,
    },

    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap by {bytes} bytes")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The one that begins inside it.
        second: String,
        /// How many bytes of the second lie before the end of the first.
        bytes: u64,
    },

    /// Bytes that belong to no tensor; the format forbids them.
    #[error("{bytes} bytes before tensor `{before}` belong to no tensor")]
    Hole {
        /// The tensor behind the hole.
        before: String,
        /// Its size.
        bytes: u64,
    },

    /// Bytes behind the last tensor; the format forbids them.
    #[error("{bytes} bytes behind the last tensor belong to no tensor; cut them off or fetch the file again")]
    Trailing {
        /// How many.
        bytes: u64,
    },
}

/// Why the files of a checkpoint do not fit together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexProblem {
    /// The folder holds nothing that could be opened.
    #[error("no model.safetensors.index.json and no *.safetensors file here")]
    Empty,

    /// The index file is not the JSON that it should be.
    #[error("not a valid index: {reason}")]
    Json {
        /// What the parser said.
        reason: String,
    },

    /// The index names a shard that is not a plain file name.
    #[error("the shard name `{shard}` leads out of the folder; only plain file names are allowed")]
    ShardName {
        /// The name.
        shard: String,
    },

    /// Shards that the index names and that are not there.
    #[error("{} of {total} shards are missing: {}", shards.len(), shards.join(", "))]
    MissingShards {
        /// All missing ones, in the order of the index.
        shards: Vec<String>,
        /// The number of shards that the index names.
        total: usize,
    },

    /// A name that the index has twice, or that two shards have.
    #[error("duplicate tensor name `{tensor}`{}", shards.as_ref().map(|[a, b]| format!(" in {a} and {b}")).unwrap_or_default())]
    Duplicate {
        /// The name.
        tensor: String,
        /// The two shards, where it is not the index itself that repeats it.
        shards: Option<[String; 2]>,
    },

    /// Tensors that the index promises in shards whose headers lack them.
    #[error("{count} tensors of the index are not in the shards it names: {}{}", tensors.join(", "), if (tensors.len() as u64) < *count { ", …" } else { "" })]
    MissingTensors {
        /// The first few, each with its shard.
        tensors: Vec<String>,
        /// How many there are.
        count: u64,
    },

    /// A tensor in another shard than the index says.
    #[error("tensor `{tensor}` lies in {found}, but the index places it in {expected}")]
    Misplaced {
        /// The tensor.
        tensor: String,
        /// The shard that the index names.
        expected: String,
        /// The shard whose header has it.
        found: String,
    },

    /// More of something than an index can number.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The most that can be numbered.
        limit: u64,
    },
}

/// Why a tape cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TapeProblem {
    /// An entry without bytes.
    #[error("holds no bytes")]
    Empty,

    /// Rows that a run would cut.
    #[error("rows of {row_bytes} bytes do not divide runs of {run_bytes} bytes")]
    Rows {
        /// Bytes of a row.
        row_bytes: u64,
        /// Bytes of the run.
        run_bytes: u64,
    },

    /// Sizes or offsets beyond 64 bits.
    #[error("its size or an offset does not fit 64 bits")]
    Overflow,

    /// A source that is not in the list.
    #[error("there is no source {found}, only {sources}")]
    Source {
        /// The number of the source.
        found: usize,
        /// The length of the list.
        sources: usize,
    },

    /// A run that reaches past its source.
    #[error("ends at {end} in {}, which has {len} bytes", path.display())]
    PastEnd {
        /// The source.
        path: PathBuf,
        /// Where the run ends.
        end: u64,
        /// The size of the source.
        len: u64,
    },

    /// Tiles too small for a row, or for as many rows as must stay together.
    #[error("needs tiles of {needed} bytes, but `tile_bytes` is {tile_bytes}")]
    TileTooSmall {
        /// The smallest tile that holds the rows.
        needed: u64,
        /// The tile size that was set.
        tile_bytes: u64,
    },
}

/// Why a record cannot be read into a slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordProblem {
    /// More parts than the slots were made for.
    #[error("has {found} parts, more than {limit}")]
    Parts {
        /// The parts of the request.
        found: usize,
        /// The most that were promised.
        limit: usize,
    },

    /// More bytes than a slot.
    #[error("needs {needed} bytes, but `record_bytes` is {record_bytes}")]
    Size {
        /// The bytes of all parts with the gaps between them.
        needed: u64,
        /// The size of a slot.
        record_bytes: u64,
    },

    /// A source that is not in the list.
    #[error("there is no source {found}, only {sources}")]
    Source {
        /// The number of the source.
        found: usize,
        /// The length of the list.
        sources: usize,
    },

    /// A part that reaches past its source.
    #[error("ends at {end} in {}, which has {len} bytes", path.display())]
    PastEnd {
        /// The source.
        path: PathBuf,
        /// Where the part ends.
        end: u64,
        /// The size of the source.
        len: u64,
    },
}
