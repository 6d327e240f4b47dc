//! Pointwise gates.

use super::{Real, sigmoid, tanh};

/// [`sigmoid`] of every value, in place.
#[inline(always)]
pub fn sigmoid_all<F: Real>(x: &mut [F]) {
    for x in x {
        *x = sigmoid(*x);
    }
}

/// `x * sigmoid(x)`, in place.
#[inline(always)]
pub fn silu<F: Real>(x: &mut [F]) {
    for x in x {
        *x = *x * sigmoid(*x);
    }
}

/// `x * sigmoid(gate)`, in place.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub fn gate<F: Real>(x: &mut [F], gate: &[F]) {
    assert_eq!(x.len(), gate.len(), "one gate per value");
    for (x, &gate) in x.iter_mut().zip(gate) {
        *x = *x * sigmoid(gate);
    }
}

/// The SiLU gated unit (SwiGLU), in place over the gate branch: `gate * sigmoid(gate) * up`.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub fn swiglu<F: Real>(gate: &mut [F], up: &[F]) {
    assert_eq!(gate.len(), up.len(), "one linear value per gate");
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = *gate * sigmoid(*gate) * up;
    }
}

/// The constants of the SiTU gated unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Situ<F> {
    /// Soft cap of the gate branch.
    pub beta: F,
    /// Soft cap of the linear branch; `None` leaves it as it is.
    pub linear_beta: Option<F>,
}

/// SiTU, in place over the gate branch:
/// `beta tanh(gate / beta) * sigmoid(gate) * linear_beta tanh(up / linear_beta)`.
///
/// The sigmoid takes the gate before the cap.
///
/// # Panics
/// If the slices differ in length.
#[inline(always)]
pub fn situ<F: Real>(gate: &mut [F], up: &[F], constants: Situ<F>) {
    assert_eq!(gate.len(), up.len(), "one linear value per gate");
    let beta = constants.beta;
    match constants.linear_beta {
        Some(linear) => {
            for (gate, &up) in gate.iter_mut().zip(up) {
                *gate = beta * tanh(*gate / beta) * sigmoid(*gate) * (linear * tanh(up / linear));
            }
        }
        None => {
            for (gate, &up) in gate.iter_mut().zip(up) {
                *gate = beta * tanh(*gate / beta) * sigmoid(*gate) * up;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swiglu_is_silu_times_the_linear_branch() {
        let (mut gate, mut plain) = ([1.5f32, -0.25, 0.0], [1.5f32, -0.25, 0.0]);
        let up = [3.0, -2.0, 7.0];
        swiglu(&mut gate, &up);
        silu(&mut plain);
        assert_eq!(gate, [plain[0] * up[0], plain[1] * up[1], 0.0]);
    }

    #[test]
    fn situ_caps_both_branches_but_not_the_sigmoid() {
        let constants = Situ { beta: 4.0f64, linear_beta: Some(25.0) };
        let mut gate = [8.0, -8.0];
        situ(&mut gate, &[100.0, 1.0], constants);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert!((gate[0] - 4.0 * 2f64.tanh() * sigmoid(8.0) * 25.0 * 4f64.tanh()).abs() < 1e-9);
        assert!((gate[1] + 4.0 * 2f64.tanh() * sigmoid(-8.0) * 25.0 * 0.04f64.tanh()).abs() < 1e-9);

        let mut uncapped = [8.0];
        situ(&mut uncapped, &[100.0], Situ { linear_beta: None, ..constants });
        assert!((uncapped[0] - 4.0 * 2f64.tanh() * sigmoid(8.0) * 100.0).abs() < 1e-9);
    }
}
