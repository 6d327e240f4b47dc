//! Which record makes room.

/// Decides which slot is overwritten next.
pub(super) trait Replacement: Send + std::fmt::Debug {
    /// The record in `slot` was handed out.
    fn used(&mut self, slot: usize);

    /// `slot` holds nothing worth keeping.
    fn emptied(&mut self, slot: usize);

    /// The slot to overwrite, one of `candidates`.
    fn victim(&self, candidates: &mut dyn Iterator<Item = usize>) -> Option<usize>;
}

/// Least recently used first; empty slots before all others.
#[derive(Debug)]
pub(super) struct Lru {
    /// When each slot was used last; 0 for an empty one.
    last_use: Vec<u64>,
    clock: u64,
}

impl Lru {
    pub(super) fn new(slots: usize) -> Self {
        Self { last_use: vec![0; slots], clock: 0 }
    }
}

impl Replacement for Lru {
    fn used(&mut self, slot: usize) {
        self.clock += 1;
        self.last_use[slot] = self.clock;
    }

    fn emptied(&mut self, slot: usize) {
        self.last_use[slot] = 0;
    }

    fn victim(&self, candidates: &mut dyn Iterator<Item = usize>) -> Option<usize> {
        candidates.min_by_key(|&slot| self.last_use[slot])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first() {
        let mut lru = Lru::new(3);
        for slot in [0, 1, 2, 0] {
            lru.used(slot);
        }
        assert_eq!(lru.victim(&mut (0..3)), Some(1));
        assert_eq!(lru.victim(&mut [0, 2].into_iter()), Some(2));
        lru.emptied(0);
        assert_eq!(lru.victim(&mut (0..3)), Some(0));
        assert_eq!(lru.victim(&mut std::iter::empty()), None);
    }
}
