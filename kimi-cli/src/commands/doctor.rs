//! `kimi-cli doctor`.

use std::io::{Write, stdout};

use kimi_model::bench::BenchError;
use kimi_model::bench::disk::DiskProgress;
use kimi_model::doctor::{DoctorOptions, Examination, Verdict, examine};
use serde_json::json;

use crate::args::DoctorArgs;
use crate::exit::Exit;
use crate::status::bytes;
use crate::{interrupt, progress};

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let mut options = DoctorOptions::new(&args.dir);
    options.engine = args.engine.options();
    options.engine.positions = args.engine.context;
    options.drive_time = args.seconds;
    let bar = progress::bar(args.output.quiet);
    let show = |at: DiskProgress| match at {
        DiskProgress::Writing(done, total) => progress::show(&bar, done, total),
        DiskProgress::Reading(..) => bar.set_message("reading"),
    };
    let examined = interrupt::cancellable(|cancel| examine(&options, &show, cancel));
    bar.finish_and_clear();
    let examination = match examined {
        Err(BenchError::Cancelled) => return Ok(Exit::Interrupted),
        examined => examined?,
    };
    let next = next(&examination, args);
    if args.output.json {
        let model = examination.model.as_ref().map(|model| {
            let seconds = examination.drive_bytes_per_second.and_then(|speed| model.seconds_per_token(speed));
            json!({
                "packed": model.packed,
                "tokenizer": model.tokenizer,
                "floor_bytes": model.floor_bytes,
                "fits": model.plan.is_some(),
                "bytes_per_token": model.plan.as_ref().map(|plan| plan.reads.total()),
                "seconds_per_token": seconds,
            })
        });
        let report = json!({
            "folder": args.dir.display().to_string(),
            "verdict": examination.verdict(),
            "findings": examination.findings,
            "drive_bytes_per_second": examination.drive_bytes_per_second,
            "model": model,
            "next": next,
        });
        writeln!(stdout(), "{report:#}")?;
    } else {
        tell(&examination, &next)?;
    }
    Ok(match (examination.verdict(), &examination.model) {
        (Verdict::Problem, Some(model)) if model.plan.is_none() => Exit::DoesNotFit,
        (Verdict::Problem, _) => Exit::Corrupt,
        _ => Exit::Ok,
    })
}

/// Commands that make sense now.
fn next(examination: &Examination, args: &DoctorArgs) -> Vec<String> {
    let dir = args.dir.display();
    let Some(model) = &examination.model else {
        return match examination.verdict() {
            Verdict::Problem => vec![format!("kimi-cli verify {dir}")],
            _ => vec!["kimi-cli run".to_owned(), "kimi-cli plan k3 --ram 8GB".to_owned()],
        };
    };
    if model.plan.is_none() {
        return vec![format!(
            "kimi-cli plan {dir} --ram {}MB --kv bf16",
            model.floor_bytes.div_ceil(1_000_000)
        )];
    }
    let prompt = if model.tokenizer { "\"The capital of France is\"" } else { "--ids 1,2,3" };
    let mut next = vec![format!("kimi-cli run {dir} {prompt}")];
    if !model.packed {
        next.push(format!("kimi-cli pack {dir} {dir}-packed --preset exact --dry-run"));
    }
    next
}

fn tell(examination: &Examination, next: &[String]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    for finding in &examination.findings {
        let mark = match finding.verdict {
            Verdict::Good => "ok  ",
            Verdict::Warning => "note",
            _ => "FAIL",
        };
        writeln!(out, "{mark}  {:<9}  {}", finding.topic, finding.found)?;
        if let Some(advice) = &finding.advice {
            writeln!(out, "                 {advice}")?;
        }
    }
    if let Some(model) = &examination.model
        && let Some(plan) = &model.plan
    {
        write!(out, "a token reads {}", bytes(plan.reads.total()))?;
        match examination.drive_bytes_per_second.and_then(|speed| model.seconds_per_token(speed)) {
            Some(seconds) => writeln!(out, ", {seconds:.3} s of this drive")?,
            None => writeln!(out)?,
        }
    }
    writeln!(out, "next:")?;
    next.iter().try_for_each(|command| writeln!(out, "  {command}"))
}
