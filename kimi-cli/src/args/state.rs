//! Sessions that outlast the program.

use std::path::PathBuf;

use clap::Args;
use kimi_model::{Error, GenerateOptions, PrefixCache};

use super::{parse_positive, parse_size};

/// One session, saved and taken up again.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// Go on from a session that was saved: its pending token is read first, then the prompt, which may be left out
    #[arg(long, value_name = "FILE")]
    pub(crate) load_state: Option<PathBuf>,
    /// Save the session when the generation has ended, also by Ctrl-C
    #[arg(long, value_name = "FILE")]
    pub(crate) save_state: Option<PathBuf>,
}

/// Sessions that are found by the beginning of a prompt.
#[derive(Debug, Args)]
pub(crate) struct PrefixArgs {
    /// Folder of stored sessions: what a prompt has in common with an earlier one is not computed again
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix_cache: Option<PathBuf>,
    /// Most bytes of the stored sessions, like 8GB; those used longest ago are deleted first
    #[arg(long, value_name = "BYTES", default_value = "8GB", value_parser = parse_size, requires = "prefix_cache")]
    pub(crate) prefix_cache_size: u64,
    /// Store the session every N tokens of the prompt too, each of which ends a pass
    #[arg(long, value_name = "N", value_parser = parse_positive, requires = "prefix_cache")]
    pub(crate) prefix_every: Option<usize>,
}

impl PrefixArgs {
    /// Opens the cache and sets what it asks of a generation.
    pub(crate) fn open(&self, options: &mut GenerateOptions) -> Result<Option<PrefixCache>, Error> {
        options.checkpoint_every = self.prefix_every.unwrap_or(0);
        self.prefix_cache.as_deref().map(|dir| PrefixCache::open(dir, self.prefix_cache_size)).transpose()
    }
}
