//! `kimi-cli pack`.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Instant;

use kimi_model::Error;
use kimi_model::calibrate::Calibration;
use kimi_model::open::Io;
use kimi_model::pack::{
    PackOptions, PackProgress, PackReport, estimate, estimate_join, join, pack, pack_single,
};

use crate::args::PackArgs;
use crate::exit::{Exit, Usage};
use crate::status::bytes;
use crate::{interrupt, progress, source};

pub(crate) fn run(args: &PackArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let start = Instant::now();
    let model = source::model(Some(&args.source), Io::Pread, None)?;
    let joining = args.single_file && (model.is_packed() || args.as_is);
    if joining && (args.chooses() || args.reclaim) {
        let name = args.source.display();
        let reason = "is packed already and is joined as it is; give no encodings and no --reclaim";
        return Err(Usage(format!("{name} {reason}")).into());
    }
    let mut options = PackOptions::new(args.recipe());
    if args.dry_run {
        let report =
            if joining { estimate_join(&model, &args.target)? } else { estimate(&model, &options.recipe)? };
        tell(args, &report, None)?;
        return Ok(Exit::Ok);
    }

    options.ram_bytes = args.ram;
    options.threads = args.threads.map(usize::from);
    options.reclaim = args.reclaim;
    options.calibration = args.calibration.as_deref().map(Calibration::open).transpose()?.map(Arc::new);
    let bar = progress::bar(args.output.quiet);
    let packed = interrupt::cancellable(|cancel| {
        let show = |step: &PackProgress| {
            progress::show(&bar, step.done_bytes, step.total_bytes);
            bar.set_message(step.file.clone());
        };
        match args.single_file {
            true if joining => join(&model, &args.target, &show, cancel),
            true => pack_single(&model, &args.target, &options, &show, cancel),
            false => pack(&model, &args.source, &args.target, &options, &show, cancel),
        }
    });
    bar.finish_and_clear();
    match packed {
        Ok(report) => tell(args, &report, Some(start.elapsed().as_secs_f64()))?,
        Err(Error::Cancelled) => {
            if !args.output.quiet {
                let from = if joining { "begins again" } else { "goes on where it was" };
                eprintln!("stopped; the same command {from}");
            }
            return Ok(Exit::Interrupted);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(Exit::Ok)
}

fn tell(args: &PackArgs, report: &PackReport, seconds: Option<f64>) -> anyhow::Result<()> {
    let (source, target) = (args.source.display(), args.target.display());
    if args.output.json {
        let mut json = serde_json::to_value(report)?;
        json["source"] = source.to_string().into();
        json["target"] = target.to_string().into();
        json["dry_run"] = seconds.is_none().into();
        json["seconds"] = seconds.into();
        writeln!(stdout(), "{json:#}")?;
    } else if !args.output.quiet {
        let mut out = stdout().lock();
        writeln!(out, "{:<14} {:>10} {:>18} {:>18}", "encoding", "matrices", "weights", "bytes")?;
        for size in &report.encodings {
            let (name, matrices) = (&size.encoding, size.matrices);
            writeln!(out, "{name:<14} {matrices:>10} {:>18} {:>18}", size.weights, size.bytes)?;
        }
        let (before, after) = (bytes(report.source_bytes), bytes(report.packed_bytes));
        let loss = if report.lossless { "without loss" } else { "with loss" };
        match seconds {
            None => writeln!(
                out,
                "{source}: {before} would become about {after} in {} files, {loss}",
                report.files
            )?,
            Some(seconds) => {
                writeln!(
                    out,
                    "{target}: {before} became {after} in {} files, {loss}, {seconds:.1} s",
                    report.files
                )?;
            }
        }
    }
    Ok(())
}
