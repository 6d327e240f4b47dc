#![doc = include_str!("../README.md")]

mod budget;
mod error;
mod index;
mod limits;
mod readers;
mod ring;
mod slots;
mod source;
mod stats;
mod tune;

pub use budget::{Budget, Buffer, Lease, LeasedVec, PAGE_BYTES, Usage};
pub use error::{Error, IndexProblem, RecordProblem, ShardProblem, TapeProblem};
pub use index::{Dtype, MAX_HEADER_BYTES, OtherDtype, TemplateId, TensorIndex, TensorInfo};
pub use limits::{MemoryLimit, memory_limit};
pub use readers::{ClassStats, Executor, ReadSettings, ReadStats, Readers};
pub use ring::{Entry, Ring, RingBuilder, Run, Tape, Tile};
pub use slots::{MAX_PARTS, Record, Slots};
#[cfg(feature = "mmap")]
pub use source::MmapSource;
pub use source::{Backend, DirectProblem, Extent, FileSource, MemorySource, Source, SourceId};
pub use stats::{current_rss_bytes, peak_rss_bytes};
pub use tune::{Sample, TuneLimits, Tuning, tune};
