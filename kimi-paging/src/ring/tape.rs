//! What a ring plays: matrices in the order of their use.

use std::sync::Arc;

use crate::readers::Piece;
use crate::{Error, Extent, Source, SourceId, TapeProblem};

/// Segments of equal size at equal distances: `count` times `run_bytes` bytes, each `stride` bytes after the one before.
///
/// A plain range is a run of one segment, made with `Run::from(extent)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a strided range has these five parts")]
pub struct Run {
    /// The source.
    pub source: SourceId,
    /// Where the first segment begins in it.
    pub offset: u64,
    /// Bytes of a segment.
    pub run_bytes: u64,
    /// The number of segments.
    pub count: u64,
    /// Bytes from the beginning of one segment to that of the next.
    pub stride: u64,
}

impl From<Extent> for Run {
    fn from(extent: Extent) -> Self {
        let Extent { source, offset, len } = extent;
        Self { source, offset, run_bytes: len, count: 1, stride: len }
    }
}

impl Run {
    fn bytes(&self) -> Option<u64> {
        self.run_bytes.checked_mul(self.count)
    }

    /// The byte behind the last one, or 0 for a run without segments.
    fn end(&self) -> Option<u64> {
        let Some(steps) = self.count.checked_sub(1) else { return Some(0) };
        self.stride.checked_mul(steps)?.checked_add(self.offset)?.checked_add(self.run_bytes)
    }
}

/// One matrix: the bytes of its runs one after another, cut into rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    runs: Vec<Run>,
    row_bytes: u64,
}

impl Entry {
    /// A matrix that lies in one piece.
    pub fn new(extent: Extent, row_bytes: u64) -> Self {
        Self::from_runs([Run::from(extent)], row_bytes)
    }

    /// A matrix put together from runs. `row_bytes` must divide the `run_bytes` of each, so that no row is cut.
    pub fn from_runs(runs: impl IntoIterator<Item = Run>, row_bytes: u64) -> Self {
        let segments_touch = |run: &Run| run.count > 1 && run.stride == run.run_bytes;
        let one_piece = |run: Run| match run.bytes() {
            Some(bytes) if segments_touch(&run) => Run { run_bytes: bytes, count: 1, stride: bytes, ..run },
            _ => run,
        };
        Self { runs: runs.into_iter().map(one_piece).collect(), row_bytes }
    }

    /// Reads the bytes of the matrix that begin with byte `from`, at once and outside of any ring.
    ///
    /// # Errors
    /// [`Error::Setting`] for bytes that the matrix does not have, and as [`Source::read_at`].
    ///
    /// # Panics
    /// If `sources` lacks a source of the entry.
    pub fn read(&self, sources: &[Arc<dyn Source>], from: u64, buf: &mut [u8]) -> Result<(), Error> {
        let bytes = self.runs.iter().try_fold(0u64, |sum, run| sum.checked_add(run.bytes()?)).unwrap_or(0);
        let end = from.saturating_add(buf.len() as u64);
        if end > bytes {
            return Err(Error::Setting {
                what: "the end of a read",
                expected: "inside the matrix",
                found: end,
            });
        }
        if buf.is_empty() {
            return Ok(());
        }
        let mut pieces = Vec::new();
        self.pieces(from, buf.len(), &mut pieces);
        for Piece { source, offset, len, at } in pieces {
            sources[source.index()].read_at(offset, &mut buf[at..at + len])?;
        }
        Ok(())
    }

    /// Writes the ranges that hold `len` bytes from byte `from` of the matrix to `pieces`, neighbours in a file joined.
    pub(super) fn pieces(&self, from: u64, len: usize, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let (mut skip, mut at) = (from, 0);
        for run in &self.runs {
            let run_bytes = run.run_bytes * run.count;
            if skip >= run_bytes {
                skip -= run_bytes;
                continue;
            }
            for segment in skip / run.run_bytes..run.count {
                let inside = skip % run.run_bytes;
                let part = (run.run_bytes - inside).min((len - at) as u64) as usize;
                push(
                    pieces,
                    Piece {
                        source: run.source,
                        offset: run.offset + segment * run.stride + inside,
                        len: part,
                        at,
                    },
                );
                at += part;
                if at == len {
                    return;
                }
                // Later segments are read from their beginning.
                skip = 0;
            }
        }
        debug_assert!(at == len, "a tile lies inside its entry");
    }
}

