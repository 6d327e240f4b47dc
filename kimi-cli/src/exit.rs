//! Exit codes, and how errors are told.

use std::io;
use std::process::ExitCode;

use kimi_model::bench::BenchError;
use kimi_model::{Error, StateProblem};
use kimi_paging::Error as Paging;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok = 0,
    Runtime = 1,
    Usage = 2,
    DoesNotFit = 3,
    Corrupt = 4,
    Interrupted = 130,
}

/// Something is wrong with what the user asked for.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Prints an error with its causes and turns the outcome into an exit code. A reader that went away is no error.
pub(crate) fn report(done: anyhow::Result<Exit>) -> ExitCode {
    let exit = match done {
        Ok(exit) => exit,
        Err(error) => {
            let exit = classify(&error);
            if exit != Exit::Ok {
                eprintln!("error: {error:#}");
            }
            exit
        }
    };
    ExitCode::from(exit as u8)
}

fn classify(error: &anyhow::Error) -> Exit {
    for cause in error.chain() {
        if cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return Exit::Ok;
        }
        if cause.downcast_ref::<Usage>().is_some() {
            return Exit::Usage;
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            return classify_model(error);
        }
        match cause.downcast_ref::<BenchError>() {
            Some(BenchError::Run(error)) => return classify_model(error),
            Some(BenchError::Setting { .. } | BenchError::TooSmall { .. }) => return Exit::Usage,
            Some(BenchError::Cancelled) => return Exit::Interrupted,
            _ => {}
        }
        if cause.downcast_ref::<kimi_text::LoadError>().is_some() {
            return Exit::Corrupt;
        }
    }
    Exit::Runtime
}

fn classify_model(error: &Error) -> Exit {
    match error {
        Error::DoesNotFit { .. } => Exit::DoesNotFit,
        Error::Config { .. }
        | Error::Format(_)
        | Error::Manifest { .. }
        | Error::Tokenizer(_)
        | Error::MissingTensor { .. }
        | Error::Tensor { .. }
        | Error::Tile { .. } => Exit::Corrupt,
        Error::Paging(
            Paging::Shard { .. } | Paging::Index { .. } | Paging::Tape { .. } | Paging::ShortRead { .. },
        ) => Exit::Corrupt,
        Error::NoModel { .. }
        | Error::EmptyPrompt
        | Error::StopText { .. }
        | Error::Vocabularies { .. }
        | Error::Pack { .. }
        | Error::Sampler(_)
        | Error::Token { .. }
        | Error::UnsupportedIsa { .. }
        | Error::ContextFull { .. } => Exit::Usage,
        Error::State(error) => match error.problem {
            StateProblem::Kv { .. }
            | StateProblem::Arith { .. }
            | StateProblem::Model
            | StateProblem::Context { .. } => Exit::Usage,
            _ => Exit::Corrupt,
        },
        Error::Cancelled => Exit::Interrupted,
        _ => Exit::Runtime,
    }
}
