//! Files that the kernel knows by number.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

use io_uring::Submitter;

use crate::{Source, SourceId};

/// How many files are registered at most; others are named by their descriptors.
const TABLE: [u32; 2] = [1024, 128];

/// The table of registered files, in runs that stand for a list of sources each.
///
/// A number stays valid whatever happens to the descriptor, so it belongs to the list and not to the descriptor: descriptors
/// are given out again. The weak pointer keeps the address of a list from being given out again too. A list that is gone
/// leaves the table when the next one comes.
#[derive(Debug)]
pub(super) struct Files {
    lists: Vec<Registered>,
    /// Size of the table; 0 where the system refuses one.
    capacity: u32,
}

#[derive(Debug)]
struct Registered {
    list: Weak<[Arc<dyn Source>]>,
    first: u32,
    /// 0 where the list found no room.
    len: u32,
}

impl Files {
    pub(super) fn new(submitter: &Submitter<'_>) -> Self {
        // The limit on open files counts for the table as well.
        let capacity = TABLE.into_iter().find(|&files| submitter.register_files_sparse(files).is_ok());
        Self { lists: Vec::new(), capacity: capacity.unwrap_or(0) }
    }

    /// The number of a file of a list, if it has one.
    pub(super) fn index(
        &mut self,
        submitter: &Submitter<'_>,
        list: &Arc<[Arc<dyn Source>]>,
        source: SourceId,
    ) -> Option<u32> {
        let known =
            self.lists.iter().position(|known| std::ptr::addr_eq(known.list.as_ptr(), Arc::as_ptr(list)));
        let known = match known {
            Some(at) => &self.lists[at],
            None => self.register(submitter, list),
        };
        let number = source.index() as u32;
        (number < known.len).then(|| known.first + number)
    }

    fn register(&mut self, submitter: &Submitter<'_>, list: &Arc<[Arc<dyn Source>]>) -> &Registered {
        self.forget_dead_lists(submitter);
        let descriptors: Vec<_> =
            list.iter().map(|source| source.file().map_or(-1, AsRawFd::as_raw_fd)).collect();
        let wanted = descriptors.len() as u32;
        let first = self.gap(wanted);
        let updated = first.and_then(|first| submitter.register_files_update(first, &descriptors).ok());
        let len = if updated == Some(descriptors.len()) { wanted } else { 0 };
        let registered = Registered { list: Arc::downgrade(list), first: first.unwrap_or(0), len };
        // Sorted by place; lists without one come first.
        let at = self.lists.partition_point(|other| (other.first, other.len) < (registered.first, len));
        self.lists.insert(at, registered);
        &self.lists[at]
    }

    /// The first run of `wanted` free numbers.
    fn gap(&self, wanted: u32) -> Option<u32> {
        let mut from = 0;
        for list in &self.lists {
            if list.first.checked_sub(from).is_some_and(|free| free >= wanted && list.len > 0) {
                break;
            }
            from = from.max(list.first + list.len);
        }
        (from.checked_add(wanted)? <= self.capacity).then_some(from)
    }

    fn forget_dead_lists(&mut self, submitter: &Submitter<'_>) {
        self.lists.retain(|known| {
            let alive = known.list.strong_count() > 0;
            if !alive && known.len > 0 {
                // A number that stays taken only keeps a file open; the next list overwrites it.
                let _ = submitter.register_files_update(known.first, &vec![-1; known.len as usize]);
            }
            alive
        });
    }
}

#[cfg(test)]
mod tests {
    use io_uring::IoUring;

    use super::*;
    use crate::{FileSource, MemorySource};

    #[test]
    fn lists_keep_their_numbers_and_make_room_when_they_are_gone() {
        let Ok(ring) = IoUring::new(1) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        let submitter = ring.submitter();
        let mut files = Files::new(&submitter);
        if files.capacity == 0 {
            eprintln!("skipped: no table of files here");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        let list = |len: usize| -> Arc<[Arc<dyn Source>]> {
            let file = |_| Arc::new(FileSource::open(&path).unwrap()) as Arc<dyn Source>;
            (0..len).map(file).collect()
        };
        let mut index =
            |list: &Arc<[Arc<dyn Source>]>, source| files.index(&submitter, list, SourceId::new(source));
        let (first, second) = (list(3), list(2));
        assert_eq!([0, 2].map(|source| index(&first, source)), [Some(0), Some(2)]);
        assert_eq!([1, 0].map(|source| index(&second, source)), [Some(4), Some(3)]);
        drop(first);
        // Two fit where three were, then one, and what is larger goes behind.
        let (third, fourth, fifth) = (list(2), list(1), list(2));
        assert_eq!([index(&third, 1), index(&fourth, 0), index(&fifth, 0)], [Some(1), Some(2), Some(5)]);
        assert_eq!((index(&second, 1), index(&third, 0)), (Some(4), Some(0)));
        // What has no file takes a number that is not used, and what finds no room has none.
        let memory: Arc<dyn Source> = Arc::new(MemorySource::new("memory", vec![1]));
        let mixed: Arc<[_]> = [memory, Arc::clone(&fifth[0])].into();
        assert_eq!(index(&mixed, 1), Some(8));
        let large: Arc<[_]> = vec![Arc::clone(&fifth[0]); 2000].into();
        assert_eq!([0, 0].map(|source| index(&large, source)), [None, None]);
        assert_eq!(index(&second, 0), Some(3));
    }
}
