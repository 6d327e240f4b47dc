//! `kimi-cli eval`.

use std::io::{Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use kimi_model::eval::{Comparison, compare, window_nats};
use kimi_model::{Engine, Error};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::EvalArgs;
use crate::exit::{Exit, Usage};
use crate::windows::{Tokens, bos, engine};
use crate::{interrupt, progress, source};

/// What the built-in model is called as a reference.
const DEMO: &str = "demo";

/// How often the state is written.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// What is kept of an evaluation under way.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// Everything that the numbers depend on.
    question: Value,
    windows: usize,
    nats: f64,
    comparison: Option<Comparison>,
    seconds: f64,
}

pub(crate) fn run(args: &EvalArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let dir = args.model.as_deref();
    let text = Tokens::read(dir, &args.text)?;
    let shares = if args.against.is_some() { 2 } else { 1 };
    // Of two engines each gets the same memory.
    let engine = |dir: Option<&Path>| {
        let ram = args.engine.ram.map(|ram| ram / shares);
        engine(dir, &args.engine, args.window, ram, |_| 0)
    };
    let mut reference = match &args.against {
        Some(reference) => Some(engine(Some(reference.as_path()).filter(|dir| dir.as_os_str() != DEMO))?),
        None => None,
    };
    let mut engine = engine(dir)?;
    let bos = bos(&engine)?;

    let windows = text.windows(args.window, args.windows);
    let tokens: usize = windows.iter().map(|window| window.len()).sum();
    let mut state = State { question: question(args, tokens, text.text_bytes), ..State::default() };
    state.comparison = args.against.as_ref().map(|_| Comparison::default());
    if let Some(path) = &args.state
        && path.exists()
    {
        state = resume(path, state)?;
    }

    let bar = progress::tokens(args.output.quiet, tokens);
    let (mut start, mut saved) = (Instant::now(), Instant::now());
    let done = interrupt::cancellable(|cancel| -> anyhow::Result<bool> {
        for window in &windows[state.windows.min(windows.len())..] {
            bar.set_position((state.windows * args.window) as u64);
            let found = match &mut reference {
                Some(reference) => {
                    compare(&mut engine, reference, window, bos, args.layers, cancel).map(Found::Comparison)
                }
                None => window_nats(&mut engine, window, bos, cancel).map(Found::Nats),
            };
            match (found, &mut state.comparison) {
                (Err(Error::Cancelled), _) => return Ok(false),
                (Err(error), _) => return Err(error.into()),
                (Ok(Found::Comparison(found)), Some(all)) => all.add(&found),
                (Ok(Found::Comparison(found)), none) => *none = Some(found),
                (Ok(Found::Nats(nats)), _) => state.nats += nats,
            }
            state.windows += 1;
            state.seconds += start.elapsed().as_secs_f64();
            start = Instant::now();
            if saved.elapsed() >= SAVE_EVERY {
                save(args, &state)?;
                saved = Instant::now();
            }
        }
        Ok(true)
    });
    bar.finish_and_clear();
    save(args, &state)?;
    if !done? {
        if !args.output.quiet {
            eprintln!("stopped after {} of {} windows", state.windows, windows.len());
        }
        return Ok(Exit::Interrupted);
    }
    tell(args, &state, &engine, tokens, text.text_bytes)?;
    Ok(Exit::Ok)
}

/// What one window gave.
enum Found {
    Nats(f64),
    Comparison(Comparison),
}

fn question(args: &EvalArgs, tokens: usize, bytes: usize) -> Value {
    json!({
        "model": source::name(args.model.as_deref()),
        "text": args.text.display().to_string(),
        "text_bytes": bytes,
        "tokens": tokens,
        "window": args.window,
        "against": args.against.as_ref().map(|path| path.display().to_string()),
        "layers": args.layers,
        "kv": args.engine.kv.name(),
        "arith": args.engine.arith.name(),
    })
}

