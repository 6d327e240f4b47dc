//! `kimi-cli synth`.

use std::io::{Write, stdout};
use std::time::Instant;

use kimi_model::Error;
use kimi_model::pack::{PackProgress, Recipe};
use kimi_model::synth::{
    Geometry, PackedSynthError, SynthError, SynthOptions, synthesize, synthesize_packed,
};

use serde_json::Value;

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
    if let Some(recipe) = args.packed.recipe() {
        return packed(args, &geometry, options, recipe);
    }

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
    let mut json = serde_json::to_value(report)?;
    let stored = report.stored_bytes.map_or_else(String::new, |stored| format!(", {} stored", bytes(stored)));
    let (files, tensors, size) = (report.files, report.tensors, bytes(report.tensor_bytes));
    tell(args, &mut json, &format!("{tensors} tensors in {files} files, {size}{stored}"), start)?;
    Ok(Exit::Ok)
}

/// Makes the packed form of a model.
fn packed(
    args: &SynthArgs,
    geometry: &Geometry,
    options: SynthOptions,
    recipe: Recipe,
) -> anyhow::Result<Exit> {
    let start = Instant::now();
    let bar = progress::bar(args.quiet);
    let made = interrupt::cancellable(|cancel| {
        let show = |step: &PackProgress| {
            progress::show(&bar, step.done_bytes, step.total_bytes);
            bar.set_message(step.file.clone());
        };
        synthesize_packed(geometry, &args.folder, options, recipe, &show, cancel)
    });
    bar.finish_and_clear();
    let report = match made {
        Ok(report) => report,
        Err(PackedSynthError::Pack(Error::Cancelled)) => {
            if !args.quiet {
                eprintln!("stopped; the same command goes on where it was");
            }
            return Ok(Exit::Interrupted);
        }
        Err(PackedSynthError::Folder(error @ SynthError::NotSparse { .. })) => {
            return Err(Usage(error.to_string()).into());
        }
        Err(error) => return Err(error.into()),
    };
    let mut json = serde_json::to_value(&report)?;
    let size = bytes(report.packed_bytes);
    tell(args, &mut json, &format!("{} files, {size}", report.files), start)?;
    Ok(Exit::Ok)
}

/// Says what was made: a report that `json` begins, or a line.
fn tell(args: &SynthArgs, json: &mut Value, made: &str, start: Instant) -> anyhow::Result<()> {
    let (seconds, folder) = (start.elapsed().as_secs_f64(), args.folder.display());
    if args.json {
        json["model"] = folder.to_string().into();
        json["geometry"] = args.geometry.display().to_string().into();
        json["sparse"] = args.sparse.into();
        json["seed"] = args.seed.into();
        json["seconds"] = seconds.into();
        writeln!(stdout(), "{json:#}")?;
    } else if !args.quiet {
        eprintln!("{folder}: {made}, {seconds:.1} s");
    }
    Ok(())
}
