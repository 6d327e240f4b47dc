//! The one order in which products along K are summed.

use super::Real;

/// Virtual accumulator lanes along K.
pub const LANES: usize = 8;

/// `sum over k of a[k] * b[k]` in the order of the [module](super) documentation.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    assert_eq!(a.len(), b.len(), "a dot product of two vectors of one length");
    let mut lanes = [F::zero(); LANES];
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for j in 0..LANES {
            lanes[j] = a[j].mul_add(b[j], lanes[j]);
        }
    }
    if !a_tail.is_empty() {
        let (a, b) = (pad(a_tail), pad(b_tail));
        for j in 0..LANES {
            lanes[j] = a[j].mul_add(b[j], lanes[j]);
        }
    }
    fold(lanes)
}

/// Adds the lanes, halves onto halves.
#[inline(always)]
pub fn fold<F: Real>(mut lanes: [F; LANES]) -> F {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for j in 0..width {
            lanes[j] = lanes[j] + lanes[j + width];
        }
    }
    lanes[0]
}

/// The last, incomplete step of a row, padded with zeros.
#[inline(always)]
fn pad<F: Real>(tail: &[F]) -> [F; LANES] {
    let mut padded = [F::zero(); LANES];
    padded[..tail.len()].copy_from_slice(tail);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_testing::{Seeded, gamma};

    #[test]
    fn the_order_is_lanes_then_halves() {
        // A value of 2^24 swallows a 1 that is added to it: the result tells the order.
        let mut a = vec![0.0f32; 16];
        (a[0], a[1], a[8]) = (16_777_216.0, -16_777_216.0, 1.0);
        // Lane 0 holds 2^24 + 1, rounded to 2^24; lane 1 cancels it.
        assert_eq!(dot(&a, &[1.0; 16]), 0.0);
        // In lane 4 the 1 meets lane 0 first, in lane 2 after lane 0 has met lane 4: swallowed all the same.
        a[8] = 0.0;
        a[3] = 1.0;
        // Lanes 1 and 3 meet in the second fold, lanes 0 and 2 beside them, then the two sums.
        assert_eq!(dot(&a, &[1.0; 16]), 1.0);
    }

    #[test]
    fn the_error_stays_below_the_bound_of_a_sum_of_products() {
        let mut seeded = Seeded::new(5);
        for n in [0, 1, 7, 8, 9, 63, 64, 65, 7168] {
            let (a, b) = (seeded.normals(n, 1.0), seeded.normals(n, 1.0));
            let exact: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            let size: f64 = a.iter().zip(&b).map(|(&a, &b)| (f64::from(a) * f64::from(b)).abs()).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() <= gamma(n.max(1)) * size, "n = {n}");
        }
    }
}
