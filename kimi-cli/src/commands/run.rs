//! `kimi-cli run`.

mod sampling_report;

use std::io::{Write, stdout};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use kimi_model::prefix::Storing;
use kimi_model::state::Header;
use kimi_model::{BytesRead, Engine, GenerateOptions, Generation, LogitDump, Transcript, resume};
use kimi_paging::peak_rss_bytes;
use kimi_text::{Specials, TokenId, Tokenizer};
use serde::Serialize;

use crate::args::RunArgs;
use crate::exit::{Exit, Usage};
use crate::status::{Output, Status, bytes};
use crate::{interrupt, sampling, source, text};
use sampling_report::{LogprobReport, SamplingReport};

/// What the demo model continues when nobody gives it a text.
const DEMO_PROMPT: &str = "The king said";

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    interrupt::install()?;
    let start = Instant::now();
    let dir = args.model.as_deref();
    let model = source::model(dir, args.engine.io, args.engine.ram)?;
    let tokenizer = source::tokenizer(dir)?;
    let saved = args.state.load_state.as_deref().map(Header::open).transpose()?;
    let prompt = Prompt::new(args, tokenizer.as_ref(), model.config().bos_token_id)?;
    let mut options = sampling::options(dir, &args.sampling, model.config())?;
    // An uninterrupted run would have gone on with these random numbers.
    options.sampler.seed = args.sampling.seed.or(saved.and_then(|saved| saved.seed())).unwrap_or_default();
    let prefixes = args.prefix.open(&mut options)?;
    if let Some(path) = &args.state.save_state {
        check_place(path)?;
    }
    options.max_tokens = args.max_tokens;
    options.stop.clone_from(&args.stop);
    options.ignore_eos = args.ignore_eos;

    let context = args.engine.context.min(model.config().max_position_embeddings);
    let (known, pending) = saved.map_or((0, 0), |saved| {
        let counts = [saved.tokens(), saved.tokens() - saved.position()];
        let [known, pending] = counts.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        (known, pending)
    });
    let tokens = prompt.ids.len().saturating_add(known);
    let positions = context.min(tokens.saturating_add(args.max_tokens.max(1)));
    let mut engine_options = args.engine.options();
    engine_options.positions = positions;
    engine_options.columns = engine_options.columns.min(prompt.ids.len().saturating_add(pending).max(1));
    engine_options.read = source::read_settings(&model, args.engine.io, args.engine.ram)?;
    let mut engine = Engine::new(model, &engine_options)?;
    if args.verbosity.verbose {
        eprintln!("{}", engine.plan());
    }
    if !args.verbosity.quiet {
        engine.read_fallbacks().iter().for_each(|reason| eprintln!("note: {reason}"));
    }
    if engine.isa() == kimi_kernels::Isa::Scalar && args.engine.isa.is_none() && !args.verbosity.quiet {
        eprintln!("warning: this processor has no AVX2 with FMA; the scalar kernels are many times slower");
    }
    let (mut session, mut transcript) = match &args.state.load_state {
        Some(path) => engine.load_session(path)?,
        None => (engine.session()?, Transcript::new()),
    };
    let loaded = session.position();
    transcript.give(&prompt.ids);
    let reused = match &prefixes {
        Some(prefixes) if loaded == 0 => prefixes.restore(&engine, &mut session, transcript.tokens())?,
        _ => 0,
    };
    let mut dump = match &args.dump_logits {
        Some(path) => {
            let created = LogitDump::create(path, engine.model().config().vocab_size);
            Some(created.with_context(|| format!("{} cannot be written", path.display()))?)
        }
        None => None,
    };

    let output = match (args.json, args.verbosity.quiet) {
        (false, _) => Output::Stdout,
        (true, false) => Output::Stderr,
        (true, true) => Output::Nowhere,
    };
    let mut status = Status::new(output, args.verbosity.quiet, engine.read_counter());
    if prompt.echo {
        status.print(DEMO_PROMPT);
    }
    // A Ctrl-C after the last token must not end the program before everything is saved.
    let (generated, saved, unstored) = interrupt::turn(|| {
        let (begun, before) = (session.position(), transcript.tokens()[..session.position()].to_vec());
        let mut storing = Storing::new(&mut status, prefixes.as_ref(), &before);
        let generated = interrupt::cancellable(|cancel| {
            let means = (tokenizer.as_ref(), cancel);
            let from = (&mut session, &mut transcript);
            resume(&mut engine, from, &[], &options, means, dump.as_mut(), &mut storing)
        });
        let unstored = storing.finish();
        let saved = match &args.state.save_state {
            Some(path) if generated.is_ok() || session.position() > begun => {
                engine.save_session(&session, &transcript, path).map(|_| ())
            }
            _ => Ok(()),
        };
        (generated, saved, unstored)
    });
    if output != Output::Nowhere && generated.is_ok() {
        status.print("\n");
    }
    status.finish()?;
    // What was computed is kept, however the generation ended.
    if let (Some(dump), Some(path)) = (dump, &args.dump_logits) {
        dump.finish().with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if let Some(error) = unstored
        && !args.verbosity.quiet
    {
        eprintln!("note: the prompt is not in the prefix cache: {error}");
    }
    saved?;
    let generation = generated?;
    let seconds = start.elapsed().as_secs_f64();
    let report = Report::new((args, &options), &engine, (&prompt.ids, loaded, reused), &generation, seconds);
    if args.json {
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&report)?)?;
    } else if !args.verbosity.quiet {
        eprintln!("{}", report.summary());
    }
    Ok(match generation.finish {
        kimi_model::FinishReason::Cancelled => Exit::Interrupted,
        _ => Exit::Ok,
    })
}

