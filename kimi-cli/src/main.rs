//! `kimi-cli`: arguments in, calls into `kimi-model`, words out.

mod args;
mod commands;
mod exit;
mod interrupt;
mod progress;
mod sampling;
mod source;
mod status;
mod text;
mod windows;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Detokenize(args) => commands::detokenize::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Synth(args) => commands::synth::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Calibrate(args) => commands::calibrate::run(&args),
        Command::Pack(args) => commands::pack::run(&args),
        Command::Unpack(args) => commands::unpack::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Bench(command) => commands::bench::run(&command),
    };
    exit::report(done)
}
