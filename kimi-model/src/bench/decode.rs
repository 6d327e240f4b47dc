//! Decoding: seconds, bytes and waits of each token, beside what the drive gives to nobody but a reader.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use kimi_paging::{ReadStats, current_rss_bytes, peak_rss_bytes};
use serde::Serialize;

use super::disk::{self, DiskOptions, Pattern, Reading};
use super::{BenchError, Spread};
use crate::{BytesRead, Engine, Logits, PassOptions};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecodeOptions {
    /// Tokens that are read first, in one pass where the engine allows that many.
    pub prompt: Vec<u32>,
    /// Tokens that are generated before anything counts: they fill what stays in memory.
    pub warm_up: usize,
    /// Tokens that are measured, one pass each.
    pub tokens: usize,
    /// Files of the model, of which the drive's speed is measured before and after, as far as that is asked for.
    pub drive: Option<(PathBuf, DiskOptions)>,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { prompt: vec![1, 2, 3], warm_up: 1, tokens: 4, drive: None }
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DecodeReport {
    /// The tokens that were generated, those of the warm-up included.
    pub generated_ids: Vec<u32>,
    /// Seconds of the prompt.
    pub prefill_seconds: f64,
    /// Every measured token.
    pub tokens: Vec<TokenCost>,
    /// Seconds of a token.
    pub seconds_per_token: Spread,
    /// Bytes of a token.
    pub bytes_per_token: Spread,
    /// Bytes a second while tokens were measured.
    pub bytes_per_second: f64,
    /// The share of the time in which at least one read was under way.
    pub busy_fraction: f64,
    /// What the plan says of a token's bytes.
    pub planned_bytes_per_token: u64,
    /// Bytes a second of the drive for the same reads without a model, before and after.
    pub drive_bytes_per_second: Option<Spread>,
    /// The bytes a second of the tokens, by the median of the drive's.
    pub share_of_drive: Option<f64>,
    /// The ledger's peak.
    pub ledger_peak_bytes: u64,
    /// Memory of the process at the end.
    pub rss_bytes: Option<u64>,
    /// The peak of the process's memory.
    pub peak_rss_bytes: Option<u64>,
}

/// What one token took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TokenCost {
    /// Seconds from start to end.
    pub seconds: f64,
    /// Bytes of the trunk.
    pub trunk_bytes: u64,
    /// Bytes of experts.
    pub expert_bytes: u64,
    /// Bytes of the output matrix.
    pub head_bytes: u64,
    /// Bytes of everything else.
    pub other_bytes: u64,
    /// Seconds that the pass waited for a tile of the trunk.
    pub trunk_wait_seconds: f64,
    /// Seconds that it waited for an expert.
    pub expert_wait_seconds: f64,
    /// Seconds in which at least one read was under way.
    pub reading_seconds: f64,
}

impl TokenCost {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.trunk_bytes + self.expert_bytes + self.head_bytes + self.other_bytes
    }

    fn between(before: &State, after: &State, seconds: f64) -> Self {
        let (old, new) = (&before.bytes, &after.bytes);
        let seconds_of = |old: u64, new: u64| new.saturating_sub(old) as f64 * 1e-9;
        let (o, n) = (&before.stats, &after.stats);
        Self {
            seconds,
            trunk_bytes: new.trunk - old.trunk,
            expert_bytes: new.experts - old.experts,
            head_bytes: new.head - old.head,
            other_bytes: new.other - old.other + (new.kv - old.kv),
            trunk_wait_seconds: seconds_of(o.tape.wait_ns, n.tape.wait_ns),
            expert_wait_seconds: seconds_of(o.urgent.wait_ns, n.urgent.wait_ns),
            reading_seconds: seconds_of(o.active_ns, n.active_ns),
        }
    }
}

/// The counters of an engine.
struct State {
    bytes: BytesRead,
    stats: ReadStats,
}

