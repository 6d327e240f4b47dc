//! The scale and zero point of one group.

use super::{Grid, Method, hqq};
use crate::IntFormat;
use crate::int::{CODEBOOK_VALUES, Levels};

/// Adding it to a number below 2^22 and taking it away again rounds to the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Rounds to the nearest integer, ties to even; magnitudes from 2^22 on are left to a clamp.
#[inline(always)]
pub(crate) fn round(x: f32) -> f32 {
    (x.clamp(-4_194_304.0, 4_194_304.0) + ROUND) - ROUND
}

/// [`round`], between limits of small magnitude. One comparison less, and never a NaN: that becomes `low`.
#[inline(always)]
fn round_within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    (x + ROUND) - ROUND
}

/// Columns of the largest group.
const MAX_GROUP: usize = 128;

/// Finds grids for groups of one format.
#[derive(Debug)]
pub(super) struct Chooser {
    pub(super) format: IntFormat,
    method: Method,
    codebook: [f32; CODEBOOK_VALUES],
    /// Between each two levels of the codebook.
    middles: [f32; CODEBOOK_VALUES - 1],
}

impl Chooser {
    pub(super) fn new(format: IntFormat, method: Method, codebook: [i8; CODEBOOK_VALUES]) -> Self {
        let codebook = codebook.map(f32::from);
        let mut middles = [0.0; CODEBOOK_VALUES - 1];
        for (middle, pair) in middles.iter_mut().zip(codebook.windows(2)) {
            *middle = (pair[0] + pair[1]) / 2.0;
        }
        Self { format, method, codebook, middles }
    }

    /// The grid for a group.
    pub(super) fn choose(&self, weights: &[f32], importance: &[f32]) -> Grid {
        let (mut min, mut max) = (0.0f32, 0.0f32);
        for &weight in weights {
            min = min.min(weight);
            max = max.max(weight);
        }
        let zero = self.format.bits().middle();
        if min == 0.0 && max == 0.0 {
            return Grid { scale: 0.0, zero };
        }
        match (self.method, self.format.levels()) {
            (Method::AbsMax, Levels::ZeroPoint) => self.range_grid(min, max),
            (Method::AbsMax, _) => self.grid(max.max(-min) / self.reach()[1], zero),
            (Method::Hqq, Levels::ZeroPoint) => {
                let grid = hqq::optimise(self, self.range_grid(min, max), weights);
                self.refine(grid, weights, importance)
            }
            (_, Levels::ZeroPoint) => self.search_zero_point(min, max, weights, importance),
            _ => self.search_symmetric(min, max, weights, importance),
        }
    }

    /// The code of a weight.
    pub(super) fn code(&self, grid: Grid, weight: f32) -> i32 {
        let inverse = inverse(grid.scale);
        match self.format.levels() {
            Levels::Codebook => {
                self.middles.iter().filter(|&&middle| weight * inverse > middle).count() as i32
            }
            _ => {
                let [low, high] = self.limits(grid.zero);
                round_within(weight * inverse, low, high) as i32 + grid.zero
            }
        }
    }

    /// What a code stands for, times the scale.
    pub(super) fn value(&self, grid: Grid, code: i32) -> f32 {
        match self.format.levels() {
            Levels::Codebook => self.codebook[code as usize] * grid.scale,
            _ => (code - grid.zero) as f32 * grid.scale,
        }
    }

    /// The lowest and the highest level.
    pub(super) fn limits(&self, zero: i32) -> [f32; 2] {
        self.format.bits().range().map(|code| (code - zero) as f32)
    }

    /// The lowest and highest level without a zero point.
    fn reach(&self) -> [f32; 2] {
        match self.format.levels() {
            Levels::Codebook => [self.codebook[0], self.codebook[CODEBOOK_VALUES - 1]],
            _ => self.limits(self.format.bits().middle()),
        }
    }

    fn grid(&self, scale: f32, zero: i32) -> Grid {
        Grid { scale: self.format.scale().round(scale), zero }
    }

    /// The grid whose codes span a range that holds zero.
    fn range_grid(&self, min: f32, max: f32) -> Grid {
        let [low, high] = self.format.bits().range();
        // Halves first, so that the width of the widest range is finite.
        let scale = 2.0 * ((max / 2.0 - min / 2.0) / (high - low) as f32);
        let grid = self.grid(scale, 0);
        let zero = low as f32 - round(min * inverse(grid.scale));
        Grid { zero: zero.clamp(low as f32, high as f32) as i32, ..grid }
    }

