//! `kimi-cli bench`.

use std::io::{Write, stdout};

use kimi_model::Engine;
use kimi_model::bench::decode::{self, DecodeOptions, DecodeReport};
use kimi_model::bench::disk::{self, DiskOptions, DiskProgress, DiskReport};
use kimi_model::bench::kernels::{self, KernelRow, Place};
use kimi_model::bench::{BenchError, Spread};
use kimi_paging::Executor;
use serde_json::json;

use crate::args::{BenchCommand, BenchDecodeArgs, BenchDiskArgs, BenchKernelsArgs};
use crate::exit::Exit;
use crate::status::bytes;
use crate::{interrupt, progress, source};

pub(crate) fn run(command: &BenchCommand) -> anyhow::Result<Exit> {
    interrupt::install()?;
    match command {
        BenchCommand::Kernels(args) => kernels(args),
        BenchCommand::Disk(args) => disk(args),
        BenchCommand::Decode(args) => decode(args),
    }
}

/// Rows are printed as soon as their encoding is done: the whole table takes minutes.
fn kernels(args: &BenchKernelsArgs) -> anyhow::Result<Exit> {
    let tell = !args.output.json;
    if tell {
        writeln!(
            stdout(),
            "{:<14} {:<12} {:<6} {:>7} {:<7} {:>10} {:>9} {:>8} {:>10}",
            "encoding",
            "isa",
            "arith",
            "columns",
            "in",
            "Gweights/s",
            "GB/s",
            "stream",
            "GOP/s"
        )?;
    }
    // What cannot be printed ends the command, but only when the measurement is over.
    let mut printed = Ok(());
    let report = kernels::measure(&args.options(), &mut |rows| {
        if tell && printed.is_ok() {
            printed = print(rows);
        }
    })?;
    printed?;
    if args.output.json {
        writeln!(stdout(), "{:#}", serde_json::to_value(&report)?)?;
        return Ok(Exit::Ok);
    }
    let names =
        |isas: &[kimi_kernels::Isa]| isas.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if !args.output.quiet {
        writeln!(
            stdout(),
            "{} threads, medians of {} rounds in turn; here: {}; not here: {}",
            report.threads,
            report.rounds,
            names(&report.isas),
            names(&report.absent_isas)
        )?;
    }
    Ok(Exit::Ok)
}

fn print(rows: &[KernelRow]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    for row in rows {
        let share = match (row.place, row.share_of_stream) {
            (Place::Memory, Some(share)) => format!("{:.0} %", share * 100.0),
            _ => String::new(),
        };
        writeln!(
            out,
            "{:<14} {:<12} {:<6} {:>7} {:<7} {:>10.2} {:>9.2} {share:>8} {:>10.1}",
            row.encoding.to_string(),
            row.isa.to_string(),
            row.arith.name(),
            row.columns,
            row.place.name(),
            row.weights_per_second.median / 1e9,
            row.bytes_per_second.median / 1e9,
            row.operations_per_second.median / 1e9,
        )?;
    }
    out.flush()
}

fn disk(args: &BenchDiskArgs) -> anyhow::Result<Exit> {
    let bar = progress::bar(args.output.quiet);
    let show = |at: DiskProgress| match at {
        DiskProgress::Writing(done, total) => progress::show(&bar, done, total),
        DiskProgress::Reading(..) => bar.set_message("reading"),
    };
    let measured = interrupt::cancellable(|cancel| disk::measure(&args.path, &args.options(), &show, cancel));
    bar.finish_and_clear();
    let report = match measured {
        Err(BenchError::Cancelled) => return Ok(Exit::Interrupted),
        measured => measured?,
    };
    if args.output.json {
        writeln!(stdout(), "{:#}", serde_json::to_value(&report)?)?;
    } else {
        tell_disk(&report)?;
    }
    Ok(Exit::Ok)
}

fn tell_disk(report: &DiskReport) -> std::io::Result<()> {
    let mut out = stdout().lock();
    let kind = report.file_system.as_deref().unwrap_or("unknown file system");
    let what = if report.temporary { "a temporary file" } else { "files as they are" };
    writeln!(out, "{}: {what}, {} in {}, {kind}", report.path.display(), bytes(report.bytes), report.files)?;
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    writeln!(
        out,
        "{:<8} {:<7} {:<8} {:>5} {:>9} {:>9} {:>17} {:>9} {:>9}",
        "pattern", "cache", "by", "depth", "request", "GB/s", "range", "p50 ms", "p99 ms"
    )?;
    for row in &report.rows {
        let by = match row.executor {
            Executor::Uring => "io_uring",
            _ => "threads",
        };
        let Spread { median, min, max, .. } = row.bytes_per_second.scaled(1e-9);
        writeln!(
            out,
            "{:<8} {:<7} {by:<8} {:>5} {:>9} {median:>9.3} {:>17} {:>9.2} {:>9.2}",
            row.pattern.name(),
            if row.backend == kimi_paging::Backend::Direct { "past" } else { "dropped" },
            row.depth,
            row.request_bytes.map_or_else(String::new, |request| format!("{} KiB", request >> 10)),
            format!("{min:.3} to {max:.3}"),
            row.wait_seconds.p50 * 1e3,
            row.wait_seconds.p99 * 1e3,
        )?;
    }
    writeln!(
        out,
        "medians of {} rounds in turn; tiles of {}, records of {}, rows of {} bytes; waits are those for one of them",
        report.rounds,
        bytes(report.tile_bytes),
        bytes(report.record_bytes),
        report.row_bytes
    )
}

