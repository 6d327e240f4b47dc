//! How far decoded weights are from the originals.

use num_traits::Float;

/// Distance of an approximation from the original values, computed in float64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorSummary {
    /// Root of the squared error over the squared signal; 0 when both are zero.
    pub relative_rms: f64,
    /// Largest absolute difference.
    pub max_absolute: f64,
    /// Signal over quantization noise in decibels; infinite when the values are equal.
    pub sqnr_db: f64,
    /// Cosine of the angle between the two vectors; 1 when both are zero.
    pub cosine: f64,
}

/// [`ErrorSummary`] of a matrix, and of the row that comes out worst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixError {
    /// All weights.
    pub total: ErrorSummary,
    /// The row with the largest relative error; 0 in a matrix without rows.
    pub worst_row: usize,
    /// Its relative RMS error.
    pub worst_row_relative_rms: f64,
}

/// Compares an approximation of a matrix of `cols` columns with the original.
///
/// # Panics
/// If the slices differ in length, or are no whole number of rows.
pub fn compare_rows(original: &[f32], approximation: &[f32], cols: usize) -> MatrixError {
    assert!(cols > 0 && original.len().is_multiple_of(cols), "whole rows");
    let total = compare(original, approximation);
    let mut worst = (0, 0.0);
    for (row, (a, b)) in original.chunks_exact(cols).zip(approximation.chunks_exact(cols)).enumerate() {
        let error = compare(a, b).relative_rms;
        if error > worst.1 {
            worst = (row, error);
        }
    }
    MatrixError { total, worst_row: worst.0, worst_row_relative_rms: worst.1 }
}

/// Compares an approximation with the original, value by value.
///
/// # Panics
/// If the slices differ in length.
pub fn compare(original: &[f32], approximation: &[f32]) -> ErrorSummary {
    assert_eq!(original.len(), approximation.len(), "one approximation per value");
    let (mut signal, mut noise, mut other, mut dot, mut max_absolute) = (0.0, 0.0, 0.0, 0.0, 0.0f64);
    for (&a, &b) in original.iter().zip(approximation) {
        let (a, b) = (f64::from(a), f64::from(b));
        signal += a * a;
        other += b * b;
        dot += a * b;
        noise += (a - b) * (a - b);
        max_absolute = max_absolute.max((a - b).abs());
    }
    let ratio = if noise == 0.0 { 0.0 } else { noise / signal };
    ErrorSummary {
        relative_rms: Float::sqrt(ratio),
        max_absolute,
        sqnr_db: if noise == 0.0 { f64::INFINITY } else { -10.0 * Float::log10(ratio) },
        cosine: if signal == 0.0 && other == 0.0 { 1.0 } else { dot / Float::sqrt(signal * other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_difference_gives_known_figures() {
        let error = compare(&[3.0, 4.0], &[3.0, 4.5]);
        assert_eq!(error.max_absolute, 0.5);
        assert!((error.relative_rms - 0.1).abs() < f64::EPSILON);
        assert!((error.sqnr_db - 20.0).abs() < 1e-12);
    }

    #[test]
    fn the_worst_row_is_found() {
        let error = compare_rows(&[1.0, 1.0, 2.0, 2.0], &[1.0, 1.0, 2.0, 1.0], 2);
        assert_eq!((error.worst_row, error.total.max_absolute), (1, 1.0));
        assert!((error.worst_row_relative_rms - 0.125f64.sqrt()).abs() < 1e-12);
        assert_eq!(compare_rows(&[1.0], &[1.0], 1).worst_row_relative_rms, 0.0);
    }

    #[test]
    fn equal_and_zero_vectors_are_perfect() {
        for values in [[0.0, 0.0], [1.0, -2.0]] {
            let error = compare(&values, &values);
            assert_eq!((error.relative_rms, error.max_absolute), (0.0, 0.0));
            assert!((error.cosine - 1.0).abs() < 1e-12 && error.sqnr_db == f64::INFINITY);
        }
        assert_eq!(compare(&[0.0], &[1.0]).relative_rms, f64::INFINITY);
    }
}
