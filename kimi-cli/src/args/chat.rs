//! Arguments of `chat`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kimi_text::chat::Effort;

use super::{EngineArgs, PrefixArgs, SamplingArgs, Verbosity};

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Model whose chat format is known; the built-in demo model when left out, which was not trained to talk
    pub(crate) model: Option<PathBuf>,
    /// Answer this one message and end; `-` reads it from the standard input
    #[arg(long, value_name = "TEXT")]
    pub(crate) once: Option<String>,
    /// Talk with a program: one JSON object per line, in and out (see the guide)
    #[arg(long, conflicts_with = "once")]
    pub(crate) jsonl: bool,
    /// File with tools that may be called: a JSON list of declarations
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// An instruction that stands before the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Answer without thinking first
    #[arg(long)]
    pub(crate) no_think: bool,
    /// How much to think: low, high or max [default: what the format says]
    #[arg(long, value_name = "EFFORT", conflicts_with = "no_think")]
    pub(crate) effort: Option<Effort>,
    /// Whether the reasoning is printed: auto is on a terminal only
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) reasoning: When,
    /// Generate at most this many tokens for an answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4096)]
    pub(crate) max_tokens: usize,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) prefix: PrefixArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
}

/// Whether something is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal
    Auto,
    /// Always
    Show,
    /// Never
    Hide,
}

impl When {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Auto, Self::Show, Self::Hide];

    /// The name that options use.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Show => "show",
            Self::Hide => "hide",
        }
    }
}