/// Refuses a place where nothing can be saved before anything is computed for it.
fn check_place(path: &Path) -> Result<(), Usage> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let reason = match () {
        () if path.is_dir() => "is a folder; give the name of a file",
        () if !dir.is_dir() => "lies in no folder that exists; make it first",
        () => return Ok(()),
    };
    Err(Usage(format!("{} {reason}", path.display())))
}

/// The ids to continue.
struct Prompt {
    ids: Vec<u32>,
    /// Nobody gave a text, so the reader should see which one is continued.
    echo: bool,
}

impl Prompt {
    fn new(args: &RunArgs, tokenizer: Option<&Tokenizer>, bos: Option<u32>) -> anyhow::Result<Self> {
        if let Some(ids) = &args.ids {
            return Ok(Self { ids: ids.clone(), echo: false });
        }
        let given = match (&args.prompt, &args.prompt_text, &args.prompt_file) {
            (Some(prompt), ..) if prompt == "-" => Some(text::read_stdin(args.lossy)?),
            (Some(prompt), ..) => Some(prompt.clone()),
            (None, Some(prompt), _) => Some(prompt.clone()),
            (None, None, Some(file)) => Some(text::read(file, args.lossy)?),
            (None, None, None) => None,
        };
        let goes_on = args.state.load_state.is_some();
        let echo = given.is_none() && args.model.is_none() && !goes_on;
        let prompt = match given {
            Some(prompt) => prompt,
            None if goes_on => return Ok(Self { ids: Vec::new(), echo }),
            None if args.model.is_none() => DEMO_PROMPT.to_owned(),
            None => {
                return Err(Usage("no prompt: give PROMPT, `-`, --prompt-file or --ids".to_owned()).into());
            }
        };
        let Some(tokenizer) = tokenizer else {
            let name = source::name(args.model.as_deref());
            return Err(
                Usage(format!("{name} has no tiktoken.model, so the prompt must be given as --ids")).into()
            );
        };
        let mut ids = Vec::new();
        if args.bos || (args.model.is_none() && !goes_on) {
            let Some(bos) = bos else {
                return Err(Usage("the model names no beginning-of-sequence token".to_owned()).into());
            };
            ids.push(bos);
        }
        let specials = if args.parse_special { Specials::Parse } else { Specials::AsText };
        ids.extend(tokenizer.encode(&prompt, specials).into_iter().map(|TokenId(id)| id));
        Ok(Self { ids, echo })
    }
}

