//! The command line: typed arguments, no I/O.

mod bench;
mod calibrate;
mod chat;
mod eval;
mod pack;
mod plan;
mod sampling;
mod state;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use kimi_kernels::Isa;
use kimi_model::open::Io;
use kimi_model::{Arith, Check, EngineOptions, KvFormat};

pub(crate) use bench::{BenchCommand, BenchDecodeArgs, BenchDiskArgs, BenchKernelsArgs, DoctorArgs};
pub(crate) use calibrate::CalibrateArgs;
pub(crate) use chat::{ChatArgs, When};
pub(crate) use eval::EvalArgs;
pub(crate) use pack::{PackArgs, PackedArgs, UnpackArgs, VerifyArgs};
pub(crate) use plan::PlanArgs;
pub(crate) use sampling::SamplingArgs;
pub(crate) use state::{PrefixArgs, StateArgs};

/// Run Kimi K3 on an ordinary CPU.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate from a prompt; without MODEL, with the built-in demo model
    Run(RunArgs),
    /// Talk with a model; without MODEL with the built-in demo model, which was not trained to
    Chat(Box<ChatArgs>),
    /// Turn text into token ids
    Tokenize(TokenizeArgs),
    /// Turn token ids into text
    Detokenize(DetokenizeArgs),
    /// Show what a model holds
    Inspect(InspectArgs),
    /// Make a model with random weights, of full size or of any other
    Synth(SynthArgs),
    /// Show what runs in how much memory, and what a token reads; also before anything is downloaded
    Plan(PlanArgs),
    /// Measure how well a model predicts a text, and how far it is from another
    Eval(EvalArgs),
    /// Gather what the matrices of a model see of a text, so that `pack` loses less
    Calibrate(CalibrateArgs),
    /// Store a model in fewer bytes, in the order in which they are read
    Pack(PackArgs),
    /// Turn a packed model back into a checkpoint as released
    Unpack(UnpackArgs),
    /// Check every byte of a model
    Verify(VerifyArgs),
    /// Tell whether this machine is fit, and what to run next
    Doctor(DoctorArgs),
    /// Measure kernels, the drive, or decoding
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// How much the program says on the standard error.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Verbosity {
    /// Say nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more: the memory plan, the reads
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Folder with config.json and safetensors files, or a single file of `pack`; the built-in demo model when left out
    pub(crate) model: Option<PathBuf>,
    /// Text to continue; `-` reads it from the standard input
    pub(crate) prompt: Option<String>,
    /// Text to continue, for use without MODEL
    #[arg(long = "prompt", value_name = "TEXT", conflicts_with_all = ["prompt", "prompt_file", "ids"])]
    pub(crate) prompt_text: Option<String>,
    /// File with the text to continue; `-` is the standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "ids"])]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Token ids to continue, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "prompt")]
    pub(crate) ids: Option<Vec<u32>>,
    /// Replace bytes of the prompt that are not UTF-8 instead of refusing them
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Read names of control tokens in the prompt as these tokens instead of as text
    #[arg(long)]
    pub(crate) parse_special: bool,
    /// Put the beginning-of-sequence token before the prompt (the demo model always gets it)
    #[arg(long)]
    pub(crate) bos: bool,

    /// Generate at most this many tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200)]
    pub(crate) max_tokens: usize,
    /// Stop before this text comes up; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after an end token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) prefix: PrefixArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Write all logits to a safetensors file
    #[arg(long, value_name = "FILE")]
    pub(crate) dump_logits: Option<PathBuf>,
    /// Print one JSON report on the standard output and the text on the standard error
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
}

/// How to run a model.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Most memory that the program may take, like 8GB or 900MiB [default: 7/8 of what the machine or cgroup allows]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) ram: Option<u64>,
    /// Compute threads [default: what affinity and CPU quota allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Instruction set: scalar, avx2, avx512, neon and others (`bench kernels` lists them) [default: the fastest of this processor]
    #[arg(long, value_name = "ISA")]
    pub(crate) isa: Option<Isa>,
    /// How files are read: auto (direct for models larger than the memory, else pread), pread (by a few threads, through the
    /// page cache), direct (the same past it), uring (direct by io_uring) or mmap (mapped: nobody may change them meanwhile)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) io: Io,
    /// Number format of the latents that attention reads: f32, bf16, i8 or i4
    #[arg(long, value_name = "FORMAT", default_value = "f32")]
    pub(crate) kv: KvFormat,
    /// exact multiplies float32 activations; fast rounds them to int8 where weights are integers or packed MXFP4
    #[arg(long, value_name = "TIER", default_value = "exact")]
    pub(crate) arith: Arith,
    /// Which tiles of a packed model are checked when they are read: none, sampled (one in 16) or all
    #[arg(long, value_name = "HOW", default_value = "sampled")]
    pub(crate) check: Check,
    /// Longest sequence
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = parse_positive)]
    pub(crate) context: usize,
    /// Most tokens of a pass over the prompt; fewer where memory is short [default: 512]
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub(crate) chunk: Option<usize>,
}

