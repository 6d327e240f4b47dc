//! The order of tokens: larger logits first, of equal ones the lower id.

use crate::error::SamplerError;

/// A logit with its token. The smaller of two is the one that ranks first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

impl Candidate {
    /// The logit must be a number.
    fn new(logit: f32, id: u32) -> Self {
        // Adding 0 makes -0 equal to 0. Integers in the order of the floats: the negative ones have their bits turned over, the
        // others their sign.
        let bits = (logit + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Self(u64::from(!ascending) << 32 | u64::from(id))
    }

    pub(super) fn id(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn logit(self) -> f32 {
        let ascending = !((self.0 >> 32) as u32);
        f32::from_bits(if ascending >> 31 == 1 { ascending ^ 1 << 31 } else { !ascending })
    }
}

/// Whether a logit is a number or minus infinity.
fn is_sound(logit: f32) -> bool {
    logit < f32::INFINITY
}

/// The largest logit.
///
/// # Errors
/// One that is not a number or infinite, and minus infinity as the largest one.
pub(super) fn largest(logits: &[f32]) -> Result<f32, SamplerError> {
    // Independent maxima, which the compiler makes a vector of.
    const LANES: usize = 16;
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    let mut sound = [true; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            best[lane] = if chunk[lane] > best[lane] { chunk[lane] } else { best[lane] };
            sound[lane] &= is_sound(chunk[lane]);
        }
    }
    if !(sound.iter().all(|&sound| sound) && rest.iter().all(|&logit| is_sound(logit))) {
        let id = logits.iter().position(|&logit| !is_sound(logit)).unwrap_or_default();
        return Err(SamplerError::Logit { id: id as u32, value: logits[id] });
    }
    let largest = best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY { Err(SamplerError::NothingLeft) } else { Ok(largest) }
}

/// The lowest id with the largest logit.
pub(super) fn first(logits: &[f32], largest: f32) -> u32 {
    logits.iter().position(|&logit| logit == largest).expect("the largest is one of them") as u32
}

/// Candidates, in order from the front as far as anybody has looked: the most probable few are mostly enough.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranking {
    candidates: Vec<Candidate>,
    ordered: usize,
}

/// The first step of ordering; each further one takes four times as many.
const STEP: usize = 256;

impl Ranking {
    /// Takes up the `count` best tokens that are not forbidden. All of them stay in order of their ids, fewer are put in order of
    /// rank.
    pub(super) fn keep_best(&mut self, logits: &[f32], count: usize) {
        let candidates = &mut self.candidates;
        candidates.clear();
        self.ordered = 0;
        if count == 0 {
            return;
        }
        if count >= logits.len() {
            candidates.reserve_exact(logits.len());
            let allowed = logits.iter().zip(0..).filter(|(logit, _)| **logit > f32::NEG_INFINITY);
            candidates.extend(allowed.map(|(&logit, id)| Candidate::new(logit, id)));
            return;
        }
        // Twice as many as are kept, so that selecting them takes a fixed time per candidate.
        let room = count.saturating_mul(2).max(STEP).min(logits.len());
        candidates.reserve_exact(room);
        // What does not exceed the last one kept ranks behind it: its id is higher.
        let mut bar = f32::NEG_INFINITY;
        for (&logit, id) in logits.iter().zip(0..) {
            if logit > bar {
                if candidates.len() == room {
                    bar = select(candidates, count);
                    if logit <= bar {
                        continue;
                    }
                }
                candidates.push(Candidate::new(logit, id));
            }
        }
        if candidates.len() > count {
            select(candidates, count);
        }
        candidates.sort_unstable();
        self.ordered = candidates.len();
    }

    /// All candidates, in order as far as they are.
    pub(super) fn all(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The candidate at a place, from 0.
    pub(super) fn get(&mut self, place: usize) -> Option<Candidate> {
        while place >= self.ordered && self.ordered < self.candidates.len() {
            let rest = &mut self.candidates[self.ordered..];
            let step = (self.ordered * 3).max(STEP).min(rest.len());
            if step < rest.len() {
                rest.select_nth_unstable(step);
            }
            rest[..step].sort_unstable();
            self.ordered += step;
        }
        self.candidates.get(place).copied()
    }
}

/// Keeps the `count` best and returns the logit of the last of them.
fn select(candidates: &mut Vec<Candidate>, count: usize) -> f32 {
    let last = candidates.select_nth_unstable(count - 1).1.logit();
    candidates.truncate(count);
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use kimi_testing::Seeded;

    #[test]
    fn candidates_order_like_their_logits_and_give_them_back() {
        let logits =
            [f32::MIN, -1.5, -f32::MIN_POSITIVE, -1e-45, 0.0, 1e-45, f32::MIN_POSITIVE, 0.1, 2.0, f32::MAX];
        for (i, &a) in logits.iter().enumerate() {
            assert_eq!((Candidate::new(a, 7).logit(), Candidate::new(a, u32::MAX).id()), (a, u32::MAX));
            for &b in &logits[i + 1..] {
                assert!(Candidate::new(b, u32::MAX) < Candidate::new(a, 0), "{b} ranks before {a}");
            }
        }
        assert!(Candidate::new(-0.0, 1) < Candidate::new(0.0, 2), "zeros of both signs are equal");
    }

    /// A few values many times over, so that most are equal to others; some are forbidden.
    fn logits(random: &mut Seeded, len: usize, values: usize) -> Vec<f32> {
        let value = |n| if n == 0 { f32::NEG_INFINITY } else { n as f32 / 7.0 - 3.0 };
        (0..len).map(|_| value(random.below(values))).collect()
    }

    #[test]
    fn ranks_are_those_of_a_full_sort_at_every_size() {
        let mut random = Seeded::new(5);
        let mut ranking = Ranking::default();
        for len in [1, 2, 15, 16, 17, 255, 256, 257, 1500, 5000] {
            for values in [2, 3, 40, 1 << 20] {
                let mut logits = logits(&mut random, len, values);
                if values == 1 << 20 {
                    // Every logit exceeds all before it: the most work for a selection.
                    logits.sort_by(f32::total_cmp);
                }
                let mut sorted: Vec<(f32, u32)> =
                    logits.iter().copied().zip(0..).filter(|(logit, _)| logit.is_finite()).collect();
                sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
                for count in [0, 1, 2, 7, 255, 256, 1000, len - 1, len, usize::MAX] {
                    ranking.keep_best(&logits, count);
                    let ranked: Vec<_> = (0..)
                        .map_while(|place| ranking.get(place))
                        .map(|candidate| (candidate.logit(), candidate.id()))
                        .collect();
                    assert_eq!(ranked, sorted[..count.min(sorted.len())], "{len}, {values}, {count}");
                }
                match largest(&logits) {
                    Ok(best) => assert_eq!((best, first(&logits, best)), sorted[0]),
                    Err(error) => assert!(error == SamplerError::NothingLeft && sorted.is_empty()),
                }
            }
        }
    }

    #[test]
    fn what_is_no_logit_is_found_wherever_it_is() {
        for len in [1, 15, 16, 33] {
            for at in 0..len {
                for value in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    let mut logits = vec![f32::NEG_INFINITY; len];
                    (logits[0], logits[at]) = (1.0, value);
                    let found = largest(&logits).unwrap_err();
                    assert!(matches!(found, SamplerError::Logit { id, .. } if id as usize == at), "{found}");
                }
            }
        }
        assert_eq!(largest(&[]), Err(SamplerError::NothingLeft));
    }
}
