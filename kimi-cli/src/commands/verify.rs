//! `kimi-cli verify`.

use std::io::{Write, stdout};
use std::time::Instant;

use kimi_model::open::Io;
use kimi_model::verify::{VerifyProgress, verify};
use kimi_model::{Error, inspect::Summary};

use crate::args::VerifyArgs;
use crate::exit::Exit;
use crate::status::bytes;
use crate::{interrupt, progress, source};

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let start = Instant::now();
    // Opening checks names, shapes, types and that every byte of every tensor is there.
    let model = source::model(Some(&args.model), Io::Pread, None)?;
    let bar = progress::bar(args.output.quiet);
    let verified = interrupt::cancellable(|cancel| {
        let show = |step: VerifyProgress| progress::show(&bar, step.done_bytes, step.total_bytes);
        verify(&args.model, &show, cancel)
    });
    bar.finish_and_clear();
    let report = match verified {
        Err(Error::Cancelled) => return Ok(Exit::Interrupted),
        verified => verified?,
    };
    let name = args.model.display().to_string();
    let seconds = start.elapsed().as_secs_f64();
    let Some(report) = report else {
        let tensors = Summary::new(&model).total.tensors;
        if args.output.json {
            let json =
                serde_json::json!({ "model": name, "tensors": tensors, "checksums": false, "damages": [] });
            writeln!(stdout(), "{json:#}")?;
        } else if !args.output.quiet {
            writeln!(
                stdout(),
                "{name}: all {tensors} tensors are there with their shapes; a checkpoint as released has no checksums \
                 of its contents"
            )?;
        }
        return Ok(Exit::Ok);
    };
    if args.output.json {
        let mut json = serde_json::to_value(&report)?;
        json["model"] = name.into();
        json["checksums"] = true.into();
        json["seconds"] = seconds.into();
        writeln!(stdout(), "{json:#}")?;
    } else {
        for damage in &report.damages {
            let tile = damage.tile.map_or_else(String::new, |tile| format!(", tile {tile}"));
            let tensor =
                if damage.tensor.is_empty() { String::new() } else { format!(", tensor {}", damage.tensor) };
            writeln!(stdout(), "{}{tensor}{tile}: {}", damage.file, damage.reason)?;
        }
        if !args.output.quiet {
            let (files, size, tiles) = (report.files, bytes(report.bytes), report.tiles);
            let found = match report.damages.len() {
                0 => "whole".to_owned(),
                count => format!("{count} damages"),
            };
            writeln!(stdout(), "{name}: {found}; {files} files, {tiles} tiles, {size}, {seconds:.1} s")?;
        }
    }
    Ok(if report.damages.is_empty() { Exit::Ok } else { Exit::Corrupt })
}
