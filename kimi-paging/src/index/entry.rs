//! One tensor in twenty bytes.

/// How many numbers of a name are kept apart from its template.
pub(super) const NUMBERS: usize = 3;

/// Ids of templates and kinds are below this: they have 24 bits, and the last value means "not known yet".
pub(super) const MAX_ID: u32 = (1 << 24) - 1;

/// Offsets are below this: they have 48 bits.
pub(super) const MAX_OFFSET: u64 = 1 << 48;

/// Sources are numbered with 16 bits.
pub(super) const MAX_SOURCES: usize = 1 << 16;

/// A tensor name: a template and the numbers that fill it, the rest of them 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) template: u32,
    pub(super) numbers: [u16; NUMBERS],
}

/// Where a tensor lies and what it is.
///
/// Half a million of these are the index, so ids and offsets are cut to the bits they need.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    numbers: [u16; NUMBERS],
    offset: [u16; 3],
    source: u16,
    template: [u8; 3],
    kind: [u8; 3],
}

const _: () = assert!(size_of::<Entry>() == 20);

impl Entry {
    /// A tensor of which only name and shard are known.
    pub(super) fn promised(key: Key, source: u16) -> Self {
        Self {
            numbers: key.numbers,
            offset: [0; 3],
            source,
            template: pack24(key.template),
            kind: pack24(MAX_ID),
        }
    }

    /// Fills in what the header of the shard says.
    pub(super) fn found(mut self, kind: u32, offset: u64) -> Self {
        debug_assert!(kind < MAX_ID && offset < MAX_OFFSET);
        self.kind = pack24(kind);
        self.offset = [offset as u16, (offset >> 16) as u16, (offset >> 32) as u16];
        self
    }

    pub(super) fn key(&self) -> Key {
        Key { template: unpack24(self.template), numbers: self.numbers }
    }

    pub(super) fn source(&self) -> u16 {
        self.source
    }

    /// The kind, once the header has been read.
    pub(super) fn kind(&self) -> Option<u32> {
        Some(unpack24(self.kind)).filter(|&kind| kind != MAX_ID)
    }

    pub(super) fn offset(&self) -> u64 {
        let [low, middle, high] = self.offset.map(u64::from);
        low | middle << 16 | high << 32
    }
}

fn pack24(id: u32) -> [u8; 3] {
    debug_assert!(id <= MAX_ID);
    let [a, b, c, _] = id.to_le_bytes();
    [a, b, c]
}

fn unpack24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_le_bytes([a, b, c, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_at_the_limits() {
        for (template, offset, source, kind) in
            [(0, 0, 0, 0), (MAX_ID - 1, MAX_OFFSET - 1, u16::MAX, MAX_ID - 1)]
        {
            let key = Key { template, numbers: [1, 0, u16::MAX] };
            let entry = Entry::promised(key, source);
            assert_eq!((entry.key(), entry.source(), entry.kind()), (key, source, None));
            let entry = entry.found(kind, offset);
            assert_eq!((entry.key(), entry.source(), entry.kind()), (key, source, Some(kind)));
            assert_eq!(entry.offset(), offset);
        }
    }
}
