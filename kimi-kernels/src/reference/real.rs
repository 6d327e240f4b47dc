//! The elementary functions that the models need, the same bits on every processor.
//!
//! At `f32` they are polynomials made of multiply-adds, divisions and integer shifts, all of which IEEE 754 defines to
//! the bit; no maths library takes part. Coefficients come from `tools/minimax.py`. At `f64` they are the standard
//! library's, to compare with.

use num_traits::Float;

/// The two types that the reference is written for.
pub trait Real: Float + From<f32> + std::fmt::Debug + Send + Sync + 'static {
    /// `e^x`; below -104 it is 0, above 88.73 infinite.
    fn real_exp(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn real_sigmoid(self) -> Self;
    /// The hyperbolic tangent.
    fn real_tanh(self) -> Self;
    /// `ln(1 + e^x)`.
    fn real_softplus(self) -> Self;
}

/// `e^x`.
#[inline(always)]
pub fn exp<F: Real>(x: F) -> F {
    x.real_exp()
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<F: Real>(x: F) -> F {
    x.real_sigmoid()
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh<F: Real>(x: F) -> F {
    x.real_tanh()
}

/// `ln(1 + e^x)`.
#[inline(always)]
pub fn softplus<F: Real>(x: F) -> F {
    x.real_softplus()
}

impl Real for f64 {
    fn real_exp(self) -> Self {
        self.exp()
    }

    fn real_sigmoid(self) -> Self {
        let e = (-self.abs()).exp();
        (if self >= 0.0 { 1.0 } else { e }) / (1.0 + e)
    }

    fn real_tanh(self) -> Self {
        self.tanh()
    }

    fn real_softplus(self) -> Self {
        self.max(0.0) + (-self.abs()).exp().ln_1p()
    }
}

/// Adding it leaves the integer part of a small number in the low mantissa bits, rounded to nearest even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
const LN2_HI: f32 = std::f32::consts::LN_2;
/// `ln 2 - LN2_HI`.
const LN2_LO: f32 = -1.904_654_3e-9;

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `c[0] z^n + c[1] z^(n-1) + ... + c[n]` by Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(z: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for c in &coefficients[1..] {
        sum = sum.mul_add(z, *c);
    }
    sum
}

impl Real for f32 {
    /// `x = n ln 2 + r`, `e^x = 2^n (1 + r + r^2 p(r))`; the power is applied in two factors, so that results down to
    /// the smallest subnormal are rounded once.
    #[inline(always)]
    fn real_exp(self) -> Self {
        let x = if self > 89.0 { 89.0 } else { self };
        let x = if x < -104.0 { -104.0 } else { x };
        let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
        let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        let whole = shifted - ROUND;
        let r = whole.mul_add(-LN2_LO, whole.mul_add(-LN2_HI, x));
        let p = polynomial(
            r,
            [0.000_198_909_91, 0.001_393_365, 0.008_333_310_5, 0.041_666_467, 0.166_666_67, 0.5],
        );
        let fraction = (r * r).mul_add(p, r) + 1.0;
        let half = n >> 1;
        fraction * power_of_two(half) * power_of_two(n.wrapping_sub(half))
    }

    #[inline(always)]
    fn real_sigmoid(self) -> Self {
        let e = (-self.abs()).real_exp();
        (if self >= 0.0 { 1.0 } else { e }) / (1.0 + e)
    }

    /// `x + x z p(z)` with `z = x^2` up to 0.625, beyond it `(1 - e) / (1 + e)` with `e = e^-2|x|`.
    #[inline(always)]
    fn real_tanh(self) -> Self {
        let magnitude = self.abs();
        let z = magnitude * magnitude;
        let p = polynomial(
            z,
            [0.002_292_744_8, -0.008_343_945, 0.021_768_918, -0.053_959_258, 0.133_333_04, -0.333_333_34],
        );
        let small = (magnitude * z).mul_add(p, magnitude);
        let e = (-2.0 * magnitude).real_exp();
        let large = (1.0 - e) / (1.0 + e);
        (if magnitude <= 0.625 { small } else { large }).copysign(self)
    }

    /// `max(x, 0) + ln(1 + y)` with `y = e^-|x|` and `ln(1 + y) = 2 artanh(y / (2 + y))`.
    #[inline(always)]
    fn real_softplus(self) -> Self {
        let y = (-self.abs()).real_exp();
        let s = y / (2.0 + y);
        let z = s * s;
        let p = polynomial(z, [0.116_121_65, 0.108_532_876, 0.142_961_79, 0.199_998_53, 0.333_333_34]);
        let logarithm = (s * z).mul_add(p, s) * 2.0;
        (if self > 0.0 { self } else { 0.0 }) + logarithm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units in the last place of the exact value, at least those of the smallest normal number.
    fn ulps(value: f32, exact: f64) -> f64 {
        let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
        (f64::from(value) - exact).abs() / (exponent - 23.0).exp2()
    }

    /// Every 1009th float32 between two bounds, of both signs.
    fn sweep(bound: f32) -> impl Iterator<Item = f32> {
        (0..=bound.to_bits()).step_by(1009).flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
    }

    fn worst(bound: f32, f: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        sweep(bound).map(|x| ulps(f(x), exact(f64::from(x)))).fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_small_everywhere() {
        // Found on this sweep: 0.94, 2.01, 1.48 and 2.55 units in the last place.
        assert!(worst(87.0, exp, f64::exp) <= 1.0);
        assert!(worst(87.0, sigmoid, sigmoid::<f64>) <= 2.25);
        assert!(worst(20.0, tanh, f64::tanh) <= 1.75);
        assert!(worst(80.0, softplus, softplus::<f64>) <= 2.75);
    }

    #[test]
    fn exp_reaches_into_the_subnormals_and_to_infinity() {
        assert_eq!(exp(0.0f32), 1.0);
        assert_eq!(exp(-103.0f32).to_bits(), 1);
        assert_eq!(exp(-104.5f32), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(88.8f32), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(88.7f32).is_finite());
        for x in [-88.0f32, -95.0, -100.0] {
            assert!(ulps(exp(x), f64::from(x).exp()) <= 0.6, "{x}");
        }
    }

    #[test]
    fn limits_and_signs_hold() {
        assert_eq!(sigmoid(0.0f32), 0.5);
        assert_eq!((sigmoid(200.0f32), sigmoid(-200.0f32)), (1.0, 0.0));
        assert_eq!((tanh(50.0f32), tanh(-50.0f32)), (1.0, -1.0));
        assert_eq!(tanh(-0.0f32).to_bits(), (-0.0f32).to_bits());
        assert_eq!((softplus(100.0f32), softplus(-200.0f32)), (100.0, 0.0));
        assert_eq!((softplus(f32::INFINITY), softplus(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
    }

    #[test]
    fn nan_goes_in_and_out() {
        for f in [exp::<f32>, sigmoid, tanh, softplus] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