/// The report of `run --json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    model: String,
    prompt_ids: &'a [u32],
    /// Tokens of `--load-state` that needed no computing.
    loaded_tokens: usize,
    /// Tokens of `--prefix-cache` that needed none.
    reused_tokens: usize,
    generated_ids: &'a [u32],
    /// Only with `--logprobs`.
    logprobs: Option<Vec<LogprobReport>>,
    text: &'a str,
    finish_reason: &'static str,
    seconds: f64,
    prefill_seconds: f64,
    decode_seconds_per_token: Option<f64>,
    passes: usize,
    sampling: SamplingReport<'a>,
    bytes_read: Bytes,
    /// Bytes read per generated token, the prompt's included.
    bytes_per_token: Option<f64>,
    io: IoReport,
    budget_bytes: u64,
    ledger_peak_bytes: u64,
    peak_rss_bytes: Option<u64>,
    columns: usize,
    threads: usize,
    isa: &'static str,
    arith: &'static str,
    kv: &'static str,
    encodings: serde_json::Map<String, serde_json::Value>,
    index_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Bytes {
    trunk: u64,
    experts: u64,
    head: u64,
    kv: u64,
    other: u64,
}

#[derive(Debug, Serialize)]
struct IoReport {
    backend: String,
    executor: &'static str,
    fallbacks: Vec<String>,
    reads: u64,
    wait_seconds: f64,
    busy_fraction: f64,
}

impl<'a> Report<'a> {
    fn new(
        (args, options): (&RunArgs, &'a GenerateOptions),
        engine: &'a Engine,
        (prompt, loaded, reused): (&'a [u32], usize, usize),
        generation: &'a Generation,
        seconds: f64,
    ) -> Self {
        let BytesRead { trunk, experts, head, kv, other, .. } = engine.bytes_read();
        let tokens = generation.ids.len();
        let total = engine.bytes_read().total();
        let stats = engine.read_stats();
        let running = (generation.prefill + generation.decode).as_secs_f64();
        Self {
            model: source::name(args.model.as_deref()),
            prompt_ids: prompt,
            loaded_tokens: loaded,
            reused_tokens: reused,
            generated_ids: &generation.ids,
            logprobs: generation
                .logprobs
                .as_ref()
                .map(|logprobs| LogprobReport::all(&generation.ids, logprobs)),
            text: &generation.text,
            finish_reason: generation.finish.name(),
            seconds,
            prefill_seconds: generation.prefill.as_secs_f64(),
            decode_seconds_per_token: generation.decode_seconds_per_token(),
            passes: generation.passes,
            sampling: SamplingReport::new(options, engine.model().config()),
            bytes_read: Bytes { trunk, experts, head, kv, other },
            bytes_per_token: (tokens > 0).then(|| total as f64 / tokens as f64),
            io: IoReport {
                backend: engine.backend().to_string(),
                executor: engine.read_settings().executor.as_str(),
                fallbacks: engine.read_fallbacks(),
                reads: stats.tape.reads + stats.urgent.reads,
                wait_seconds: (stats.tape.wait_ns + stats.urgent.wait_ns) as f64 * 1e-9,
                busy_fraction: if running > 0.0 { stats.active_ns as f64 * 1e-9 / running } else { 0.0 },
            },
            budget_bytes: engine.budget().limit_bytes(),
            ledger_peak_bytes: engine.budget().peak_bytes(),
            peak_rss_bytes: peak_rss_bytes(),
            columns: engine.max_columns(),
            threads: engine.threads(),
            isa: engine.isa().name(),
            arith: engine.arith().name(),
            kv: args.engine.kv.name(),
            encodings: engine
                .model()
                .encodings()
                .into_iter()
                .map(|(part, names)| (part.to_owned(), names.into()))
                .collect(),
            index_bytes: engine.model().checkpoint().index().heap_bytes(),
        }
    }

    fn summary(&self) -> String {
        let mut parts = vec![format!("{} tokens in {:.2} s", self.generated_ids.len(), self.seconds)];
        if let Some(seconds) = self.decode_seconds_per_token {
            parts.push(format!("{seconds:.4} s/token"));
        }
        let Bytes { trunk, experts, head, kv, other } = self.bytes_read;
        parts.push(format!("{} read", bytes(trunk + experts + head + kv + other)));
        if let Some(peak) = self.peak_rss_bytes {
            parts.push(format!("peak {}", bytes(peak)));
        }
        parts.push(format!("{}, {} threads", self.isa, self.threads));
        parts.push(format!("ended by {}", self.finish_reason));
        parts.join(", ")
    }
}
