//! Arguments of `eval`.

use std::path::PathBuf;

use clap::Args;

use super::pack::OutputArgs;
use super::{EngineArgs, parse_positive};

#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Model; the built-in demo model when left out
    pub(crate) model: Option<PathBuf>,
    /// The text, UTF-8
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Compare with this model, mostly the one that MODEL was packed from; `demo` is the built-in one. Each gets half of --ram
    #[arg(long, value_name = "REFERENCE")]
    pub(crate) against: Option<PathBuf>,
    /// With --against: compare the hidden states after each layer too
    #[arg(long, requires = "against")]
    pub(crate) layers: bool,
    /// Tokens that are read in one session after the beginning-of-sequence token
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_positive)]
    pub(crate) window: usize,
    /// Read at most this many windows
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub(crate) windows: Option<usize>,
    /// Keep what is done in this file, and go on from it when it is there
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
