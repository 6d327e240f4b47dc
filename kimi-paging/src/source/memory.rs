//! Bytes that are in memory anyway.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Backend, Source, check_range};
use crate::Error;

/// A [`Source`] over bytes in memory: a model embedded in a program, or a test.
///
/// The bytes belong to the caller and are not charged to a budget.
pub struct MemorySource {
    name: PathBuf,
    bytes: Bytes,
}

enum Bytes {
    Cow(Cow<'static, [u8]>),
    Shared(Arc<[u8]>),
}

impl MemorySource {
    /// A source over static or owned bytes; `name` stands in errors.
    pub fn new(name: impl Into<PathBuf>, bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { name: name.into(), bytes: Bytes::Cow(bytes.into()) }
    }

    /// A source over shared bytes; `name` stands in errors.
    pub fn shared(name: impl Into<PathBuf>, bytes: Arc<[u8]>) -> Self {
        Self { name: name.into(), bytes: Bytes::Shared(bytes) }
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Cow(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }

    fn view(&self, offset: u64, len: usize) -> Result<&[u8], Error> {
        check_range(&self.name, self.len(), offset, len)?;
        let start = offset as usize; // at most the length, which is a usize
        Ok(&self.bytes()[start..start + len])
    }
}

impl Source for MemorySource {
    fn name(&self) -> &Path {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        buf.copy_from_slice(self.view(offset, buf.len())?);
        Ok(())
    }

    fn backend(&self) -> Backend {
        Backend::Memory
    }

    fn mapped(&self, offset: u64, len: usize) -> Result<Option<&[u8]>, Error> {
        self.view(offset, len).map(Some)
    }
}

impl std::fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemorySource").field("name", &self.name).field("len", &self.bytes().len()).finish()
    }
}
