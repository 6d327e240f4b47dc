//! Sums of whole vectors: residuals, expert outputs, and attention over the residual stream.

use super::{Real, dot, exp};

/// `x += y`.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub fn add<F: Real>(x: &mut [F], y: &[F]) {
    assert_eq!(x.len(), y.len(), "vectors of one length");
    for (x, &y) in x.iter_mut().zip(y) {
        *x = *x + y;
    }
}

/// `sum += weight * x`, one fused multiply-add per element.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub fn accumulate<F: Real>(sum: &mut [F], weight: F, x: &[F]) {
    assert_eq!(sum.len(), x.len(), "vectors of one length");
    for (sum, &x) in sum.iter_mut().zip(x) {
        *sum = weight.mul_add(x, *sum);
    }
}

/// Attention over the residual stream (Attention Residuals): a softmax-weighted sum of `sources` for one column.
///
/// With `key` the elementwise product of the mix's norm and projection vectors,
/// `score[j] = dot(source j, key) / sqrt(mean(source j ^2) + epsilon)`, `p = softmax(score)` and
/// `out = sum over j of p[j] * source j`. Keys are normalised, values are raw. `scores` is scratch with one value per
/// source. `out` must not be one of the sources, which the borrow checker sees to.
///
/// # Panics
/// If there is no source or the lengths do not fit.
#[inline(always)]
pub fn mix<F: Real>(sources: &[&[F]], key: &[F], epsilon: F, scores: &mut [F], out: &mut [F]) {
    assert!(!sources.is_empty() && sources.len() == scores.len(), "one score per source, at least one");
    let count = <F as From<f32>>::from(key.len() as f32);
    let mut max = F::neg_infinity();
    for (score, source) in scores.iter_mut().zip(sources) {
        let inverse = F::one() / (dot(source, source) / count + epsilon).sqrt();
        *score = dot(source, key) * inverse;
        if *score > max {
            max = *score;
        }
    }
    let mut total = F::zero();
    for score in scores.iter_mut() {
        *score = exp(*score - max);
        total = total + *score;
    }
    out.fill(F::zero());
    for (&score, source) in scores.iter().zip(sources) {
        accumulate(out, score / total, source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_normalised_and_values_are_not() {
        let (a, b, key) = ([3.0f64, 4.0], [30.0f64, 40.0], [0.5, 0.25]);
        let (mut scores, mut out) = ([0.0; 2], [0.0; 2]);
        mix(&[&a, &b], &key, 0.0, &mut scores, &mut out);
        // The sources point one way, so their scores are equal and the mix is their mean.
        assert!((out[0] - 16.5).abs() < 1e-12 && (out[1] - 22.0).abs() < 1e-12);
    }

    #[test]
    fn one_source_is_returned_as_it_is() {
        let (mut scores, mut out) = ([0.0f32; 1], [0.0f32; 3]);
        mix(&[&[1.5, -2.5, 1e10]], &[1.0, 2.0, 3.0], 1e-5, &mut scores, &mut out);
        assert_eq!(out, [1.5, -2.5, 1e10]);
    }
}
