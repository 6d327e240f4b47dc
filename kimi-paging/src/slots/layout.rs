//! Where the parts of a record lie in its slot.

use std::sync::Arc;

use super::{MAX_PARTS, PART_ALIGN};
use crate::readers::{Job, Piece};
use crate::source::alignment;
use crate::{Extent, RecordProblem, Source, SourceId};

/// The parts of a record in a slot: in the order of their places in the files, so that neighbours there are neighbours here
/// and one read fetches them.
///
/// A part begins on a multiple of [`PART_ALIGN`]. Where the source has an alignment, the aligned bytes around the part are read
/// too, and it begins as far into its block as in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Where each part begins in the slot, in the order of the request.
    starts: [usize; MAX_PARTS],
    /// The bytes of the slot that are used.
    bytes: u64,
    /// The parts in the order of their places.
    order: [u8; MAX_PARTS],
}

/// A part with the aligned bytes around it.
#[derive(Debug, Clone, Copy)]
struct Around {
    low: u64,
    high: u64,
}

impl Around {
    fn new(part: &Extent, align: u64) -> Self {
        let end = part.offset.saturating_add(part.len);
        Self {
            low: part.offset / align * align,
            high: end.checked_next_multiple_of(align).unwrap_or(u64::MAX),
        }
    }
}

impl Layout {
    /// Places at most [`MAX_PARTS`] parts, whose sources have alignments.
    pub(super) fn new(parts: &[Extent], alignment: impl Fn(SourceId) -> u64) -> Self {
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
        // The last read of a source with an alignment: the source, its range, and where it goes.
        let mut last: Option<(SourceId, Around, u64)> = None;
        for &part in &*used {
            let extent = &parts[usize::from(part)];
            let align = alignment(extent.source);
            let mut around = Around::new(extent, align);
            let joined = last
                .filter(|(source, read, _)| align > 1 && *source == extent.source && around.low <= read.high);
            let at = match joined {
                Some((_, read, at)) => {
                    around = Around { low: read.low, high: read.high.max(around.high) };
                    at
                }
                None => bytes.checked_next_multiple_of(align.max(PART_ALIGN as u64)).unwrap_or(u64::MAX),
            };
            bytes = at.saturating_add(around.high - around.low);
            last = Some((extent.source, around, at));
            // Cut to size only where `check` refuses the record.
            let start = at.saturating_add(extent.offset - around.low);
            starts[usize::from(part)] = usize::try_from(start).unwrap_or(usize::MAX);
        }
        Self { starts, bytes, order }
    }

    /// The range of one part.
    pub(super) fn range(&self, parts: &[Extent], part: usize) -> std::ops::Range<usize> {
        let start = self.starts[part];
        start..start + parts[part].len as usize
    }

    /// Where the first part lies: what records are sorted by.
    pub(super) fn place(&self, parts: &[Extent]) -> Option<(SourceId, u64)> {
        let first = parts.get(usize::from(self.order[0]))?;
        Some((first.source, first.offset))
    }

    /// Writes the reads that fetch the parts.
    pub(super) fn reads(&self, parts: &[Extent], sources: &[Arc<dyn Source>], job: &mut Job) {
        for &part in &self.order[..parts.len()] {
            let (extent, start) = (&parts[usize::from(part)], self.starts[usize::from(part)]);
            let align = alignment(&*sources[extent.source.index()]);
            let Around { low, high } = Around::new(extent, align);
            let at = start - (extent.offset - low) as usize;
            match job.reads.last_mut() {
                // In the file and in the slot alike.
                Some(last)
                    if last.source == extent.source
                        && low <= last.offset + last.len as u64
                        && at.checked_sub(last.at).map(|shift| shift as u64) == Some(low - last.offset) =>
                {
                    last.len = last.len.max((high - last.offset) as usize);
                }
                _ => {
                    let len = (high - low) as usize;
                    job.reads.push(Piece { source: extent.source, offset: low, len, at });
                }
            }
        }
        job.end_with_the_files(sources);
    }
}