impl State {
    fn of(engine: &Engine) -> Self {
        Self { bytes: engine.bytes_read(), stats: engine.read_stats() }
    }
}

/// Reads the prompt and generates greedily, whatever the model's end tokens are; `progress` hears of tokens done, of all.
///
/// # Errors
/// [`BenchError::Setting`] without a prompt or tokens, those of a pass, and of [`disk::measure`].
pub fn measure(
    engine: &mut Engine,
    options: &DecodeOptions,
    progress: &dyn Fn(usize, usize),
    cancel: &AtomicBool,
) -> Result<DecodeReport, BenchError> {
    if options.prompt.is_empty() {
        return Err(BenchError::Setting { what: "the prompt", expected: "at least one token" });
    }
    if options.tokens == 0 {
        return Err(BenchError::Setting { what: "tokens", expected: "at least 1" });
    }
    let settings = engine.read_settings();
    let drive = |rates: &mut Vec<f64>| match &options.drive {
        None => Ok(()),
        Some((path, disk)) => {
            let mut disk = disk.clone();
            disk.readings = vec![Reading { settings, ..Reading::direct(settings) }];
            disk.patterns = vec![Pattern::Mixed];
            let report = disk::measure(path, &disk, &|_| (), cancel)?;
            rates.extend(report.rows.iter().map(|row| row.bytes_per_second.median));
            Ok::<_, BenchError>(())
        }
    };
    let mut rates = Vec::new();
    drive(&mut rates)?;

    let mut session = engine.session()?;
    let total = options.warm_up + options.tokens;
    let start = Instant::now();
    let mut next = 0;
    for chunk in options.prompt.chunks(engine.max_columns()) {
        let pass =
            PassOptions { logits: Logits::Last, more: true, cancel: Some(cancel), ..Default::default() };
        let pass = engine.forward(&mut session, chunk, pass)?;
        next = largest(pass.logits());
        pass.commit(chunk.len())?;
    }
    let prefill_seconds = start.elapsed().as_secs_f64();
    let (mut ids, mut tokens) = (vec![next], Vec::with_capacity(options.tokens));
    for done in 0..total {
        progress(done, total);
        let (before, start) = (State::of(engine), Instant::now());
        let more = done + 1 < total;
        let pass = PassOptions { logits: Logits::Last, more, cancel: Some(cancel), ..Default::default() };
        let pass = engine.forward(&mut session, &[next], pass)?;
        next = largest(pass.logits());
        pass.commit(1)?;
        ids.push(next);
        if done >= options.warm_up {
            tokens.push(TokenCost::between(&before, &State::of(engine), start.elapsed().as_secs_f64()));
        }
    }
    progress(total, total);
    drive(&mut rates)?;

    let spread = |of: &dyn Fn(&TokenCost) -> f64| {
        Spread::new(&tokens.iter().map(of).collect::<Vec<_>>()).expect("there are tokens")
    };
    let sum = |of: &dyn Fn(&TokenCost) -> f64| tokens.iter().map(of).sum::<f64>();
    let seconds = sum(&|token| token.seconds);
    let bytes_per_second = sum(&|token| token.bytes() as f64) / seconds;
    let drive_bytes_per_second = Spread::new(&rates);
    Ok(DecodeReport {
        generated_ids: ids,
        prefill_seconds,
        seconds_per_token: spread(&|token| token.seconds),
        bytes_per_token: spread(&|token| token.bytes() as f64),
        bytes_per_second,
        busy_fraction: sum(&|token| token.reading_seconds) / seconds,
        planned_bytes_per_token: engine.plan().reads.total(),
        drive_bytes_per_second,
        share_of_drive: drive_bytes_per_second.map(|drive| bytes_per_second / drive.median),
        ledger_peak_bytes: engine.budget().peak_bytes(),
        rss_bytes: current_rss_bytes(),
        peak_rss_bytes: peak_rss_bytes(),
        tokens,
    })
}

