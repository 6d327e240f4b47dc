//! The short causal convolution before the KDA recurrence.

use super::{Real, sigmoid};

/// A depthwise causal convolution followed by SiLU, for `w` columns:
/// `y[t, c] = silu(sum over j of taps[j, c] * u[t - (K - 1) + j, c])`, one chain in ascending `j` from zero.
///
/// `taps` is `K x channels`, the last tap for the current column. `tail` is `(K - 1) x channels`: the inputs before the
/// first column, oldest first. `u` and `y` are `w x channels`.
///
/// # Panics
/// If the lengths do not fit.
#[inline(always)]
pub fn short_conv<F: Real>(taps: &[F], tail: &[F], u: &[F], channels: usize, y: &mut [F]) {
    assert!(u.len() == y.len() && u.len().is_multiple_of(channels), "whole columns of {channels} channels");
    assert_eq!(taps.len(), tail.len() + channels, "one tap more than the tail has columns");
    for (t, y) in y.chunks_exact_mut(channels).enumerate() {
        y.fill(F::zero());
        for (j, taps) in taps.chunks_exact(channels).enumerate() {
            let at = (t + j) * channels;
            // Column t + j of the tail and the inputs laid end to end.
            let input =
                if at < tail.len() { &tail[at..][..channels] } else { &u[at - tail.len()..][..channels] };
            for ((y, &tap), &input) in y.iter_mut().zip(taps).zip(input) {
                *y = tap.mul_add(input, *y);
            }
        }
        for y in y {
            *y = *y * sigmoid(*y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tap_meets_the_current_column() {
        // One channel, four taps; tail 1 2 3, inputs 4 5.
        let mut y = [0.0f64; 2];
        short_conv(&[1000.0, 100.0, 10.0, 1.0], &[1.0, 2.0, 3.0], &[4.0, 5.0], 1, &mut y);
        assert!((y[0] - 1234.0).abs() < 1e-9 && (y[1] - 2345.0).abs() < 1e-9);
    }

    #[test]
    fn a_split_prompt_gives_the_same_bits() {
        let mut seeded = kimi_testing::Seeded::new(9);
        let (channels, taps, tail, u) =
            (5, seeded.normals(20, 1.0), seeded.normals(15, 1.0), seeded.normals(30, 1.0));
        let mut whole = vec![0.0f32; 30];
        short_conv(&taps, &tail, &u, channels, &mut whole);
        for split in 1..6 {
            let (first, second) = u.split_at(split * channels);
            let history: Vec<f32> = [&tail[..], first].concat();
            let mut y = vec![0.0f32; 30];
            let (y_first, y_second) = y.split_at_mut(split * channels);
            short_conv(&taps, &tail, first, channels, y_first);
            short_conv(&taps, &history[history.len() - 15..], second, channels, y_second);
            assert_eq!(y, whole);
        }
    }
}
