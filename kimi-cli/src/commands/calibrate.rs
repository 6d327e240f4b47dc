//! `kimi-cli calibrate`.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use kimi_model::calibrate::{CalibrateOptions, Calibration, Moments, gather};
use kimi_model::{Engine, Error};
use serde_json::{Value, json};

use crate::args::CalibrateArgs;
use crate::exit::{Exit, Usage};
use crate::status::bytes;
use crate::windows::{Tokens, bos, engine};
use crate::{interrupt, progress, source};

/// How often the file is written at most, and which share of the time that may take.
const SAVE_EVERY: Duration = Duration::from_secs(10);
const SAVE_SHARE: u32 = 20;

pub(crate) fn run(args: &CalibrateArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let dir = args.model.as_deref();
    let text = Tokens::read(dir, &args.text)?;
    let windows = text.windows(args.window, args.windows);
    let tokens: usize = windows.iter().map(|window| window.len()).sum();
    let mut options = CalibrateOptions::default();
    (options.hessian_block, options.experts) = (args.hessian, args.experts);
    let question = question(args, tokens, text.text_bytes);
    let begun = begun(args, &question)?;
    let mut engine =
        engine(dir, &args.engine, args.window, args.engine.ram, |model| Moments::bytes(model, &options))?;
    let bos = bos(&engine)?;
    let mut moments = match &begun {
        Some(begun) => Moments::load(engine.model(), &options, begun)?,
        None => Moments::new(engine.model(), &options),
    };
    let resumed = moments.tokens();

    let start = Instant::now();
    let bar = progress::tokens(args.output.quiet, tokens);
    let (mut saved, mut saving) = (Instant::now(), Duration::ZERO);
    let done = interrupt::cancellable(|cancel| -> anyhow::Result<Option<Moments>> {
        let rest = usize::try_from(moments.windows()).unwrap_or(usize::MAX).min(windows.len());
        for window in &windows[rest..] {
            bar.set_position(moments.tokens());
            moments = match gather(&mut engine, moments, window, bos, cancel) {
                Ok(moments) => moments,
                Err(Error::Cancelled) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if saved.elapsed() >= SAVE_EVERY.max(SAVE_SHARE * saving) {
                let start = Instant::now();
                moments.save(&args.out, &question, false)?;
                (saved, saving) = (Instant::now(), start.elapsed());
            }
        }
        moments.save(&args.out, &question, true)?;
        Ok(Some(moments))
    });
    bar.finish_and_clear();
    let Some(moments) = done? else {
        if !args.output.quiet {
            eprintln!("stopped; the same command goes on from what was last written");
        }
        return Ok(Exit::Interrupted);
    };
    tell(args, question, &engine, [resumed, moments.tokens()], start)?;
    Ok(Exit::Ok)
}

/// Everything that the numbers depend on beside the model's weights.
fn question(args: &CalibrateArgs, tokens: usize, text_bytes: usize) -> Value {
    json!({
        "model": source::name(args.model.as_deref()),
        "text": args.text.display().to_string(),
        "text_bytes": text_bytes,
        "tokens": tokens,
        "window": args.window,
        "hessian": args.hessian,
        "experts": args.experts,
        "kv": args.engine.kv.name(),
        "arith": args.engine.arith.name(),
    })
}

/// The file of an earlier run of the same command.
fn begun(args: &CalibrateArgs, question: &Value) -> anyhow::Result<Option<Calibration>> {
    if !args.out.exists() {
        return Ok(None);
    }
    let begun = Calibration::open(&args.out)?;
    if begun.question() != question {
        let (was, out) = (begun.question(), args.out.display());
        let hint = "give another file, or the same options again";
        return Err(Usage(format!("{out} is of another calibration: {was}, not {question}; {hint}")).into());
    }
    Ok(Some(begun))
}

fn tell(
    args: &CalibrateArgs,
    question: Value,
    engine: &Engine,
    [resumed, tokens]: [u64; 2],
    start: Instant,
) -> anyhow::Result<()> {
    let (seconds, size) = (start.elapsed().as_secs_f64(), std::fs::metadata(&args.out)?.len());
    let read = engine.bytes_read().total();
    if args.output.json {
        let mut json = question;
        json["out"] = args.out.display().to_string().into();
        json["bytes"] = size.into();
        json["resumed_tokens"] = resumed.into();
        json["bytes_read"] = read.into();
        json["seconds"] = seconds.into();
        json["peak_rss_bytes"] = kimi_paging::peak_rss_bytes().into();
        writeln!(stdout(), "{json:#}")?;
    } else if !args.output.quiet {
        let (out, size, read) = (args.out.display(), bytes(size), bytes(read));
        eprintln!("{out}: {tokens} tokens, {size}; {read} read, {seconds:.1} s");
    }
    Ok(())
}
