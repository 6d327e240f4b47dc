//! Kimi Delta Attention: a gated delta rule with one decay per key channel.

use super::{Real, exp, sigmoid, softplus};

/// The two forms of the decay gate; the family knows no third. In both, `z` already holds `dt_bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "complete")]
pub enum Decay<F> {
    /// `exp(lower_bound * sigmoid(exp(a_log) z))`: Kimi K3, with a bound of -5.
    Bounded {
        /// The most negative logarithm of a decay.
        lower_bound: F,
    },
    /// `exp(-exp(a_log) softplus(z))`: Kimi-Linear; chosen when a configuration has no bound.
    Softplus,
}

/// The decay of each key channel of one head, in place over `z`.
///
/// `rate` is `exp(a_log)` of the head.
#[inline(always)]
pub fn decay<F: Real>(z: &mut [F], rate: F, form: Decay<F>) {
    match form {
        Decay::Bounded { lower_bound } => {
            for z in z {
                *z = exp(lower_bound * sigmoid(rate * *z));
            }
        }
        Decay::Softplus => {
            for z in z {
                *z = exp(-(rate * softplus(*z)));
            }
        }
    }
}

/// One column of one head: updates `state` and writes the head's output to `out`.
///
/// With the state `S[key, value]` (row-major, `k.len() x v.len()`), in this order:
/// `S <- diag(decay) S`; `u = beta (v - S^T k)`; `S <- S + k u^T`; `out = S^T q`.
/// Sums over keys are one chain per value channel in ascending key order. `u` is scratch of `v.len()` values.
///
/// # Panics
/// If the lengths do not fit.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the operands of one formula")]
pub fn kda_step<F: Real>(
    state: &mut [F],
    q: &[F],
    k: &[F],
    v: &[F],
    decay: &[F],
    beta: F,
    u: &mut [F],
    out: &mut [F],
) {
    let (keys, values) = (k.len(), v.len());
    assert!(q.len() == keys && decay.len() == keys, "q, k and the decay have one value per key channel");
    assert!(u.len() == values && out.len() == values, "v, u and out have one value per value channel");
    assert_eq!(state.len(), keys * values, "the state is keys x values");
    u.fill(F::zero());
    for ((row, &decay), &k) in state.chunks_exact_mut(values).zip(decay).zip(k) {
        for (s, u) in row.iter_mut().zip(u.iter_mut()) {
            *s = *s * decay;
            *u = k.mul_add(*s, *u);
        }
    }
    for (u, &v) in u.iter_mut().zip(v) {
        *u = beta * (v - *u);
    }
    out.fill(F::zero());
    for ((row, &k), &q) in state.chunks_exact_mut(values).zip(k).zip(q) {
        for ((s, &u), out) in row.iter_mut().zip(u.iter()).zip(out.iter_mut()) {
            *s = k.mul_add(u, *s);
            *out = q.mul_add(*s, *out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prediction_sees_the_decayed_state_and_the_output_the_updated_one() {
        // One key and one value channel: S = 2, decay 1/2, k = 3, v = 10, beta = 1/4, q = 5.
        let (mut state, mut u, mut out) = ([2.0f64], [0.0], [0.0]);
        kda_step(&mut state, &[5.0], &[3.0], &[10.0], &[0.5], 0.25, &mut u, &mut out);
        // S = 1; error 10 - 3 = 7; u = 1.75; S = 1 + 3 * 1.75 = 6.25; out = 31.25.
        assert_eq!((state[0], u[0], out[0]), (6.25, 1.75, 31.25));
    }

    #[test]
    fn the_bounded_decay_is_a_sigmoid_and_no_clamp() {
        let (z, rate) = (0.7f64, 1.3f64);
        let mut bounded = [z];
        decay(&mut bounded, rate, Decay::Bounded { lower_bound: -5.0 });
        assert!((bounded[0] - (-5.0 / (1.0 + (-rate * z).exp())).exp()).abs() < 1e-12);
        let mut soft = [z];
        decay(&mut soft, rate, Decay::Softplus);
        assert!((soft[0] - (-rate * z.exp().ln_1p()).exp()).abs() < 1e-12);
    }

    #[test]
    fn a_decay_near_its_bounds_stays_inside_them() {
        let mut z = [1e30f32, -1e30, 0.0];
        decay(&mut z, 2.0, Decay::Bounded { lower_bound: -5.0 });
        assert_eq!(z[1], 1.0);
        assert!((z[0] - 0.006_737_947).abs() < 1e-8 && z[0] < z[2] && z[2] < 1.0);
    }

    #[test]
    fn a_zero_raw_beta_acts_as_one_half() {
        // sigmoid(0) = 0.5: half of the error is written, not none of it.
        let (mut state, mut u, mut out) = ([0.0f32], [0.0], [0.0]);
        kda_step(&mut state, &[1.0], &[1.0], &[8.0], &[1.0], sigmoid(0.0), &mut u, &mut out);
        assert_eq!(out[0], 4.0);
    }
}
