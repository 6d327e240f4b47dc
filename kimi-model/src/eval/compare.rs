//! How far a model is from a reference that it was made from.

use std::io;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::error::Error;
use crate::pass::{LogitSink, Logits, Observer, PassOptions};

/// Logits of one model that are held at once, in bytes: what bounds the tokens of a pass.
const HELD_BYTES: usize = 64 << 20;

/// Ranks that the agreement beyond the first looks at.
const TOP: usize = 10;

/// What the comparison of two models on a text found, summed over its tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Comparison {
    /// Sum of the negative natural logarithms of the probabilities of all tokens.
    pub nats: f64,
    /// The same of the reference.
    pub reference_nats: f64,
    /// Kullback-Leibler divergence of the model's distribution from the reference's in nats, for each token.
    pub divergences: Vec<f32>,
    /// Tokens for which both rank the same token first.
    pub same_first: usize,
    /// Tokens that both rank among their first ten, over all positions.
    pub same_top: usize,
    /// Sum of the squared differences of logits, each position's mean taken away first.
    pub squared_error: f64,
    /// Sum of the squares of the reference's logits, their mean taken away.
    pub squared_logits: f64,
    /// For each layer the summed squares of the differences of the hidden states, and of the reference's.
    pub layers: Vec<[f64; 2]>,
}

impl Comparison {
    /// Adds what another part of the text gave.
    pub fn add(&mut self, other: &Self) {
        self.nats += other.nats;
        self.reference_nats += other.reference_nats;
        self.divergences.extend_from_slice(&other.divergences);
        self.same_first += other.same_first;
        self.same_top += other.same_top;
        self.squared_error += other.squared_error;
        self.squared_logits += other.squared_logits;
        self.layers.resize(self.layers.len().max(other.layers.len()), [0.0; 2]);
        for (sums, more) in self.layers.iter_mut().zip(&other.layers) {
            sums[0] += more[0];
            sums[1] += more[1];
        }
    }

    /// Tokens compared.
    pub fn tokens(&self) -> usize {
        self.divergences.len()
    }

    /// Mean divergence.
    pub fn mean_divergence(&self) -> f64 {
        self.divergences.iter().map(|&kl| f64::from(kl)).sum::<f64>() / self.tokens() as f64
    }

    /// The divergence that this share of the tokens does not exceed: 0.5 is the median.
    pub fn divergence_quantile(&self, share: f64) -> f32 {
        let mut sorted = self.divergences.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((share * last as f64).round() as usize).copied().unwrap_or(f32::NAN)
    }

    /// Share of the tokens for which both rank the same first.
    pub fn first_agreement(&self) -> f64 {
        self.same_first as f64 / self.tokens() as f64
    }

    /// Share of the ten first that both have.
    pub fn top_agreement(&self) -> f64 {
        self.same_top as f64 / (self.tokens() * TOP) as f64
    }

    /// Root mean square of the logits' differences, relative to that of the reference's logits.
    pub fn logit_error(&self) -> f64 {
        (self.squared_error / self.squared_logits).sqrt()
    }

    /// The same of the hidden states after each layer.
    pub fn layer_errors(&self) -> impl Iterator<Item = f64> {
        self.layers.iter().map(|[error, state]| (error / state).sqrt())
    }
}

/// Compares `engine` with `reference` on one window of a text: both read `bos` and then `ids`. With `layers`, hidden states are
/// compared too.
///
/// # Errors
/// Those of a pass; [`Error::Vocabularies`] for models with different numbers of tokens or layers.
pub fn compare(
    engine: &mut Engine,
    reference: &mut Engine,
    ids: &[u32],
    bos: u32,
    layers: bool,
    cancel: &AtomicBool,
) -> Result<Comparison, Error> {
    let of = |engine: &Engine| {
        let config = engine.model().config();
        [config.vocab_size, config.layers.len(), config.hidden_size]
    };
    let (shape, expected) = (of(engine), of(reference));
    if shape != expected {
        return Err(Error::Vocabularies { shape, expected });
    }
    let [vocab, _, hidden] = shape;
    let held = vocab.max(if layers { hidden * shape[1] } else { 0 }) * size_of::<f32>();
    let width = (HELD_BYTES / held).clamp(1, engine.max_columns().min(reference.max_columns()));
    let mut sessions = [engine.session()?, reference.session()?];
    let mut found = Comparison::default();
    let inputs: Vec<u32> = std::iter::once(bos).chain(ids.iter().copied()).take(ids.len()).collect();
    let (mut ours, mut theirs) = (Recorder::new(vocab, layers), Recorder::new(vocab, layers));
    for (inputs, targets) in inputs.chunks(width).zip(ids.chunks(width)) {
        let engines = [&mut *engine, &mut *reference];
        for ((engine, session), recorder) in
            engines.into_iter().zip(&mut sessions).zip([&mut ours, &mut theirs])
        {
            recorder.begin(inputs.len());
            let mut states = States { kept: recorder.states.as_mut() };
            let mut options = PassOptions { more: true, cancel: Some(cancel), ..PassOptions::default() };
            let mut sink = Rows { vocab, rows: &mut recorder.rows };
            options.logits = Logits::Each(&mut sink);
            options.observer = Some(&mut states);
            engine.forward(session, inputs, options)?.commit(inputs.len())?;
        }
        for (c, &target) in targets.iter().enumerate() {
            let row = c * vocab..(c + 1) * vocab;
            found.position(&ours.rows[row.clone()], &theirs.rows[row], target as usize);
        }
        if let (Some(ours), Some(theirs)) = (&ours.states, &theirs.states) {
            found.states(ours, theirs);
        }
    }
    Ok(found)
}

