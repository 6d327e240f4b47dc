//! What a reader is asked to do with a buffer.

use std::sync::Arc;

use crate::source::alignment;
use crate::{Source, SourceId};

/// A contiguous read: `len` bytes at `offset` of a source, to `at` in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) source: SourceId,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) at: usize,
}

/// Bytes that move towards the beginning of the buffer once everything has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Move {
    from: usize,
    to: usize,
    len: usize,
}

/// A tile of several pieces may take this much more than twice its length in a buffer; beyond that its pieces are read one by
/// one to where they belong, through the copy that sources with an alignment make then.
const SLACK_BYTES: usize = 64 << 10;

/// Reads, and what is to be moved after them.
///
/// Readers know nothing of alignment: reads from a source that has one begin and end on its multiples, in the file and in the
/// buffer, except where the file ends.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) reads: Vec<Piece>,
    moves: Vec<Move>,
    /// Where what was asked for begins in the buffer.
    pub(crate) start: usize,
}

impl Job {
    /// An empty job with room for `pieces` pieces.
    pub(crate) fn with_capacity(pieces: usize) -> Self {
        Self { reads: Vec::with_capacity(pieces), moves: Vec::with_capacity(pieces), start: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.reads.clear();
        self.moves.clear();
        self.start = 0;
    }

    /// Has `pieces`, which lie one after another in a tile, read so that the tile begins at `start` in the buffer and is in one
    /// piece. Returns how long a buffer must be for that.
    ///
    /// A single piece is read with the aligned bytes around it, and no byte is copied. Of several pieces each one is; those
    /// behind the first move up by the few bytes that were read too much.
    pub(crate) fn assemble(&mut self, pieces: &[Piece], sources: &[Arc<dyn Source>]) -> usize {
        self.clear();
        let mut space = 0usize;
        // The end of the bytes that are wanted from the last read.
        let mut wanted_to = 0;
        for (number, piece) in pieces.iter().enumerate() {
            let align = alignment(&*sources[piece.source.index()]);
            let (from, to) = (piece.offset, piece.offset + piece.len as u64);
            let (low, high) = (from / align * align, to.next_multiple_of(align));
            let goes_on = |last: &&mut Piece| {
                let end = last.offset + last.len as u64;
                last.source == piece.source && align > 1 && from >= wanted_to && low <= end
            };
            let at = match self.reads.last_mut().filter(goes_on) {
                Some(last) => {
                    last.len = last.len.max((high - last.offset) as usize);
                    space = last.at + last.len;
                    last.at + (from - last.offset) as usize
                }
                None => {
                    let at = space.next_multiple_of(align as usize);
                    let len = (high - low) as usize;
                    self.reads.push(Piece { source: piece.source, offset: low, len, at });
                    space = at + len;
                    at + (from - low) as usize
                }
            };
            wanted_to = to;
            if number == 0 {
                self.start = at;
            }
            let to = self.start + piece.at;
            if at != to {
                self.moves.push(Move { from: at, to, len: piece.len });
            }
        }
        let total = pieces.last().map_or(0, |last| last.at + last.len);
        if pieces.len() > 1 && space > total.saturating_mul(2).saturating_add(SLACK_BYTES) {
            self.clear();
            self.reads.extend_from_slice(pieces);
            return total;
        }
        self.end_with_the_files(sources);
        space
    }

    /// Shortens reads that reach past the end of their sources.
    pub(crate) fn end_with_the_files(&mut self, sources: &[Arc<dyn Source>]) {
        for read in &mut self.reads {
            let left = sources[read.source.index()].len().saturating_sub(read.offset);
            read.len = read.len.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
    }

    /// Closes the gaps between pieces, when all of them have been read.
    pub(super) fn close_gaps(&self, buffer: &mut [u8]) {
        // In ascending order, and never upwards, so nothing is overwritten that is still to be moved.
        for &Move { from, to, len } in &self.moves {
            buffer.copy_within(from..from + len, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;
    use crate::{Backend, Error};

    /// Bytes with an alignment.
    #[derive(Debug)]
    struct Aligned(Vec<u8>, usize);

    impl Source for Aligned {
        fn name(&self) -> &Path {
            Path::new("aligned")
        }

        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
            buf.copy_from_slice(&self.0[offset as usize..offset as usize + buf.len()]);
            Ok(())
        }

        fn backend(&self) -> Backend {
            Backend::Direct
        }

        fn alignment(&self) -> usize {
            self.1
        }
    }

    fn source(len: usize, align: usize) -> Arc<dyn Source> {
        Arc::new(Aligned(Seeded::new(len as u64).bytes(len), align))
    }

    fn piece(source: usize, offset: u64, len: usize, at: usize) -> Piece {
        Piece { source: SourceId::new(source), offset, len, at }
    }

    /// The space, start, reads and number of moves of a job.
    fn assembled(
        pieces: &[Piece],
        sources: &[Arc<dyn Source>],
    ) -> (usize, usize, Vec<(u64, usize, usize)>, usize) {
        let mut job = Job::default();
        let space = job.assemble(pieces, sources);
        let reads = job.reads.iter().map(|read| (read.offset, read.len, read.at)).collect();
        (space, job.start, reads, job.moves.len())
    }

    #[test]
    fn a_single_piece_is_read_with_what_is_around_it() {
        let sources = [source(10_000, 4096), source(10_000, 1)];
        assert_eq!(assembled(&[piece(0, 5000, 100, 0)], &sources), (4096, 904, vec![(4096, 4096, 0)], 0));
        assert_eq!(assembled(&[piece(0, 4096, 4096, 0)], &sources), (4096, 0, vec![(4096, 4096, 0)], 0));
        // The buffer has room for a whole block where the file ends.
        assert_eq!(assembled(&[piece(0, 4000, 6000, 0)], &sources), (12288, 4000, vec![(0, 10_000, 0)], 0));
        assert_eq!(assembled(&[piece(1, 5000, 100, 0)], &sources), (100, 0, vec![(5000, 100, 0)], 0));
    }

    #[test]
    fn pieces_that_share_blocks_are_one_read() {
        let sources = [source(100_000, 4096)];
        let pieces = [piece(0, 100, 5000, 0), piece(0, 8000, 10, 5000), piece(0, 60_000, 5000, 5010)];
        let reads = vec![(0, 8192, 0), (57_344, 8192, 8192)];
        assert_eq!(assembled(&pieces, &sources), (16_384, 100, reads, 2));
        // Going backwards, or over the same bytes again, begins anew.
        let pieces = [piece(0, 5000, 5000, 0), piece(0, 100, 5000, 5000), piece(0, 100, 5000, 10_000)];
        let reads = vec![(4096, 8192, 0), (0, 8192, 8192), (0, 8192, 16_384)];
        assert_eq!(assembled(&pieces, &sources), (24_576, 904, reads, 2));
    }

    #[test]
    fn scattered_crumbs_take_no_block_each() {
        let sources = [source(10 << 20, 4096)];
        let pieces: Vec<_> = (0..100).map(|n| piece(0, n * 100_000 + 7, 10, n as usize * 10)).collect();
        let (space, start, reads, moves) = assembled(&pieces, &sources);
        assert_eq!((space, start, reads.len(), moves), (1000, 0, 100, 0));
        assert_eq!(reads[3], (300_007, 10, 30));
    }

    proptest! {
        #[test]
        fn a_tile_is_in_one_piece(
            parts in prop::collection::vec((0..3usize, 0..60_000u64, 1..9000usize), 1..12),
        ) {
            let sources = [source(69_001, 4096), source(69_002, 1), source(70_000, 512)];
            let mut at = 0;
            let pieces: Vec<_> = parts.iter().map(|&(source, offset, len)| {
                at += len;
                piece(source, offset, len, at - len)
            }).collect();
            let mut job = Job::default();
            let space = job.assemble(&pieces, &sources);
            let mut buffer = vec![0; space];
            let mut spans: Vec<_> = Vec::new();
            for read in &job.reads {
                let source = &sources[read.source.index()];
                let align = source.alignment();
                prop_assert_eq!((read.offset as usize % align, read.at % align), (0, 0));
                prop_assert!(read.len % align == 0 || read.offset + read.len as u64 == source.len());
                // Direct reads may write to the end of a block.
                spans.push(read.at..read.at + read.len.next_multiple_of(align));
                source.read_at(read.offset, &mut buffer[read.at..read.at + read.len]).unwrap();
            }
            prop_assert!(spans.iter().all(|span| span.end <= space));
            prop_assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start));
            job.close_gaps(&mut buffer);
            let mut expected = Vec::new();
            for piece in &pieces {
                let mut bytes = vec![0; piece.len];
                sources[piece.source.index()].read_at(piece.offset, &mut bytes).unwrap();
                expected.extend(bytes);
            }
            prop_assert!(buffer[job.start..job.start + expected.len()] == expected);
        }
    }
}
