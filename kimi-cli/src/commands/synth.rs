//! `kimi-cli synth`.

use std::io::{Write, stdout};
use std::time::Instant;

use kimi_model::synth::{SynthError, SynthOptions, synthesize};

use crate::args::SynthArgs;
use crate::exit::{Exit, Usage};
use crate::status::bytes;
use crate::{interrupt, progress, source};

pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let start = Instant::now();
    let geometry = source::geometry(&args.geometry)?;
    let mut options = SynthOptions::default();
    (options.sparse, options.seed) = (args.sparse, args.seed);

    let bar = progress::bar(args.quiet);
    let made = interrupt::cancellable(|cancel| {
        let show = |step: kimi_model::synth::SynthProgress| {
            progress::show(&bar, step.done_bytes, step.total_bytes);
        };
        synthesize(&geometry, &args.folder, options, &show, cancel)
    });
    bar.finish_and_clear();
    let report = match made {
        Ok(report) => report,
        Err(SynthError::Cancelled) => {
            if !args.quiet {
                let folder = args.folder.display();
                eprintln!("stopped; the unfinished files in {folder} go away when it is made again");
            }
            return Ok(Exit::Interrupted);
        }
        Err(error @ (SynthError::NotEmpty { .. } | SynthError::NotSparse { .. })) => {
            return Err(Usage(error.to_string()).into());
        }
        Err(error) => return Err(error.into()),
    };
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        let mut json = serde_json::to_value(report)?;
        json["model"] = args.folder.display().to_string().into();
        json["geometry"] = args.geometry.display().to_string().into();
        json["sparse"] = args.sparse.into();
        json["seed"] = args.seed.into();
        json["seconds"] = seconds.into();
        writeln!(stdout(), "{json:#}")?;
    } else if !args.quiet {
        let stored =
            report.stored_bytes.map_or_else(String::new, |stored| format!(", {} stored", bytes(stored)));
        let (files, tensors, size) = (report.files, report.tensors, bytes(report.tensor_bytes));
        let folder = args.folder.display();
        eprintln!("{folder}: {tensors} tensors in {files} files, {size}{stored}, {seconds:.1} s");
    }
    Ok(Exit::Ok)
}