/// The first of the largest logits.
fn largest(logits: &[f32]) -> u32 {
    let better =
        |best: (usize, f32), (id, &logit): (usize, &f32)| if logit > best.1 { (id, logit) } else { best };
    logits.iter().enumerate().fold((0, f32::NEG_INFINITY), better).0 as u32
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use kimi_paging::{FileSource, Source};
    use kimi_testing::kimi_k3_oracle;

    use super::*;
    use crate::{EngineOptions, Model};

    fn engine(change: impl FnOnce(&mut EngineOptions)) -> Engine {
        let mut open = |path: &Path| Ok(Arc::new(FileSource::open(path)?) as Arc<dyn Source>);
        let model = Arc::new(Model::open(&kimi_k3_oracle(), &mut open).unwrap());
        let mut options = EngineOptions::default();
        (options.positions, options.columns) = (64, 8);
        change(&mut options);
        Engine::new(model, &options).unwrap()
    }

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn bytes_of_tokens_are_those_of_the_plan() {
        let mut options = DecodeOptions::default();
        (options.warm_up, options.tokens) = (0, 3);
        // The floor: nothing stays.
        let model = engine(|_| ()).model().clone();
        let mut floor = EngineOptions::default();
        (floor.positions, floor.columns, floor.ram_bytes) = (64, 1, Some(u64::MAX));
        let needed = crate::Plan::floor(&model, &floor).unwrap().total_bytes();
        floor.ram_bytes = Some(needed + (1 << 20));
        let mut engine = Engine::new(model, &floor).unwrap();
        let report = measure(&mut engine, &options, &|_, _| (), &never()).unwrap();
        assert_eq!((report.tokens.len(), report.generated_ids.len()), (3, 4));
        for token in &report.tokens {
            let parts = token.trunk_bytes + token.expert_bytes + token.head_bytes + token.other_bytes;
            assert_eq!(parts, token.bytes());
            assert!(token.seconds > 0.0 && token.reading_seconds >= 0.0);
            // Experts that are in the slots still are not read again.
            assert!(token.bytes() <= report.planned_bytes_per_token, "{token:?} {report:?}");
            assert_eq!(token.trunk_bytes + token.head_bytes + token.other_bytes, {
                let reads = engine.plan().reads;
                reads.trunk + reads.head + reads.other
            });
        }
        assert_eq!((report.drive_bytes_per_second, report.share_of_drive), (None, None));
    }

    #[test]
    fn the_drive_is_measured_beside_when_asked() {
        let mut options = DecodeOptions::default();
        let disk = DiskOptions { time: Duration::ZERO, ..DiskOptions::default() };
        options.drive = Some((kimi_k3_oracle(), disk));
        let report = measure(&mut engine(|_| ()), &options, &|_, _| (), &never()).unwrap();
        assert!(report.drive_bytes_per_second.unwrap().min > 0.0 && report.share_of_drive.is_some());
    }

    #[test]
    fn nothing_to_measure_and_the_end_asked_for_are_errors() {
        let mut engine = engine(|_| ());
        let mut run = |options: DecodeOptions, cancel: bool| {
            measure(&mut engine, &options, &|_, _| (), &AtomicBool::new(cancel)).unwrap_err()
        };
        let none = run(DecodeOptions { prompt: vec![], ..DecodeOptions::default() }, false);
        assert!(matches!(none, BenchError::Setting { what: "the prompt", .. }), "{none}");
        let none = run(DecodeOptions { tokens: 0, ..DecodeOptions::default() }, false);
        assert!(matches!(none, BenchError::Setting { what: "tokens", .. }), "{none}");
        let cancelled = run(DecodeOptions::default(), true);
        assert!(matches!(cancelled, BenchError::Run(crate::Error::Cancelled)), "{cancelled}");
    }

    #[test]
    fn the_first_of_equal_logits_wins() {
        assert_eq!(largest(&[1.0, 3.0, 3.0, f32::NEG_INFINITY]), 1);
    }
}
