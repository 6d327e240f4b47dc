//! Files as one stretch of whole pages.

use std::sync::Arc;

use kimi_paging::{Extent, PAGE_BYTES, Source, SourceId};

const PAGE: u64 = PAGE_BYTES as u64;

/// The whole pages of some files, one behind the other.
#[derive(Debug, Clone)]
pub(super) struct Area {
    /// Each file with the bytes of its whole pages.
    files: Vec<(SourceId, u64)>,
    bytes: u64,
}

impl Area {
    pub(super) fn new(sources: &[Arc<dyn Source>]) -> Self {
        let whole = |(at, source): (usize, &Arc<dyn Source>)| (SourceId::new(at), source.len() / PAGE * PAGE);
        let files: Vec<_> = sources.iter().enumerate().map(whole).filter(|file| file.1 > 0).collect();
        let bytes = files.iter().map(|file| file.1).sum();
        Self { files, bytes }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Everything, from the page of byte `from` to the end and from the beginning to there.
    pub(super) fn around(&self, from: u64) -> Vec<Extent> {
        let from = from % self.bytes.max(1) / PAGE * PAGE;
        let mut extents = self.cut(from, self.bytes - from);
        extents.extend(self.cut(0, from));
        extents
    }

    /// The extents of `len` bytes from byte `from` on.
    fn cut(&self, from: u64, len: u64) -> Vec<Extent> {
        let (mut skip, mut left) = (from, len);
        let mut extents = Vec::new();
        for &(source, bytes) in &self.files {
            let offset = skip.min(bytes);
            let part = (bytes - offset).min(left);
            if part > 0 {
                extents.push(Extent { source, offset, len: part });
            }
            (skip, left) = (skip - offset, left - part);
        }
        extents
    }

    /// About `len` bytes of one file at the place that a random number chooses; fewer where the file has no more.
    pub(super) fn piece(&self, random: u64, len: u64) -> Extent {
        let at = random % self.bytes;
        let mut before = 0;
        let holds = |&&(_, bytes): &&(SourceId, u64)| {
            let inside = at - before < bytes;
            before += if inside { 0 } else { bytes };
            inside
        };
        let &(source, bytes) = self.files.iter().find(holds).expect("the place lies in a file");
        let len = len.min(bytes);
        let offset = (at - before).min(bytes - len) / PAGE * PAGE;
        Extent { source, offset, len }
    }
}

#[cfg(test)]
mod tests {
    use kimi_paging::MemorySource;

    use super::*;

    fn area(files: &[usize]) -> Area {
        let source = |&len: &usize| Arc::new(MemorySource::new("file", vec![0; len])) as Arc<dyn Source>;
        Area::new(&files.iter().map(source).collect::<Vec<_>>())
    }

    fn plain(extents: &[Extent]) -> Vec<(usize, u64, u64)> {
        extents.iter().map(|at| (at.source.index(), at.offset / PAGE, at.len / PAGE)).collect()
    }

    #[test]
    fn whole_pages_count_and_everything_comes_once_from_any_place_on() {
        let area = area(&[3 * 4096 + 5, 100, 2 * 4096]);
        assert_eq!(area.bytes(), 5 * PAGE);
        assert_eq!(plain(&area.around(0)), [(0, 0, 3), (2, 0, 2)]);
        assert_eq!(plain(&area.around(PAGE + 7)), [(0, 1, 2), (2, 0, 2), (0, 0, 1)]);
        assert_eq!(plain(&area.around(4 * PAGE)), [(2, 1, 1), (0, 0, 3), (2, 0, 1)]);
        assert_eq!(area.around(5 * PAGE), area.around(0));
    }

    #[test]
    fn pieces_stay_inside_a_file_wherever_they_are() {
        let area = area(&[3 * 4096 + 5, 100, 2 * 4096]);
        for random in (0..20 * PAGE).step_by(999) {
            for len in [1, PAGE, 2 * PAGE + 1, 100 * PAGE] {
                let piece = area.piece(random, len);
                let whole = if piece.source.index() == 0 { 3 * PAGE } else { 2 * PAGE };
                assert!(piece.offset.is_multiple_of(PAGE) && piece.len == len.min(whole));
                assert!(piece.offset + piece.len <= whole, "{piece:?}");
            }
        }
    }
}
