//! Bounds and comparisons with a reason behind them.

/// `gamma(n) = n u / (1 - n u)` with `u = 2^-24`: the relative error bound of a sum of `n` float32 products
/// in any order (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1).
pub fn gamma(n: usize) -> f64 {
    let nu = n as f64 * f64::powi(2.0, -24);
    nu / (1.0 - nu)
}

/// True when two slices hold the same bits, every NaN counting as the same: the payload and the sign of a
/// NaN that an operation makes differ between processors.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}
