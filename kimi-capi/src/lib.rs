#![doc = include_str!("../README.md")]

mod api;
mod conversation;
mod error;
mod handle;
mod lock;
mod model;
mod options;
mod pointer;
mod report;
mod session;
mod status;

pub use api::model::*;
pub use api::options::*;
pub use api::sampler::*;
pub use api::session::*;
pub use api::simple::*;
pub use api::text::*;
pub use api::types::*;