impl Comparison {
    fn position(&mut self, ours: &[f32], theirs: &[f32], target: usize) {
        let (our_sum, their_sum) = (log_sum(ours), log_sum(theirs));
        self.nats += our_sum - f64::from(ours[target]);
        self.reference_nats += their_sum - f64::from(theirs[target]);
        let mut divergence = 0.0;
        for (&our, &their) in ours.iter().zip(theirs) {
            let (our, their) = (f64::from(our) - our_sum, f64::from(their) - their_sum);
            divergence += their.exp() * (their - our);
        }
        // Rounding leaves a little below zero where both are the same.
        self.divergences.push(divergence.max(0.0) as f32);
        let (our_top, their_top) = (first(ours), first(theirs));
        self.same_first += usize::from(our_top.first() == their_top.first());
        self.same_top += our_top.iter().filter(|id| their_top.contains(id)).count();
        let mean = |row: &[f32]| row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
        let (our_mean, their_mean) = (mean(ours), mean(theirs));
        for (&our, &their) in ours.iter().zip(theirs) {
            let (our, their) = (f64::from(our) - our_mean, f64::from(their) - their_mean);
            self.squared_error += (our - their).powi(2);
            self.squared_logits += their.powi(2);
        }
    }

    fn states(&mut self, ours: &[Vec<f32>], theirs: &[Vec<f32>]) {
        self.layers.resize(self.layers.len().max(ours.len()), [0.0; 2]);
        for ((sums, ours), theirs) in self.layers.iter_mut().zip(ours).zip(theirs) {
            for (&our, &their) in ours.iter().zip(theirs) {
                sums[0] += f64::from(our - their).powi(2);
                sums[1] += f64::from(their).powi(2);
            }
        }
    }
}

fn log_sum(row: &[f32]) -> f64 {
    let largest = row.iter().fold(f64::NEG_INFINITY, |largest, &x| largest.max(f64::from(x)));
    largest + row.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}

/// The ids of the largest logits, the lower id first of equal ones.
fn first(row: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    let by_rank = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
    if ids.len() > TOP {
        ids.select_nth_unstable_by(TOP - 1, by_rank);
        ids.truncate(TOP);
    }
    ids.sort_unstable_by(by_rank);
    ids
}

/// The logits of a pass, and the hidden states after each layer.
struct Recorder {
    vocab: usize,
    rows: Vec<f32>,
    states: Option<Vec<Vec<f32>>>,
}

impl Recorder {
    fn new(vocab: usize, layers: bool) -> Self {
        Self { vocab, rows: Vec::new(), states: layers.then(Vec::new) }
    }

    fn begin(&mut self, columns: usize) {
        self.rows.clear();
        self.rows.resize(columns * self.vocab, f32::NAN);
        if let Some(states) = &mut self.states {
            states.clear();
        }
    }
}

struct Rows<'a> {
    vocab: usize,
    rows: &'a mut [f32],
}

impl LogitSink for Rows<'_> {
    fn piece(&mut self, first_id: usize, ids: usize, values: &[f32]) -> io::Result<()> {
        for (row, values) in self.rows.chunks_exact_mut(self.vocab).zip(values.chunks_exact(ids)) {
            row[first_id..][..ids].copy_from_slice(values);
        }
        Ok(())
    }
}

struct States<'a> {
    kept: Option<&'a mut Vec<Vec<f32>>>,
}

impl Observer for States<'_> {
    fn layer(&mut self, _layer: usize, _layers: usize, sums: &[f32]) {
        if let Some(kept) = &mut self.kept {
            kept.push(sums.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_no_distance_from_itself_and_some_from_others() {
        let row: Vec<f32> = (0..50).map(|i| (i * 7 % 13) as f32 / 3.0).collect();
        let shifted: Vec<f32> = row.iter().map(|x| x + 2.0).collect();
        let mut found = Comparison::default();
        found.position(&row, &row, 3);
        found.position(&shifted, &row, 3);
        assert!(found.divergences[0] == 0.0 && found.divergences[1] < 1e-6, "{:?}", found.divergences);
        assert!((found.same_first, found.same_top) == (2, 20) && found.logit_error() < 1e-6);
        assert!((found.nats - found.reference_nats).abs() < 1e-6);

        // Two outcomes: 0.8 and 0.2 against 0.5 and 0.5, by hand.
        let logits = |p: f32| vec![p.ln(), (1.0 - p).ln()];
        let mut found = Comparison::default();
        found.position(&logits(0.8), &logits(0.5), 1);
        let expected = 0.5 * (0.5f64 / 0.8).ln() + 0.5 * (0.5f64 / 0.2).ln();
        assert!((f64::from(found.divergences[0]) - expected).abs() < 1e-6);
        assert!((found.nats + 0.2f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn quantiles_are_of_the_sorted_divergences() {
        let divergences = vec![5.0, 1.0, 3.0, 2.0, 4.0];
        let found = Comparison { divergences, ..Comparison::default() };
        assert_eq!([0.0, 0.5, 1.0].map(|share| found.divergence_quantile(share)), [1.0, 3.0, 5.0]);
        assert_eq!(found.mean_divergence(), 3.0);
    }
}
