#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arena;
pub mod bench;
mod checkpoint;
pub mod config;
pub mod doctor;
mod drive;
mod dump;
mod engine;
mod error;
pub mod eval;
pub mod generate;
pub mod generation_config;
pub mod inspect;
mod kv;
mod layer;
mod layout;
mod model;
mod operand;
mod outline;
pub mod pack;
mod packed;
mod pass;
mod plan;
pub mod sampler;
pub mod session;
pub mod synth;
pub mod tuning;
pub mod unpack;
pub mod verify;
mod weights;

pub use checkpoint::{Checkpoint, OpenSource};
pub use config::Config;
pub use dump::LogitDump;
pub use engine::{Engine, EngineOptions};
pub use error::{ConfigError, Error, SamplerError};
pub use generate::{FinishReason, GenerateOptions, Generation, Listener, generate};
pub use generation_config::GenerationConfig;
pub use kv::{KvFormat, UnknownKvFormat};
pub use model::Model;
pub use operand::{Arith, UnknownArith};
pub use pass::{LogitSink, Logits, Observer, Pass, PassOptions};
pub use plan::{Plan, PlanItem};
pub use sampler::{Logprobs, MAX_LOGPROBS, Sampled, Sampler, SamplerOptions, TokenLogprob};
pub use session::Session;
pub use weights::{BytesRead, Check, ReadCounter, UnknownCheck};
