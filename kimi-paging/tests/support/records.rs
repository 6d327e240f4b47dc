//! Small records over one source that fails as it is told.

use std::sync::Arc;

use kimi_paging::{Budget, Extent, Readers, Slots, Source, SourceId};

use crate::faulty::Faulty;

pub(crate) fn extent(source: usize, offset: u64, len: u64) -> Extent {
    Extent { source: SourceId::new(source), offset, len }
}

/// Slots over one faulty source of 640 bytes, in records of 64.
pub(crate) fn over(source: &Arc<Faulty>, readers: &Readers, slots: usize) -> Slots {
    let list: Vec<Arc<dyn Source>> = vec![source.clone()];
    Slots::new(&list, &Budget::unlimited(), readers, slots, 64, 2).unwrap()
}

pub(crate) fn requests(keys: &[u64]) -> impl Iterator<Item = (u64, [Extent; 1])> {
    keys.iter().map(|&key| (key, [extent(0, key * 64, 64)]))
}

/// Takes the rest of a round; the keys.
pub(crate) fn drain(cache: &mut Slots) -> Vec<u64> {
    let mut keys = Vec::new();
    while let Some(record) = cache.next().unwrap() {
        keys.push(record.key());
    }
    keys
}
