//! Absorbed MLA attention: queries against the compressed latents, never against expanded keys.
//!
//! Positions come in fixed blocks. Each block is attended by itself and the partial results are merged in block
//! order, so the result does not depend on who attended which block.

use super::{Real, dot, exp};

/// What attention over some positions has found so far, relative to the largest score `max`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionState<F> {
    /// The largest score.
    pub max: F,
    /// `sum over s of exp(score[s] - max)`.
    pub total: F,
}

/// Attends one head's query to the rows of one block.
///
/// `query` is the absorbed query followed by the query's rope part, `rows` is `positions x query.len()`: each row a
/// latent followed by the shared key. `score[s] = dot(query, row s) * scale`; `context` (the width of the latent)
/// becomes `sum over s of exp(score[s] - max) * latent[s]`, one chain per channel in ascending position. `scores` is
/// scratch with one value per position.
///
/// # Panics
/// If there is no position or the lengths do not fit.
#[inline(always)]
pub fn attend_block<F: Real>(
    query: &[F],
    rows: &[F],
    scale: F,
    scores: &mut [F],
    context: &mut [F],
) -> AttentionState<F> {
    assert!(
        !scores.is_empty() && rows.len() == scores.len() * query.len(),
        "one score per row, at least one"
    );
    assert!(context.len() <= query.len(), "the latent is a prefix of a row");
    let mut max = F::neg_infinity();
    for (score, row) in scores.iter_mut().zip(rows.chunks_exact(query.len())) {
        *score = dot(query, row) * scale;
        if *score > max {
            max = *score;
        }
    }
    let mut total = F::zero();
    context.fill(F::zero());
    for (score, row) in scores.iter_mut().zip(rows.chunks_exact(query.len())) {
        *score = exp(*score - max);
        total = total + *score;
        for (context, &latent) in context.iter_mut().zip(row) {
            *context = score.mul_add(latent, *context);
        }
    }
    AttentionState { max, total }
}

/// Merges the result of the next block into that of the blocks before it.
///
/// Both sides are brought to the larger maximum `m`: `total = total_b exp(max_b - m) + total_a exp(max_a - m)`, and the
/// contexts likewise.
///
/// # Panics
/// If the contexts differ in length.
#[inline(always)]
pub fn merge_blocks<F: Real>(
    state: &mut AttentionState<F>,
    context: &mut [F],
    block: AttentionState<F>,
    block_context: &[F],
) {
    assert_eq!(context.len(), block_context.len(), "contexts of one width");
    let max = if block.max > state.max { block.max } else { state.max };
    let (before, after) = (exp(state.max - max), exp(block.max - max));
    *state = AttentionState { max, total: block.total.mul_add(after, state.total * before) };
    for (context, &block) in context.iter_mut().zip(block_context) {
        *context = block.mul_add(after, *context * before);
    }
}

/// Divides the context by the total weight, in place.
#[inline(always)]
pub fn finish_attention<F: Real>(state: AttentionState<F>, context: &mut [F]) {
    let inverse = F::one() / state.total;
    for context in context {
        *context = *context * inverse;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_testing::Seeded;

    fn blocks(query: &[f64], rows: &[f64], block: usize, width: usize) -> Vec<f64> {
        let n = query.len();
        let mut result: Option<(AttentionState<f64>, Vec<f64>)> = None;
        for rows in rows.chunks(block * n) {
            let (mut scores, mut context) = (vec![0.0; rows.len() / n], vec![0.0; width]);
            let state = attend_block(query, rows, 0.3, &mut scores, &mut context);
            match &mut result {
                None => result = Some((state, context)),
                Some((total, sum)) => merge_blocks(total, sum, state, &context),
            }
        }
        let (state, mut context) = result.unwrap();
        finish_attention(state, &mut context);
        context
    }

    #[test]
    fn blocks_give_the_softmax_of_the_whole() {
        let mut seeded = Seeded::new(11);
        let mut wide = |n| seeded.normals(n, 1.5).into_iter().map(f64::from).collect::<Vec<_>>();
        let (query, rows) = (wide(12), wide(12 * 37));
        let scores: Vec<f64> = rows
            .chunks(12)
            .map(|row| 0.3 * row.iter().zip(&query).map(|(a, b)| a * b).sum::<f64>())
            .collect();
        let total: f64 = scores.iter().map(|score| score.exp()).sum();
        let expected: Vec<f64> = (0..8)
            .map(|c| scores.iter().enumerate().map(|(s, score)| score.exp() / total * rows[s * 12 + c]).sum())
            .collect();
        for block in [1, 5, 16, 64] {
            for (found, expected) in blocks(&query, &rows, block, 8).iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-12, "blocks of {block}");
            }
        }
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let rows = [200.0f32, 1.0, 400.0, 2.0];
        let (mut scores, mut context) = ([0.0; 2], [0.0]);
        let state = attend_block(&[1.0, 0.0], &rows, 1.0, &mut scores, &mut context);
        finish_attention(state, &mut context);
        assert_eq!(context[0], 400.0);
    }
}
