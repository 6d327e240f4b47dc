//! Which record makes room.

/// What a use adds to the weight of a record.
const USE: u64 = 1 << 32;

/// Weighs records by how often and how recently they were used.
///
/// The weight of a record is the sum over its uses of `2^(-age / half_life)`, where ages are counted in uses of any record and
/// `half_life` is the number of slots: among records that were used once the oldest goes first, and one that was used often
/// outlasts as many turnovers of the cache as its count has binary digits. Between two half-lives the power is interpolated
/// linearly, in integers, so that every machine decides alike. (The sum is that of Lee et al., *LRFU: a spectrum of policies*,
/// 2001.)
#[derive(Debug)]
pub(super) struct Weights {
    slots: Vec<Weight>,
    clock: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    /// The weight when it was used last; 0 for an empty slot.
    value: u64,
    used: u64,
}

impl Weights {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: vec![Weight::default(); slots], clock: 0 }
    }

    /// The record in `slot` was handed out.
    pub(super) fn used(&mut self, slot: usize) {
        self.clock += 1;
        let value = self.now(slot).saturating_add(USE);
        self.slots[slot] = Weight { value, used: self.clock };
    }

    /// `slot` holds nothing worth keeping.
    pub(super) fn emptied(&mut self, slot: usize) {
        self.slots[slot] = Weight::default();
    }

    /// The lightest of `candidates`: empty slots first, then of equal ones the one that was used longest ago.
    pub(super) fn lightest(&self, candidates: impl Iterator<Item = usize>) -> Option<usize> {
        candidates.min_by_key(|&slot| (self.now(slot), self.slots[slot].used))
    }

    fn now(&self, slot: usize) -> u64 {
        let Weight { value, used } = self.slots[slot];
        faded(value, self.clock - used, self.slots.len() as u64)
    }
}

/// `value * 2^(-age / half_life)`, linear between powers.
fn faded(value: u64, age: u64, half_life: u64) -> u64 {
    let (halvings, rest) = (age / half_life, age % half_life);
    let value = u32::try_from(halvings).ok().and_then(|halvings| value.checked_shr(halvings)).unwrap_or(0);
    let loss = u128::from(value) * u128::from(rest) / (2 * u128::from(half_life));
    value - loss as u64 // at most half of it
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first() {
        let mut weights = Weights::new(3);
        for slot in [0, 1, 2] {
            weights.used(slot);
        }
        assert_eq!(weights.lightest(0..3), Some(0));
        assert_eq!(weights.lightest([1, 2].into_iter()), Some(1));
        weights.emptied(2);
        assert_eq!(weights.lightest(0..3), Some(2));
        assert_eq!(weights.lightest(std::iter::empty()), None);
    }

    #[test]
    fn what_was_used_often_outlasts_what_was_used_once_and_then_goes_too() {
        let mut weights = Weights::new(4);
        for slot in [0, 0, 0, 0, 1, 2, 3] {
            weights.used(slot);
        }
        // Others come and go.
        let mut victims = Vec::new();
        for _ in 0..12 {
            let victim = weights.lightest(0..4).unwrap();
            victims.push(victim);
            weights.emptied(victim);
            weights.used(victim);
        }
        assert_eq!(victims, [1, 2, 3, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
    }

    #[test]
    fn weights_halve_with_the_half_life() {
        assert_eq!([0, 1, 2, 4, 6, 8, 12].map(|age| faded(800, age, 4)), [800, 700, 600, 400, 300, 200, 100]);
        assert_eq!(faded(u64::MAX, 3, 1), u64::MAX >> 3);
        assert_eq!((faded(u64::MAX, 64, 1), faded(u64::MAX, u64::MAX, 1)), (0, 0));
        // Never more than before, whatever the age.
        let mut last = u64::MAX;
        for age in 0..700 {
            let now = faded(u64::MAX, age, 10);
            assert!(now <= last);
            last = now;
        }
    }
}
