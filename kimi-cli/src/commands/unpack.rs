//! `kimi-cli unpack`.

use std::io::{Write, stdout};
use std::time::Instant;

use kimi_model::Error;
use kimi_model::unpack::unpack;
use kimi_model::verify::VerifyProgress;

use crate::args::UnpackArgs;
use crate::exit::Exit;
use crate::status::bytes;
use crate::{interrupt, progress};

pub(crate) fn run(args: &UnpackArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let start = Instant::now();
    let bar = progress::bar(args.output.quiet);
    let unpacked = interrupt::cancellable(|cancel| {
        let show = |step: VerifyProgress| progress::show(&bar, step.done_bytes, step.total_bytes);
        unpack(&args.source, &args.target, args.lossy, &show, cancel)
    });
    bar.finish_and_clear();
    let report = match unpacked {
        Ok(report) => report,
        Err(Error::Cancelled) => {
            if !args.output.quiet {
                eprintln!("stopped; {} is incomplete and can be removed", args.target.display());
            }
            return Ok(Exit::Interrupted);
        }
        Err(error) => return Err(error.into()),
    };
    let seconds = start.elapsed().as_secs_f64();
    let target = args.target.display();
    if args.output.json {
        let mut json = serde_json::to_value(&report)?;
        json["target"] = target.to_string().into();
        json["seconds"] = seconds.into();
        writeln!(stdout(), "{json:#}")?;
    } else if !args.output.quiet {
        let (size, verified, lossy) = (bytes(report.bytes), report.verified, report.lossy);
        let lost = if lossy > 0 { format!(", {lossy} hold the nearest BF16") } else { String::new() };
        eprintln!(
            "{target}: {} tensors in {} files, {size}; the bytes of {verified} matrices and layers of experts are those \
             of the source{lost}; {seconds:.1} s",
            report.tensors, report.files
        );
    }
    Ok(Exit::Ok)
}