/// What a slot takes beyond the bytes of a record, for the aligned bytes around its parts.
pub(super) fn slack_bytes(sources: &[Arc<dyn Source>], parts: usize) -> usize {
    let largest = sources.iter().map(|source| alignment(&**source)).max().unwrap_or(1) as usize;
    // Below one alignment before a part and one behind it; what stands before the next part counts with that.
    if largest > 1 { parts * 2 * largest } else { 0 }
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
    // Alignments are paid for by `slack_bytes`.
    let (needed, record_bytes) = (Layout::new(parts, |_| 1).bytes, record_bytes as u64);
    if needed > record_bytes {
        return Err(RecordProblem::Size { needed, record_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::{Backend, Error, MemorySource, Slots};

    fn extent(offset: u64, len: u64) -> Extent {
        Extent { source: SourceId::new(0), offset, len }
    }

    /// Bytes with an alignment that are never read.
    #[derive(Debug)]
    struct Aligned(u64, usize);

    impl Source for Aligned {
        fn name(&self) -> &Path {
            Path::new("aligned")
        }

        fn len(&self) -> u64 {
            self.0
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
            unreachable!("only laid out")
        }

        fn backend(&self) -> Backend {
            Backend::Direct
        }

        fn alignment(&self) -> usize {
            self.1
        }
    }

    fn laid_out(parts: &[Extent], sources: &[Arc<dyn Source>]) -> (Layout, Vec<(u64, usize, usize)>) {
        let layout = Layout::new(parts, |source| alignment(&*sources[source.index()]));
        let mut job = Job::default();
        layout.reads(parts, sources, &mut job);
        (layout, job.reads.iter().map(|read| (read.offset, read.len, read.at)).collect())
    }

    fn pieces(parts: &[Extent]) -> Vec<(u64, usize, usize)> {
        let source = || Arc::new(Aligned(1000, 1)) as Arc<dyn Source>;
        laid_out(parts, &[source(), source()]).1
    }

    #[test]
    fn parts_in_neighbouring_blocks_are_one_read() {
        let sources: [Arc<dyn Source>; 1] = [Arc::new(Aligned(20_000, 4096))];
        let parts = [extent(5000, 3000), extent(100, 10), extent(8500, 20), extent(16_500, 3500)];
        let (layout, reads) = laid_out(&parts, &sources);
        // The last read ends with the file; its slot has room for a whole block.
        assert_eq!(reads, [(0, 12_288, 0), (16_384, 3616, 12_288)]);
        let ranges = [0, 1, 2, 3].map(|part| layout.range(&parts, part));
        assert_eq!(ranges, [5000..8000, 100..110, 8500..8520, 12_404..15_904]);
        assert_eq!((layout.bytes, layout.place(&parts)), (16_384, Some((SourceId::new(0), 100))));
    }

    proptest! {
        #[test]
        fn slack_is_enough_and_no_two_reads_meet(
            parts in prop::collection::vec((0..3usize, 0..90_000u64, 0..9000u64), 0..=MAX_PARTS),
        ) {
            let sources: [Arc<dyn Source>; 3] = [4096, 1, 512].map(|align| Arc::new(Aligned(99_000, align)) as _);
            let parts: Vec<_> = parts
                .iter()
                .map(|&(source, offset, len)| Extent { source: SourceId::new(source), offset, len })
                .collect();
            let sizes: Vec<_> = parts.iter().map(|part| part.len as usize).collect();
            let room = Slots::record_bytes(&sizes) + slack_bytes(&sources, parts.len());
            let (layout, reads) = laid_out(&parts, &sources);
            prop_assert!(layout.bytes <= room as u64, "{} > {room}", layout.bytes);
            let mut job = Job::default();
            layout.reads(&parts, &sources, &mut job);
            let mut end = 0;
            for read in &job.reads {
                let align = sources[read.source.index()].alignment();
                prop_assert_eq!((read.offset as usize % align, read.at % align), (0, 0));
                prop_assert!(read.at >= end);
                end = read.at + read.len.next_multiple_of(align);
            }
            prop_assert!(end as u64 <= layout.bytes);
            // Every part is inside a read, at the same distance in the file and in the slot.
            for (at, part) in parts.iter().enumerate() {
                let range = layout.range(&parts, at);
                let inside = job.reads.iter().any(|read| {
                    read.source == part.source
                        && read.offset <= part.offset
                        && part.offset + part.len <= read.offset + read.len as u64
                        && (part.offset - read.offset) as usize + read.at == range.start
                });
                prop_assert!(inside, "part {at} of {reads:?}");
            }
        }
    }

    #[test]
    fn neighbours_are_read_at_once_whatever_their_order() {
        let parts = [extent(256, 64), extent(0, 128), extent(128, 128)];
        assert_eq!(pieces(&parts), [(0, 320, 0)]);
        let layout = Layout::new(&parts, |_| 1);
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
