//! Types and shapes, each combination once.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::Dtype;
use super::entry::MAX_ID;
use crate::IndexProblem;

/// What many tensors have in common.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) dtype: Dtype,
    pub(super) shape: Box<[u64]>,
    /// The size in the file. Follows from the rest where the type is known.
    pub(super) bytes: u64,
}

/// The kinds of an index.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    kinds: Vec<Kind>,
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl Kinds {
    pub(super) fn intern(&mut self, dtype: Dtype, shape: &[u64], bytes: u64) -> Result<u32, IndexProblem> {
        let hash = self.hasher.hash_one((dtype, shape, bytes));
        let same = |&id: &u32| {
            let kind = &self.kinds[id as usize];
            (kind.dtype, &*kind.shape, kind.bytes) == (dtype, shape, bytes)
        };
        if let Some(&id) = self.ids.find(hash, same) {
            return Ok(id);
        }
        let id = self.kinds.len() as u32;
        if id >= MAX_ID {
            return Err(IndexProblem::TooMany { what: "different types and shapes", limit: MAX_ID.into() });
        }
        self.kinds.push(Kind { dtype, shape: shape.into(), bytes });
        let rehash = |&id: &u32| {
            let kind = &self.kinds[id as usize];
            self.hasher.hash_one((kind.dtype, &*kind.shape, kind.bytes))
        };
        self.ids.insert_unique(hash, id, rehash);
        Ok(id)
    }

    pub(super) fn get(&self, id: u32) -> &Kind {
        &self.kinds[id as usize]
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let shapes: usize = self.kinds.iter().map(|kind| size_of_val(&*kind.shape)).sum();
        shapes + self.kinds.capacity() * size_of::<Kind>() + self.ids.allocation_size()
    }

    /// Ends the building: the table of ids only served to find what is there already.
    pub(super) fn shrink(&mut self) {
        self.kinds.shrink_to_fit();
        self.ids = HashTable::new();
    }
}
