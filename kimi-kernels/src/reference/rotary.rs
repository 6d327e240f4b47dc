//! Rotary position embedding.

use super::Real;

/// Turns the pairs `(x[2j], x[2j + 1])` of each vector in `x` by the angle whose cosine and sine are `cos[j]` and `sin[j]`:
/// `(a, b)` becomes `(a cos - b sin, b cos + a sin)`, in place.
///
/// `x` is any number of vectors of `2 * cos.len()` values. A factor on the attention can be part of `cos` and `sin`.
/// Every product is rounded before it is added, so no instruction set needs a fused operation here.
///
/// # Panics
/// If `cos` and `sin` differ in length, or `x` is no whole number of vectors.
#[inline(always)]
pub fn rotate<F: Real>(x: &mut [F], cos: &[F], sin: &[F]) {
    assert_eq!(cos.len(), sin.len(), "a sine to each cosine");
    assert!(x.len().is_multiple_of((2 * cos.len()).max(1)), "whole vectors");
    for vector in x.chunks_exact_mut((2 * cos.len()).max(1)) {
        for ((pair, &cos), &sin) in vector.chunks_exact_mut(2).zip(cos).zip(sin) {
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * cos - b * sin;
            pair[1] = b * cos + a * sin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_turned_together() {
        let (cos, sin) = ([0.0f64, 1.0], [1.0f64, 0.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rotate(&mut x, &cos, &sin);
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
    }

    #[test]
    fn the_product_of_two_turned_vectors_depends_on_the_difference_of_the_angles() {
        let turned = |x: [f64; 2], angle: f64| {
            let mut x = x;
            rotate(&mut x, &[angle.cos()], &[angle.sin()]);
            x
        };
        let dot = |a: [f64; 2], b: [f64; 2]| a[0] * b[0] + a[1] * b[1];
        let (q, k) = ([0.3, -1.1], [0.8, 0.4]);
        let near = dot(turned(q, 5.0), turned(k, 3.5));
        let far = dot(turned(q, 105.0), turned(k, 103.5));
        assert!((near - far).abs() < 1e-12);
    }
}
