//! Arguments of `calibrate`.

use std::path::PathBuf;

use clap::Args;

use super::pack::OutputArgs;
use super::{EngineArgs, parse_positive};

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Folder of the model that is going to be packed; the built-in demo model when left out
    pub(crate) model: Option<PathBuf>,
    /// The text, UTF-8: of the kind that the packed model will read, and none that it will be measured with
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// File to write, for `pack --calibration`; an interrupted run goes on with it
    #[arg(long, value_name = "STATS")]
    pub(crate) out: PathBuf,
    /// Gather how inputs go together in blocks of N neighbours, so that `pack` can use GPTQ: more memory, more time, less loss
    #[arg(long, value_name = "N", value_parser = parse_block)]
    pub(crate) hessian: Option<usize>,
    /// Gather for every routed expert too, which pays where experts are packed in fewer bits
    #[arg(long)]
    pub(crate) experts: bool,
    /// Tokens that are read in one session after the beginning-of-sequence token
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_positive)]
    pub(crate) window: usize,
    /// Read at most this many windows
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub(crate) windows: Option<usize>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Columns of the largest group of weights: blocks hold whole groups of every format.
const BLOCK_MULTIPLE: usize = 128;

fn parse_block(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(block) if block > 0 && block % BLOCK_MULTIPLE == 0 => Ok(block),
        _ => Err(format!("must be a multiple of {BLOCK_MULTIPLE}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_whole_groups() {
        assert_eq!(parse_block("512"), Ok(512));
        for text in ["0", "64", "-128", "x", ""] {
            assert!(parse_block(text).is_err(), "{text}");
        }
    }
}
