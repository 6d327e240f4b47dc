//! Where the parts of a record lie in its slot.

use std::sync::Arc;

use super::{MAX_PARTS, PART_ALIGN};
use crate::readers::Piece;
use crate::{Extent, RecordProblem, Source};

/// The parts of a record in a slot: in the order of their places in the files, so that neighbours there are neighbours here
/// and one read fetches them, each on a multiple of [`PART_ALIGN`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Where each part begins in the slot, in the order of the request.
    starts: [usize; MAX_PARTS],
    /// The bytes of the slot that are used.
    bytes: u64,
    /// The parts in the order of their places.
    order: [u8; MAX_PARTS],
}

impl Layout {
    /// Places at most [`MAX_PARTS`] parts.
    pub(super) fn new(parts: &[Extent]) -> Self {
        let mut order = [0; MAX_PARTS];
        for (at, to) in order.iter_mut().enumerate() {
            *to = at as u8;
        }
        let used = &mut order[..parts.len()];
        used.sort_unstable_by_key(|&part| {
            let extent = &parts[usize::from(part)];
            (extent.source, extent.offset, part)
        });
        let (mut starts, mut bytes) = ([0; MAX_PARTS], 0u64);
        for &part in &*used {
            bytes = bytes.checked_next_multiple_of(PART_ALIGN as u64).unwrap_or(u64::MAX);
            // Cut to size only where `check` refuses the record.
            starts[usize::from(part)] = usize::try_from(bytes).unwrap_or(usize::MAX);
            bytes = bytes.saturating_add(parts[usize::from(part)].len);
        }
        Self { starts, bytes, order }
    }

    /// The range of one part.
    pub(super) fn range(&self, parts: &[Extent], part: usize) -> std::ops::Range<usize> {
        let start = self.starts[part];
        start..start + parts[part].len as usize
    }

    /// Writes the reads that fetch the parts.
    pub(super) fn pieces(&self, parts: &[Extent], pieces: &mut Vec<Piece>) {
        for &part in &self.order[..parts.len()] {
            let (extent, at) = (&parts[usize::from(part)], self.starts[usize::from(part)]);
            let len = extent.len as usize;
            match pieces.last_mut() {
                Some(last)
                    if last.source == extent.source
                        && last.offset + last.len as u64 == extent.offset
                        && last.at + last.len == at =>
                {
                    last.len += len;
                }
                _ => pieces.push(Piece { source: extent.source, offset: extent.offset, len, at }),
            }
        }
    }
}

/// Checks that a record exists and fits a slot.
pub(super) fn check(
    parts: &[Extent],
    sources: &[Arc<dyn Source>],
    max_parts: usize,
    record_bytes: usize,
) -> Result<(), RecordProblem> {
    if parts.len() > max_parts {
        return Err(RecordProblem::Parts { found: parts.len(), limit: max_parts });
    }
    for extent in parts {
        let found = extent.source.index();
        let source = sources.get(found).ok_or(RecordProblem::Source { found, sources: sources.len() })?;
        let (end, len) = (extent.offset.saturating_add(extent.len), source.len());
        if end > len {
            return Err(RecordProblem::PastEnd { path: source.name().to_path_buf(), end, len });
        }
    }
    let (needed, record_bytes) = (Layout::new(parts).bytes, record_bytes as u64);
    if needed > record_bytes {
        return Err(RecordProblem::Size { needed, record_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemorySource, SourceId};

    fn extent(offset: u64, len: u64) -> Extent {
        Extent { source: SourceId::new(0), offset, len }
    }

    fn pieces(parts: &[Extent]) -> Vec<(u64, usize, usize)> {
        let mut pieces = Vec::new();
        Layout::new(parts).pieces(parts, &mut pieces);
        pieces.iter().map(|piece| (piece.offset, piece.len, piece.at)).collect()
    }

    #[test]
    fn neighbours_are_read_at_once_whatever_their_order() {
        let parts = [extent(256, 64), extent(0, 128), extent(128, 128)];
        assert_eq!(pieces(&parts), [(0, 320, 0)]);
        let layout = Layout::new(&parts);
        assert_eq!([0, 1, 2].map(|part| layout.range(&parts, part)), [256..320, 0..128, 128..256]);
    }

    #[test]
    fn odd_lengths_keep_the_alignment() {
        let parts = [extent(10, 3), extent(13, 64), extent(77, 1), extent(78, 0)];
        assert_eq!(pieces(&parts), [(10, 3, 0), (13, 65, 64), (78, 0, 192)]);
        let two_files = [extent(0, 64), Extent { source: SourceId::new(1), offset: 64, len: 64 }];
        assert_eq!(pieces(&two_files), [(0, 64, 0), (64, 64, 64)]);
    }

    #[test]
    fn impossible_records_are_refused() {
        let sources: [Arc<dyn Source>; 1] = [Arc::new(MemorySource::new("short", vec![0; 1000]))];
        let check = |parts: &[Extent]| check(parts, &sources, 2, 130);
        assert_eq!(check(&[extent(0, 1), extent(900, 66)]), Ok(()));
        assert_eq!(
            check(&[extent(0, 65), extent(900, 3)]),
            Err(RecordProblem::Size { needed: 131, record_bytes: 130 })
        );
        assert_eq!(check(&[extent(0, 1); 3]), Err(RecordProblem::Parts { found: 3, limit: 2 }));
        let past = |end| Err(RecordProblem::PastEnd { path: "short".into(), end, len: 1000 });
        assert_eq!(check(&[extent(990, 11)]), past(1001));
        assert_eq!(check(&[extent(u64::MAX, 2)]), past(u64::MAX));
        let elsewhere = Extent { source: SourceId::new(7), offset: 0, len: 1 };
        assert_eq!(check(&[elsewhere]), Err(RecordProblem::Source { found: 7, sources: 1 }));
    }
}
