//! How well a model predicts a text.

mod compare;

use std::io;
use std::sync::atomic::AtomicBool;

use crate::engine::Engine;
use crate::error::Error;
use crate::pass::{LogitSink, Logits, PassOptions};

pub use compare::{Comparison, compare};

/// The loss of a model on a text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Loss {
    /// Tokens predicted.
    pub tokens: usize,
    /// Sum of the negative natural logarithms of the probabilities of all tokens.
    pub nats: f64,
    /// The same for each window.
    pub window_nats: Vec<f64>,
}

impl Loss {
    /// Mean over the tokens.
    pub fn nats_per_token(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// `e` to the mean.
    pub fn perplexity(&self) -> f64 {
        self.nats_per_token().exp()
    }
}

/// Predicts every token of `ids` once: the text is cut into consecutive windows of `window` tokens (the last may be
/// shorter), and each window is read in a session of its own after `bos`.
///
/// # Errors
/// Those of a pass.
pub fn evaluate(engine: &mut Engine, ids: &[u32], window: usize, bos: u32) -> Result<Loss, Error> {
    let mut loss = Loss { tokens: ids.len(), nats: 0.0, window_nats: Vec::new() };
    for targets in ids.chunks(window) {
        let nats = window_nats(engine, targets, bos, &AtomicBool::new(false))?;
        loss.nats += nats;
        loss.window_nats.push(nats);
    }
    Ok(loss)
}

/// The summed loss of one window, read after `bos` in a session of its own.
///
/// # Errors
/// Those of a pass; [`Error::Cancelled`] soon after `cancel` became true.
pub fn window_nats(
    engine: &mut Engine,
    targets: &[u32],
    bos: u32,
    cancel: &AtomicBool,
) -> Result<f64, Error> {
    let mut session = engine.session()?;
    let inputs: Vec<u32> = std::iter::once(bos).chain(targets.iter().copied()).take(targets.len()).collect();
    let mut nats = 0.0;
    let width = engine.max_columns();
    for (inputs, targets) in inputs.chunks(width).zip(targets.chunks(width)) {
        let mut sink = LossSink::new(targets);
        let options = PassOptions {
            logits: Logits::Each(&mut sink),
            more: true,
            cancel: Some(cancel),
            ..PassOptions::default()
        };
        engine.forward(&mut session, inputs, options)?.commit(inputs.len())?;
        nats += sink.nats();
    }
    Ok(nats)
}

/// Gathers `log sum exp` of each column while the vocabulary passes by, and the logit of the target.
struct LossSink<'a> {
    targets: &'a [u32],
    /// Per column: the largest logit so far, and the sum of `exp(logit - largest)`.
    sums: Vec<(f64, f64)>,
    target_logits: Vec<f64>,
}

impl<'a> LossSink<'a> {
    fn new(targets: &'a [u32]) -> Self {
        let sums = vec![(f64::NEG_INFINITY, 0.0); targets.len()];
        Self { targets, sums, target_logits: vec![f64::NAN; targets.len()] }
    }

    fn nats(&self) -> f64 {
        let columns = self.sums.iter().zip(&self.target_logits);
        columns.map(|((largest, sum), target)| largest + sum.ln() - target).sum()
    }
}

impl LogitSink for LossSink<'_> {
    fn piece(&mut self, first_id: usize, ids: usize, values: &[f32]) -> io::Result<()> {
        for (c, logits) in values.chunks_exact(ids).enumerate() {
            let (largest, sum) = &mut self.sums[c];
            let here = logits.iter().fold(*largest, |largest, &logit| largest.max(f64::from(logit)));
            *sum *= (*largest - here).exp();
            *sum += logits.iter().map(|&logit| (f64::from(logit) - here).exp()).sum::<f64>();
            *largest = here;
            let target = (self.targets[c] as usize).wrapping_sub(first_id);
            if let Some(&logit) = logits.get(target) {
                self.target_logits[c] = f64::from(logit);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_give_the_loss_of_the_whole() {
        let logits = [[0.5f32, -1.0, 3.0, 1000.0], [2.0, 2.5, -7.0, 0.0]];
        let targets = [2, 1];
        let expected: f64 = logits
            .iter()
            .zip(targets)
            .map(|(row, target)| {
                let largest = row.iter().copied().fold(f32::MIN, f32::max);
                let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
                sum.ln() + f64::from(largest - row[target as usize])
            })
            .sum();
        for cut in 1..4 {
            let mut sink = LossSink::new(&targets);
            let part =
                |range: std::ops::Range<usize>| [&logits[0][range.clone()], &logits[1][range]].concat();
            sink.piece(0, cut, &part(0..cut)).unwrap();
            sink.piece(cut, 4 - cut, &part(cut..4)).unwrap();
            assert!((sink.nats() - expected).abs() < 1e-9);
        }
    }
}
