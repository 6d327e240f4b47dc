//! Normalisations.

use super::{Real, dot};

/// `out = x / sqrt(mean(x^2) + epsilon) * weight` for each row of `weight.len()` values (Zhang and Sennrich, *Root Mean
/// Square Layer Normalization*). `x` and `out` are `w x weight.len()`.
///
/// # Panics
/// If `x` and `out` differ in length or are no whole number of rows.
#[inline(always)]
pub fn rms_norm<F: Real>(x: &[F], weight: &[F], epsilon: F, out: &mut [F]) {
    let n = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(n), "whole rows of {n} values in and out");
    let count = <F as From<f32>>::from(n as f32);
    for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        let inverse = F::one() / (dot(x, x) / count + epsilon).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * inverse * weight;
        }
    }
}

/// Scales each row of `n` values to unit length, then by `scale`: `x / sqrt(sum(x^2) + epsilon) * scale`, in place.
///
/// # Panics
/// If `x` is no whole number of rows.
#[inline(always)]
pub fn l2_norm<F: Real>(x: &mut [F], n: usize, epsilon: F, scale: F) {
    assert!(x.len().is_multiple_of(n), "whole rows of {n} values");
    for x in x.chunks_exact_mut(n) {
        let inverse = F::one() / (dot(x, x) + epsilon).sqrt();
        for x in x {
            *x = *x * inverse * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epsilon_stands_under_the_root() {
        let mut out = [0.0f64; 2];
        rms_norm(&[3e-3, 4e-3], &[1.0, 2.0], 1e-5, &mut out);
        let inverse = 1.0 / (12.5e-6f64 + 1e-5).sqrt();
        assert!((out[0] - 3e-3 * inverse).abs() < 1e-12 && (out[1] - 8e-3 * inverse).abs() < 1e-12);

        let mut x = [3e-3f64, 4e-3];
        l2_norm(&mut x, 2, 1e-6, 0.5);
        assert!((x[1] - 0.5 * 4e-3 / (25e-6f64 + 1e-6).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn rows_do_not_see_each_other() {
        let x = [1.0f32, 2.0, 3.0, 400.0, 500.0, 600.0];
        let (mut both, mut one) = ([0.0; 6], [0.0; 3]);
        rms_norm(&x, &[1.0, 0.5, 2.0], 1e-5, &mut both);
        rms_norm(&x[3..], &[1.0, 0.5, 2.0], 1e-5, &mut one);
        assert_eq!(both[3..], one);
    }
}