fn resume(path: &Path, fresh: State) -> anyhow::Result<State> {
    let json = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let state: State = serde_json::from_slice(&json)
        .map_err(|error| Usage(format!("{} is no state of an evaluation: {error}", path.display())))?;
    if state.question != fresh.question {
        let (was, is) = (state.question, fresh.question);
        return Err(Usage(format!("{} is of another evaluation: {was}, not {is}", path.display())).into());
    }
    Ok(state)
}

fn save(args: &EvalArgs, state: &State) -> anyhow::Result<()> {
    let Some(path) = &args.state else { return Ok(()) };
    let partial = path.with_extension("partial");
    let write = || {
        std::fs::write(&partial, serde_json::to_vec(state)?)?;
        std::fs::rename(&partial, path)?;
        anyhow::Ok(())
    };
    write().with_context(|| format!("{} cannot be written", path.display()))
}

fn tell(args: &EvalArgs, state: &State, engine: &Engine, tokens: usize, bytes: usize) -> anyhow::Result<()> {
    let nats = state.comparison.as_ref().map_or(state.nats, |comparison| comparison.nats);
    let per_token = nats / tokens as f64;
    // Whole windows of a text cut short cover a part of its bytes that is not counted.
    let bits_per_byte = args.windows.is_none().then(|| nats / std::f64::consts::LN_2 / bytes as f64);
    let mut out = stdout().lock();
    if args.output.json {
        let mut json = state.question.clone();
        json["nats_per_token"] = per_token.into();
        json["perplexity"] = per_token.exp().into();
        json["bits_per_byte"] = bits_per_byte.into();
        json["seconds"] = state.seconds.into();
        json["tokens_per_second"] = (tokens as f64 / state.seconds).into();
        json["encodings"] = engine
            .model()
            .encodings()
            .into_iter()
            .map(|(part, names)| (part.to_owned(), names.into()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        if let Some(found) = &state.comparison {
            json["reference_nats_per_token"] = (found.reference_nats / tokens as f64).into();
            json["divergence"] = json!({
                "mean": found.mean_divergence(),
                "median": found.divergence_quantile(0.5),
                "p99": found.divergence_quantile(0.99),
                "largest": found.divergence_quantile(1.0),
            });
            json["first_agreement"] = found.first_agreement().into();
            json["top10_agreement"] = found.top_agreement().into();
            json["logit_error"] = found.logit_error().into();
            if args.layers {
                json["layer_errors"] = found.layer_errors().collect::<Vec<_>>().into();
            }
        }
        writeln!(out, "{json:#}")?;
        return Ok(());
    }
    writeln!(out, "{tokens} tokens: {per_token:.6} nats per token, perplexity {:.4}", per_token.exp())?;
    if let Some(bits) = bits_per_byte {
        writeln!(out, "{bits:.6} bits per byte")?;
    }
    if let Some(found) = &state.comparison {
        let reference = found.reference_nats / tokens as f64;
        writeln!(out, "{:+.6} nats per token against the reference", per_token - reference)?;
        let quantile = |share| found.divergence_quantile(share);
        let (mean, median) = (found.mean_divergence(), quantile(0.5));
        writeln!(
            out,
            "divergence: mean {mean:.3e}, median {median:.3e}, 99 of 100 below {:.3e}",
            quantile(0.99)
        )?;
        let (first, top) = (found.first_agreement() * 100.0, found.top_agreement() * 100.0);
        writeln!(out, "same first token: {first:.2} %, same ten first: {top:.2} %")?;
        writeln!(out, "error of the logits: {:.3} %", found.logit_error() * 100.0)?;
        for (layer, error) in found.layer_errors().enumerate().filter(|_| args.layers) {
            writeln!(out, "layer {layer:>3}: {:.3} %", error * 100.0)?;
        }
    }
    writeln!(out, "{:.1} s, {:.1} tokens per second", state.seconds, tokens as f64 / state.seconds)?;
    Ok(())
}