fn decode(args: &BenchDecodeArgs) -> anyhow::Result<Exit> {
    let dir = args.model.as_deref();
    let model = source::model(dir, args.engine.io, args.engine.ram)?;
    let mut options = args.engine.options();
    let positions = args.ids.len() + args.warm_up + args.tokens;
    options.positions = args.engine.context.min(positions).min(model.config().max_position_embeddings);
    options.columns = options.columns.min(args.ids.len());
    options.read = source::read_settings(&model, args.engine.io, args.engine.ram)?;
    let mut engine = Engine::new(model, &options)?;
    let mut wanted = DecodeOptions::default();
    (wanted.prompt, wanted.warm_up, wanted.tokens) = (args.ids.clone(), args.warm_up, args.tokens);
    if let Some(dir) = dir
        && !args.drive_seconds.is_zero()
    {
        let mut disk = DiskOptions::default();
        disk.time = args.drive_seconds;
        wanted.drive = Some((dir.to_path_buf(), disk));
    }
    let bar = progress::tokens(args.output.quiet, args.warm_up + args.tokens);
    let measured = interrupt::cancellable(|cancel| {
        decode::measure(&mut engine, &wanted, &|done, _| bar.set_position(done as u64), cancel)
    });
    bar.finish_and_clear();
    let report = match measured {
        Err(BenchError::Cancelled | BenchError::Run(kimi_model::Error::Cancelled)) => {
            return Ok(Exit::Interrupted);
        }
        measured => measured?,
    };
    if args.output.json {
        let mut report = serde_json::to_value(&report)?;
        report["model"] = source::name(dir).into();
        report["settings"] = json!({
            "threads": engine.threads(),
            "isa": engine.isa().name(),
            "arith": engine.arith().name(),
            "kv": args.engine.kv.name(),
            "backend": engine.backend().to_string(),
            "executor": engine.read_settings().executor.as_str(),
            "budget_bytes": engine.budget().limit_bytes(),
        });
        writeln!(stdout(), "{report:#}")?;
    } else {
        tell_decode(&report, &engine)?;
    }
    Ok(Exit::Ok)
}

fn tell_decode(report: &DecodeReport, engine: &Engine) -> std::io::Result<()> {
    let mut out = stdout().lock();
    writeln!(
        out,
        "{:>6} {:>9} {:>11} {:>11} {:>11} {:>11} {:>12} {:>12}",
        "token", "s", "trunk", "experts", "head", "other", "trunk wait s", "expert wait s"
    )?;
    for (i, token) in report.tokens.iter().enumerate() {
        writeln!(
            out,
            "{:>6} {:>9.4} {:>11} {:>11} {:>11} {:>11} {:>12.4} {:>12.4}",
            i + 1,
            token.seconds,
            bytes(token.trunk_bytes),
            bytes(token.expert_bytes),
            bytes(token.head_bytes),
            bytes(token.other_bytes),
            token.trunk_wait_seconds,
            token.expert_wait_seconds,
        )?;
    }
    let Spread { median, min, max, .. } = report.seconds_per_token;
    writeln!(out, "{median:.4} s/token ({min:.4} to {max:.4}), prompt {:.3} s", report.prefill_seconds)?;
    writeln!(
        out,
        "{} per token, {} planned; {:.3} GB/s, reads under way {:.1} % of the time",
        bytes(report.bytes_per_token.median as u64),
        bytes(report.planned_bytes_per_token),
        report.bytes_per_second / 1e9,
        report.busy_fraction * 100.0
    )?;
    if let (Some(drive), Some(share)) = (report.drive_bytes_per_second, report.share_of_drive) {
        writeln!(
            out,
            "the drive alone: {:.3} GB/s ({:.3} to {:.3}); decoding took {:.1} % of that",
            drive.median / 1e9,
            drive.min / 1e9,
            drive.max / 1e9,
            share * 100.0
        )?;
    }
    let rss = report.peak_rss_bytes.map_or_else(String::new, |peak| format!(", process {}", bytes(peak)));
    writeln!(
        out,
        "memory: {} allowed, ledger {}{rss}; {}, {} threads",
        bytes(engine.budget().limit_bytes()),
        bytes(report.ledger_peak_bytes),
        engine.isa(),
        engine.threads()
    )
}