/// Appends a piece, or lengthens the last one when it goes on where that ends.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.source == piece.source && last.offset + last.len as u64 == piece.offset => {
            last.len += piece.len
        }
        _ => pieces.push(piece),
    }
}

/// Matrices in the order in which they are used.
///
/// ```
/// use kimi_paging::{Entry, Extent, Run, SourceId, Tape};
///
/// let source = SourceId::new(0);
/// let tape = Tape::new(vec![
///     // 8 rows of 16 bytes in one piece,
///     Entry::new(Extent { source, offset: 0, len: 128 }, 16),
///     // and 4 heads of 2 such rows, each 4 rows after the one before.
///     Entry::from_runs([Run { source, offset: 128, run_bytes: 32, count: 4, stride: 64 }], 16),
/// ])?;
/// assert_eq!((tape.len(), tape.bytes(), tape.entry_rows(1)), (2, 256, 8));
/// # Ok::<(), kimi_paging::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tape {
    entries: Vec<Entry>,
    /// The size of each entry.
    sizes: Vec<u64>,
    bytes: u64,
}

impl Tape {
    /// A tape of these entries. Whether the sources have the bytes is checked when a ring is built.
    ///
    /// # Errors
    /// [`Error::Tape`] for an entry without bytes, rows that do not fit their runs, and sizes beyond 64 bits.
    pub fn new(entries: Vec<Entry>) -> Result<Self, Error> {
        let mut sizes = Vec::with_capacity(entries.len());
        let mut bytes = 0u64;
        for (at, entry) in entries.iter().enumerate() {
            let size = entry_bytes(entry).map_err(|problem| Error::Tape { entry: at, problem })?;
            let sum = bytes.checked_add(size);
            bytes = sum.ok_or(Error::Tape { entry: at, problem: TapeProblem::Overflow })?;
            sizes.push(size);
        }
        Ok(Self { entries, sizes, bytes })
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there is nothing to play.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of one entry.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn entry_bytes(&self, entry: usize) -> u64 {
        self.sizes[entry]
    }

    /// The rows of one entry.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn entry_rows(&self, entry: usize) -> u64 {
        self.sizes[entry] / self.entries[entry].row_bytes
    }

    /// The bytes of a row of one entry.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn row_bytes(&self, entry: usize) -> u64 {
        self.entries[entry].row_bytes
    }

    pub(super) fn entry(&self, entry: usize) -> &Entry {
        &self.entries[entry]
    }

    /// Checks that the sources have all bytes.
    pub(super) fn check(&self, sources: &[Arc<dyn Source>]) -> Result<(), Error> {
        for (at, entry) in self.entries.iter().enumerate() {
            for run in &entry.runs {
                check_run(run, sources).map_err(|problem| Error::Tape { entry: at, problem })?;
            }
        }
        Ok(())
    }
}

fn entry_bytes(entry: &Entry) -> Result<u64, TapeProblem> {
    let mut sum = 0u64;
    for run in &entry.runs {
        if entry.row_bytes == 0 || run.run_bytes % entry.row_bytes != 0 {
            return Err(TapeProblem::Rows { row_bytes: entry.row_bytes, run_bytes: run.run_bytes });
        }
        let bytes = run.bytes().and_then(|bytes| sum.checked_add(bytes));
        sum = bytes.filter(|_| run.end().is_some()).ok_or(TapeProblem::Overflow)?;
    }
    if sum == 0 { Err(TapeProblem::Empty) } else { Ok(sum) }
}