impl EngineArgs {
    /// What the flags say of an engine; the length of the context is left to the command.
    pub(crate) fn options(&self) -> EngineOptions {
        let mut options = EngineOptions::default();
        options.ram_bytes = self.ram;
        options.columns = self.chunk.unwrap_or(options.columns);
        options.threads = self.threads.map(usize::from);
        (options.isa, options.kv) = (self.isa, self.kv);
        (options.arith, options.check) = (self.arith, self.check);
        options
    }
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// Model with a tiktoken.model; the built-in demo tokenizer when left out
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// The text; read from the standard input when left out
    #[arg(conflicts_with = "file")]
    pub(crate) text: Option<String>,
    /// File with the text
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Replace bytes that are not UTF-8 instead of refusing them
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Read names of control tokens as these tokens instead of as text
    #[arg(long)]
    pub(crate) parse_special: bool,
    /// Print a JSON object with the ids and their texts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DetokenizeArgs {
    /// Model with a tiktoken.model; the built-in demo tokenizer when left out
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Token ids, separated by spaces or commas; read from the standard input when left out
    pub(crate) ids: Vec<String>,
    /// Leave out control tokens
    #[arg(long)]
    pub(crate) hide_special: bool,
    /// Print a JSON object with the text; bytes that are not UTF-8 are replaced in it
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Folder with config.json and safetensors files, or a single file of `pack`; the built-in demo model when left out
    pub(crate) model: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Folder to make the model in; it must be empty or not exist yet
    #[arg(value_name = "DST")]
    pub(crate) folder: PathBuf,
    /// k3 is the released shape (1.56 TB), k3-mini its 93 layers at an eighth of the width (5.2 GB), kimi-linear (98 GB), moonlight
    /// (32 GB) and k2 (K2.5, 594 GB) those of the other families; or the config.json of any other
    #[arg(long, value_name = "k3|k3-mini|kimi-linear|moonlight|k2|FILE", default_value = "k3-mini")]
    pub(crate) geometry: PathBuf,
    #[command(flatten)]
    pub(crate) packed: PackedArgs,
    /// Leave most of every big matrix out: holes that read as zeros and take no storage (k3: about 8 GB)
    #[arg(long)]
    pub(crate) sparse: bool,
    /// Selects the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print a JSON report
    #[arg(long)]
    pub(crate) json: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

fn parse_positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("must be a whole number".to_owned()),
    }
}

/// A number of bytes: `1500000`, `190MB` (powers of 1000), `8GiB` (powers of 1024), `0.9GB`.
fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    let unit = unit.trim().to_ascii_lowercase();
    let factor: f64 = match unit.as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return Err(format!("unknown unit `{unit}`; use B, KB, MB, GB, TB, KiB, MiB, GiB or TiB")),
    };
    let bytes = number * factor;
    if (1.0..=u64::MAX as f64).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(format!("`{text}` is out of range"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_read_in_both_kinds_of_units() {
        for (text, bytes) in [
            ("190MB", 190_000_000),
            ("8GiB", 8 << 30),
            ("8 gb", 8_000_000_000),
            ("0.5k", 500),
            ("123", 123),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "GB", "-1GB", "1XB", "1.2.3", "0", "1e400GB", "99999999999TB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn conflicting_prompts_are_refused() {
        for arguments in [
            &["kimi-cli", "run", "m", "text", "--ids", "1,2"][..],
            &["kimi-cli", "run", "m", "text", "--prompt-file", "f"],
            &["kimi-cli", "run", "--prompt", "x", "--ids", "1"],
            &["kimi-cli", "run", "--threads", "0"],
            &["kimi-cli", "run", "--isa", "avx9"],
            &["kimi-cli", "run", "--context", "0"],
        ] {
            assert!(Cli::try_parse_from(arguments).is_err(), "{arguments:?}");
        }
    }
}
