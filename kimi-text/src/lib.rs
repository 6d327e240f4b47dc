#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod chat;
mod classes;
mod cuts;
mod detokenizer;
mod error;
mod json;
mod merge;
mod specials;
mod split;
mod stop;
mod tokenizer;
mod utf8;
mod vocabulary;

pub use detokenizer::TextStream;
pub use error::{EmptyStop, LoadError, LoadErrorKind, UnknownToken};
pub use split::SPLIT_PATTERN;
pub use stop::{Passed, StopMatcher};
pub use tokenizer::{Flagged, Specials, Tokenizer};
pub use utf8::Utf8Stream;
pub use vocabulary::{TokenId, Vocabulary};