fn check_run(run: &Run, sources: &[Arc<dyn Source>]) -> Result<(), TapeProblem> {
    let found = run.source.index();
    let source = sources.get(found).ok_or(TapeProblem::Source { found, sources: sources.len() })?;
    let (end, len) = (run.end().ok_or(TapeProblem::Overflow)?, source.len());
    if end > len {
        return Err(TapeProblem::PastEnd { path: source.name().to_path_buf(), end, len });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: u64, run_bytes: u64, count: u64, stride: u64) -> Run {
        Run { source: SourceId::new(0), offset, run_bytes, count, stride }
    }

    fn problem(entries: Vec<Entry>) -> TapeProblem {
        match Tape::new(entries) {
            Err(Error::Tape { problem, .. }) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pieces_follow_runs_and_join_neighbours() {
        let entry = Entry::from_runs([run(100, 4, 3, 10), run(124, 6, 1, 0), run(0, 2, 5, 2)], 2);
        let mut pieces = Vec::new();
        let mut ranges = |from, len| {
            entry.pieces(from, len, &mut pieces);
            pieces.iter().map(|piece| (piece.offset, piece.len, piece.at)).collect::<Vec<_>>()
        };
        assert_eq!(ranges(0, 2), [(100, 2, 0)]);
        assert_eq!(ranges(2, 4), [(102, 2, 0), (110, 2, 2)]);
        // The third segment ends where the second run begins.
        assert_eq!(ranges(0, 28), [(100, 4, 0), (110, 4, 4), (120, 10, 8), (0, 10, 18)]);
        assert_eq!(ranges(26, 2), [(8, 2, 0)]);

        // The same offsets in another source are not neighbours.
        let elsewhere = Run { source: SourceId::new(1), ..run(4, 4, 1, 4) };
        Entry::from_runs([run(0, 4, 1, 4), elsewhere], 4).pieces(0, 8, &mut pieces);
        assert_eq!(pieces.len(), 2);
    }

    #[test]
    fn an_entry_is_read_across_its_runs() {
        let source: Arc<dyn Source> = Arc::new(crate::MemorySource::new("m", (0..140).collect::<Vec<u8>>()));
        let entry = Entry::from_runs([run(100, 4, 3, 10), run(0, 2, 5, 2)], 2);
        let mut buf = [0; 8];
        entry.read(&[Arc::clone(&source)], 6, &mut buf).unwrap();
        assert_eq!(buf, [112, 113, 120, 121, 122, 123, 0, 1]);
        assert!(matches!(entry.read(&[source], 20, &mut buf), Err(Error::Setting { found: 28, .. })));
    }

    #[test]
    fn impossible_tapes_are_refused() {
        let entry = |runs: &[Run], row_bytes| Entry::from_runs(runs.iter().copied(), row_bytes);
        assert_eq!(problem(vec![entry(&[], 4)]), TapeProblem::Empty);
        assert_eq!(problem(vec![entry(&[run(0, 4, 0, 4)], 4)]), TapeProblem::Empty);
        assert_eq!(
            problem(vec![entry(&[run(0, 6, 1, 6)], 4)]),
            TapeProblem::Rows { row_bytes: 4, run_bytes: 6 }
        );
        assert_eq!(
            problem(vec![entry(&[run(0, 6, 1, 6)], 0)]),
            TapeProblem::Rows { row_bytes: 0, run_bytes: 6 }
        );
        for overflowing in [
            run(u64::MAX, 4, 1, 4),
            run(0, 4, 3, u64::MAX / 2 + 1),
            run(0, 4, u64::MAX, 4),
            run(0, 1 << 40, 1 << 40, 0),
        ] {
            assert_eq!(problem(vec![entry(&[overflowing], 4)]), TapeProblem::Overflow);
        }
        let half = run(0, 1 << 63, 1, 0);
        assert_eq!(problem(vec![entry(&[half], 1), entry(&[half], 1)]), TapeProblem::Overflow);
    }

    #[test]
    fn runs_must_lie_in_their_sources() {
        let source: Arc<dyn Source> = Arc::new(crate::MemorySource::new("short", vec![0; 100]));
        let check =
            |run: Run| Tape::new(vec![Entry::from_runs([run], 4)]).unwrap().check(&[Arc::clone(&source)]);
        assert!(check(run(96, 4, 1, 4)).is_ok());
        assert!(check(run(0, 4, 2, 96)).is_ok());
        let past = TapeProblem::PastEnd { path: "short".into(), end: 101, len: 100 };
        assert!(matches!(check(run(1, 4, 2, 96)), Err(Error::Tape { entry: 0, problem }) if problem == past));
        let elsewhere = Run { source: SourceId::new(1), ..run(0, 4, 1, 4) };
        assert!(matches!(
            check(elsewhere),
            Err(Error::Tape { problem: TapeProblem::Source { found: 1, sources: 1 }, .. })
        ));
    }
}
