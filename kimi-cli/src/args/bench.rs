//! Arguments of `bench` and `doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use kimi_kernels::Isa;
use kimi_model::Arith;
use kimi_model::bench::disk::{DiskOptions, Pattern};
use kimi_model::bench::kernels::{KernelOptions, Place};
use kimi_quant::Encoding;

use super::pack::OutputArgs;
use super::{EngineArgs, parse_positive, parse_size};

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Matrix products: weights, bytes and operations a second, beside what memory gives
    Kernels(BenchKernelsArgs),
    /// The drive, read as a model is: tiles in order, experts here and there, single rows
    Disk(BenchDiskArgs),
    /// Tokens one at a time: seconds, bytes and waits of each, beside what the drive gives
    Decode(BenchDecodeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BenchKernelsArgs {
    /// One instruction set [default: every one that this processor has]
    #[arg(long, value_name = "ISA")]
    pub(crate) isa: Option<Isa>,
    /// Compute threads [default: what affinity and CPU quota allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// How long each row is measured, in five rounds; a single call may take longer
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
    /// Encodings, separated by commas, spelled as for `pack --trunk` [default: all]
    #[arg(long, value_name = "SPECS", value_delimiter = ',')]
    pub(crate) encodings: Option<Vec<Encoding>>,
    /// exact, fast or both
    #[arg(long, value_name = "TIERS", value_delimiter = ',', default_value = "exact,fast")]
    pub(crate) arith: Vec<Arith>,
    /// Numbers of columns that are multiplied at once
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,4,8,512", value_parser = parse_positive)]
    pub(crate) columns: Vec<usize>,
    /// Where the weights are: cache, memory or both
    #[arg(long = "in", value_name = "PLACES", value_delimiter = ',', default_value = "cache,memory", value_parser = parse_place)]
    pub(crate) places: Vec<Place>,
    /// Bytes of the weights in memory [default: four times the last level of caches, 64 MiB to 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BenchDiskArgs {
    /// Model, another file, or a folder in which a file is written for the time being
    #[arg(value_name = "MODEL|FILE|FOLDER")]
    pub(crate) path: PathBuf,
    /// What is read: tape, experts, mixed, row [default: all]
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',', value_parser = parse_pattern)]
    pub(crate) patterns: Option<Vec<Pattern>>,
    /// How long each row is measured, in three rounds
    #[arg(long, value_name = "S", default_value = "0.9", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
    /// Bytes of a record [default: the model's experts, else those of K3]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) record: Option<u64>,
    /// Bytes of the file that is written where there is none to read
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_size)]
    pub(crate) size: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl BenchDiskArgs {
    pub(crate) fn options(&self) -> DiskOptions {
        let mut options = DiskOptions::default();
        (options.time, options.size, options.record_bytes) = (self.seconds, self.size, self.record);
        if let Some(patterns) = &self.patterns {
            options.patterns.clone_from(patterns);
        }
        options
    }
}

#[derive(Debug, Args)]
pub(crate) struct BenchDecodeArgs {
    /// Model; the built-in demo model when left out
    pub(crate) model: Option<PathBuf>,
    /// Token ids that are read first, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', default_value = "1,2,3")]
    pub(crate) ids: Vec<u32>,
    /// Tokens that are measured
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4, value_parser = parse_positive)]
    pub(crate) tokens: usize,
    /// Tokens before them, which fill what stays in memory
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) warm_up: usize,
    /// How long the drive is measured before and after; 0 leaves that out
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    pub(crate) drive_seconds: Duration,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Model, or a folder that a model is to lie in
    #[arg(value_name = "MODEL|FOLDER", default_value = ".")]
    pub(crate) dir: PathBuf,
    /// How long the drive is measured; 0 leaves that out
    #[arg(long, value_name = "S", default_value = "2", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl BenchKernelsArgs {
    pub(crate) fn options(&self) -> KernelOptions {
        let mut options = KernelOptions::default();
        (options.isa, options.threads) = (self.isa, self.threads.map(usize::from));
        (options.time, options.memory_bytes) = (self.seconds, self.size);
        (options.tiers, options.columns, options.places) =
            (self.arith.clone(), self.columns.clone(), self.places.clone());
        if let Some(encodings) = &self.encodings {
            options.encodings = encodings.clone();
        }
        options
    }
}

fn parse_place(text: &str) -> Result<Place, String> {
    let found = Place::ALL.into_iter().find(|place| place.name() == text);
    found.ok_or_else(|| "must be cache or memory".to_owned())
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    let found = Pattern::ALL.into_iter().find(|pattern| pattern.name() == text);
    found.ok_or_else(|| "must be tape, experts, mixed or row".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    /// A day.
    const MOST: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=MOST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number of seconds, at most a day".to_owned()),
    }
}