    /// Both signs of the scale, and factors from clipping hard to not at all.
    fn search_symmetric(&self, min: f32, max: f32, weights: &[f32], importance: &[f32]) -> Grid {
        let [low, high] = self.reach();
        let zero = self.format.bits().middle();
        let peak = if max > -min { max } else { min };
        let mut best = (f32::INFINITY, self.grid(max.max(-min) / high, zero));
        // The peak at the end of the longer side, or of the shorter one.
        let ends: &[f32] = if low == -high { &[high] } else { &[low, high] };
        for end in ends {
            for factor in self.factors() {
                let grid = self.grid(peak / end * factor, zero);
                best = self.better(best, grid, weights, importance);
            }
        }
        self.refine_from(best, weights, importance)
    }

    fn search_zero_point(&self, min: f32, max: f32, weights: &[f32], importance: &[f32]) -> Grid {
        let mut best = (f32::INFINITY, self.range_grid(min, max));
        for factor in self.factors() {
            let grid = self.range_grid(min * factor, max * factor);
            best = self.better(best, grid, weights, importance);
        }
        let [low, high] = self.format.bits().range();
        for zero in [best.1.zero - 1, best.1.zero + 1] {
            if (low..=high).contains(&zero) {
                best = self.better(best, Grid { zero, ..best.1 }, weights, importance);
            }
        }
        self.refine_from(best, weights, importance)
    }

    /// Shares of the peak that are tried: few bits gain by clipping.
    fn factors(&self) -> impl Iterator<Item = f32> {
        let (from, steps) = match self.format.bits().count() {
            2 => (0.3, 24),
            3 => (0.5, 20),
            4 => (0.64, 18),
            6 => (0.8, 12),
            _ => (0.94, 8),
        };
        (0..=steps).map(move |step| from + (1.02 - from) * step as f32 / steps as f32)
    }

    /// The better of the best so far and a new grid.
    fn better(&self, best: (f32, Grid), grid: Grid, weights: &[f32], importance: &[f32]) -> (f32, Grid) {
        let error = self.error(grid, weights, importance);
        if error < best.0 { (error, grid) } else { best }
    }

    fn refine(&self, grid: Grid, weights: &[f32], importance: &[f32]) -> Grid {
        self.refine_from((self.error(grid, weights, importance), grid), weights, importance)
    }

    /// With the levels that a grid gives, least squares has a better scale, which may give other levels.
    fn refine_from(&self, mut best: (f32, Grid), weights: &[f32], importance: &[f32]) -> Grid {
        for _ in 0..3 {
            let grid = best.1;
            let levels = &mut [0.0; MAX_GROUP][..weights.len()];
            self.levels(grid, weights, levels);
            let (mut product, mut square) = (0.0f32, 0.0f32);
            for ((&level, &weight), &importance) in levels.iter().zip(weights).zip(importance) {
                product += importance * weight * level;
                square += importance * level * level;
            }
            if square == 0.0 {
                break;
            }
            let refined = self.better(best, self.grid(product / square, grid.zero), weights, importance);
            if refined.1 == grid {
                break;
            }
            best = refined;
        }
        best.1
    }

    /// The squared error of a grid, each column by its importance; infinite where it is not finite.
    ///
    /// Summed in eight lanes, so that the compiler may use registers of eight.
    fn error(&self, grid: Grid, weights: &[f32], importance: &[f32]) -> f32 {
        let levels = &mut [0.0; MAX_GROUP][..weights.len()];
        self.levels(grid, weights, levels);
        let mut lanes = [0.0f32; 8];
        let (levels, level_tail) = levels.as_chunks::<8>();
        let (weights, weight_tail) = weights.as_chunks::<8>();
        let (importance, importance_tail) = importance.as_chunks::<8>();
        for ((level, weight), importance) in levels.iter().zip(weights).zip(importance) {
            for j in 0..8 {
                let difference = weight[j] - level[j] * grid.scale;
                lanes[j] += importance[j] * difference * difference;
            }
        }
        for (j, (level, weight)) in level_tail.iter().zip(weight_tail).enumerate() {
            let difference = weight - level * grid.scale;
            lanes[j] += importance_tail[j] * difference * difference;
        }
        let sum: f32 = lanes.iter().sum();
        if sum.is_finite() { sum } else { f32::INFINITY }
    }

    /// The level of every weight.
    fn levels(&self, grid: Grid, weights: &[f32], levels: &mut [f32]) {
        let inverse = inverse(grid.scale);
        if self.format.levels() == Levels::Codebook {
            levels.fill(self.codebook[0]);
            for (&middle, pair) in self.middles.iter().zip(self.codebook.windows(2)) {
                let step = pair[1] - pair[0];
                for (level, &weight) in levels.iter_mut().zip(weights) {
                    *level += if weight * inverse > middle { step } else { 0.0 };
                }
            }
        } else {
            let [low, high] = self.limits(grid.zero);
            for (level, &weight) in levels.iter_mut().zip(weights) {
                *level = round_within(weight * inverse, low, high);
            }
        }
    }
}

/// `1 / scale`; 0 for a scale that is 0 or whose inverse is not finite.
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}
