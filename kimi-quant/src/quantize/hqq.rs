//! Half-quadratic zero points.

use num_traits::Float;

use super::Grid;
use super::choose::{Chooser, inverse, round};

/// The norm of the error that is minimised, and the schedule of its half-quadratic form, as published.
const NORM: f32 = 0.7;
const BETA: f32 = 10.0;
const GROWTH: f32 = 1.01;
const ROUNDS: usize = 20;

/// Moves the zero point of a grid. In between it is a real number; the result is the nearest that can be stored.
///
/// Each round splits the error in a sparse part, by the shrinkage of the norm, and the rest, whose mean moves the zero point.
pub(super) fn optimise(chooser: &Chooser, grid: Grid, weights: &[f32]) -> Grid {
    let inverse = inverse(grid.scale);
    let [low, high] = chooser.format.bits().range().map(|code| code as f32);
    let (mut zero, mut beta) = (grid.zero as f32, BETA);
    let mut best = (f32::INFINITY, zero);
    for _ in 0..ROUNDS {
        let (mut shift, mut error) = (0.0, 0.0);
        for &weight in weights {
            let code = round(weight * inverse + zero).clamp(low, high);
            let difference = weight - (code - zero) * grid.scale;
            let magnitude = difference.abs();
            error += magnitude;
            let shrunk =
                (magnitude - Float::powf(magnitude, NORM - 1.0) / beta).max(0.0).copysign(difference);
            shift += code - (weight - shrunk) * inverse;
        }
        if error >= best.0 || error.is_nan() {
            break;
        }
        best = (error, zero);
        zero = (shift / weights.len() as f32).clamp(low, high);
        beta *= GROWTH;
    }
    Grid { zero: round(best.1) as i32, ..grid }
}
