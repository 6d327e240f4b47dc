//! What is under way: buffers, and the requests that fill them. Knows nothing of the kernel.

use std::sync::Arc;
use std::time::Instant;

use crate::SourceId;
use crate::readers::cell::{Cell, Done, Work};
use crate::readers::queue::Class;
use crate::source::alignment;

/// Buffers that are being filled.
///
/// A buffer comes with [`add`](Self::add), is filled by requests, each with a number, that [`issue`](Self::issue) begins and
/// [`complete`](Self::complete) ends, and leaves when none of its requests is under way any more.
#[derive(Debug)]
pub(super) struct Flight {
    actives: Vec<Option<Active>>,
    requests: Vec<Request>,
    /// Numbers of requests that are not under way.
    free: Vec<usize>,
    request_bytes: usize,
    /// Buffers that ever came, for their order.
    added: u64,
}

/// A buffer that is being filled.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) class: Class,
    pub(super) cell: Arc<Cell>,
    pub(super) work: Work,
    pub(super) begun: Instant,
    pub(super) done: Done,
    /// A request did not bring what it was to; the rest does not matter then.
    pub(super) failed: bool,
    number: u64,
    /// The next request: which read of the job, and where in it.
    read: usize,
    from: usize,
    under_way: usize,
}

/// A part of a read.
#[derive(Debug, Clone, Copy, Default)]
struct Request {
    active: usize,
    read: usize,
    /// Where it begins in the read, the bytes that are wanted, and the bytes asked for: whole blocks, where the file may end in
    /// between.
    from: usize,
    wanted: usize,
    asked: usize,
    done: usize,
    align: usize,
}

/// A range of a file, and the memory for it.
#[derive(Debug)]
pub(super) struct Span<'a> {
    pub(super) source: SourceId,
    pub(super) offset: u64,
    pub(super) memory: &'a mut [u8],
    /// The length of `memory`.
    pub(super) len: u32,
}

/// What follows from a completion.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart at once, and a box would be an allocation per read"
)]
pub(super) enum Step {
    /// The request goes on, with its rest.
    Again,
    /// Other requests of the same buffer are to come.
    Wait,
    /// A buffer has left.
    Landed(Active),
}

impl Active {
    pub(super) fn new(class: Class, cell: Arc<Cell>, work: Work) -> Self {
        let reads = work.job.reads.iter();
        let done = reads.fold(Done::default(), |sum, read| Done {
            reads: sum.reads + 1,
            bytes: sum.bytes + read.len as u64,
        });
        let begun = Instant::now();
        let (number, read, from, under_way) = (0, 0, 0, 0);
        Self { class, cell, work, begun, done, failed: false, number, read, from, under_way }
    }

    /// True if the kernel can do the reads as they are: of files, in whole blocks, inside the buffer.
    pub(super) fn is_plain(&self) -> bool {
        let buffer = &self.work.buffer;
        let fits = |at: usize, padded: usize| at.checked_add(padded).is_some_and(|end| end <= buffer.len());
        !self.work.job.reads.is_empty()
            && self.work.job.reads.iter().all(|read| {
                let source = self.cell.source(read);
                let align = alignment(source) as usize;
                let aligned = read.offset % align as u64 == 0 && read.at % align == 0;
                read.len > 0
                    && source.file().is_some()
                    && aligned
                    && fits(read.at, read.len.next_multiple_of(align))
            })
    }
}

impl Flight {
    /// Room for `depth` requests of at most `request_bytes` bytes, which is a multiple of every alignment.
    pub(super) fn new(depth: usize, request_bytes: usize) -> Self {
        Self {
            // Each buffer has a request under way, except one of each class that is about to.
            actives: Vec::with_capacity(depth + 2),
            requests: vec![Request::default(); depth],
            free: (0..depth).rev().collect(),
            request_bytes,
            added: 0,
        }
    }

    /// True if another request may begin.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// True if there is no buffer.
    pub(super) fn is_idle(&self) -> bool {
        self.actives.iter().all(Option::is_none)
    }

    /// Takes a buffer whose reads are [plain](Active::is_plain).
    pub(super) fn add(&mut self, active: Active) {
        self.added += 1;
        let active = Some(Active { number: self.added, ..active });
        match self.actives.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = active,
            None => self.actives.push(active),
        }
    }

    /// Begins the next request of the oldest buffer of a class that needs one.
    pub(super) fn issue(&mut self, class: Class) -> Option<usize> {
        let needy = |place: &Option<Active>| {
            place.as_ref().filter(|active| active.class == class && active.has_more()).map(|a| a.number)
        };
        let oldest =
            self.actives.iter().enumerate().filter_map(|(at, place)| Some((needy(place)?, at))).min();
        let (_, at) = oldest?;
        let request = self.free.pop()?;
        let active = self.actives[at].as_mut()?;
        let read = active.work.job.reads[active.read];
        let align = alignment(active.cell.source(&read)) as usize;
        let from = active.from;
        let to = read.len.next_multiple_of(align).min(from + self.request_bytes);
        let wanted = to.min(read.len) - from;
        self.requests[request] =
            Request { active: at, read: active.read, from, wanted, asked: to - from, done: 0, align };
        (active.read, active.from) = if to >= read.len { (active.read + 1, 0) } else { (active.read, to) };
        active.under_way += 1;
        Some(request)
    }

    /// The cell of a request that is under way.
    pub(super) fn cell(&self, request: usize) -> &Arc<Cell> {
        match &self.actives[self.requests[request].active] {
            Some(active) => &active.cell,
            None => unreachable!("a buffer stays while a request is under way"),
        }
    }

    /// What is left to be read by a request that is under way.
    pub(super) fn span(&mut self, request: usize) -> Span<'_> {
        let Request { active, read, from, asked, done, align, .. } = self.requests[request];
        let Some(active) = &mut self.actives[active] else {
            unreachable!("a buffer stays while a request is under way")
        };
        let read = active.work.job.reads[read];
        // Direct reads begin with a block, so one that was read in part is read again.
        let skip = done / align * align;
        let (begin, len) = (read.at + from + skip, asked - skip);
        Span {
            source: read.source,
            offset: read.offset + (from + skip) as u64,
            memory: &mut active.work.buffer[begin..begin + len],
            // At most 1 GiB, by the settings of the readers.
            len: len as u32,
        }
    }

    /// Takes the answer of the kernel to a request: the bytes read, or an error.
    pub(super) fn complete(&mut self, number: usize, result: i32) -> Step {
        let request = &mut self.requests[number];
        let at = request.active;
        let Some(active) = &mut self.actives[at] else {
            unreachable!("a buffer stays while a request is under way")
        };
        let skip = request.done / request.align * request.align;
        let reached = skip + usize::try_from(result).unwrap_or(0);
        if result < 0 || reached <= request.done {
            active.failed = true;
        }
        request.done = reached;
        if request.done < request.wanted && !active.failed {
            return Step::Again;
        }
        self.free.push(number);
        active.under_way -= 1;
        if active.under_way > 0 || active.has_more() {
            return Step::Wait;
        }
        self.actives[at].take().map_or(Step::Wait, Step::Landed)
    }

    /// Begins no more requests, and gives back the buffers that have none under way.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = Active> + '_ {
        self.actives.iter_mut().filter_map(|place| {
            place.as_mut()?.failed = true;
            place.take_if(|active| active.under_way == 0)
        })
    }
}

impl Active {
    /// True if requests are still to begin.
    fn has_more(&self) -> bool {
        !self.failed && self.read < self.work.job.reads.len()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use kimi_testing::Seeded;
    use proptest::prelude::*;

    use super::*;
    use crate::readers::job::Piece;
    use crate::{Backend, Budget, Error, Source};

    const BYTES: usize = 300_001;

    /// Bytes with an alignment, and any file.
    #[derive(Debug)]
    struct Aligned(Vec<u8>, usize, File);

    impl Source for Aligned {
        fn name(&self) -> &Path {
            Path::new("aligned")
        }

        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
            panic!("the kernel reads")
        }

        fn backend(&self) -> Backend {
            Backend::Direct
        }

        fn alignment(&self) -> usize {
            self.1
        }

        fn file(&self) -> Option<&File> {
            Some(&self.2)
        }
    }

    fn sources() -> Arc<[Arc<dyn Source>]> {
        let file = tempfile::tempfile().unwrap();
        [(1, 4096), (2, 1), (3, 512)]
            .map(|(seed, align)| {
                let file = file.try_clone().unwrap();
                Arc::new(Aligned(Seeded::new(seed).bytes(BYTES), align, file)) as Arc<dyn Source>
            })
            .into()
    }

    /// A buffer that is to be filled with `pieces`, and where the first one begins in it.
    fn active(class: Class, sources: &Arc<[Arc<dyn Source>]>, pieces: &[Piece]) -> Active {
        let mut sizes = crate::readers::Job::default();
        let space = sizes.assemble(pieces, sources);
        let buffer = Budget::unlimited().buffer(space, "test").unwrap();
        let cell = Arc::new(Cell::new(Arc::clone(sources), buffer, pieces.len(), None));
        cell.enqueue(|job| _ = job.assemble(pieces, sources));
        let work = cell.begin().unwrap();
        Active::new(class, cell, work)
    }

    fn piece(source: usize, offset: u64, len: usize) -> Piece {
        Piece { source: SourceId::new(source), offset, len, at: 0 }
    }

    proptest! {
        #[test]
        fn answers_in_any_order_and_of_any_length_fill_the_buffers(
            wishes in prop::collection::vec((0..3usize, 0..200_000u64, 1..100_000usize, any::<bool>()), 1..20),
            depth in 1..9usize, units in 1..3usize, seed: u64, failures: bool,
        ) {
            let sources = sources();
            let bytes = [1, 2, 3].map(|seed| Seeded::new(seed).bytes(BYTES));
            let mut flight = Flight::new(depth, units << 16);
            let mut seeded = Seeded::new(seed);
            let mut waiting: Vec<_> = wishes.iter().map(|&(source, offset, len, urgent)| {
                let class = if urgent { Class::Urgent } else { Class::Tape };
                active(class, &sources, &[piece(source, offset, len)])
            }).collect();
            let mut under_way: Vec<usize> = Vec::new();
            let mut failed_requests = 0;
            let mut landed = Vec::new();
            while !waiting.is_empty() || !flight.is_idle() {
                while flight.has_room() {
                    let issued = flight.issue(Class::Urgent).or_else(|| flight.issue(Class::Tape));
                    match (issued, waiting.pop()) {
                        (Some(request), put_back) => {
                            waiting.extend(put_back);
                            under_way.push(request);
                        }
                        (None, Some(active)) => {
                            prop_assert!(active.is_plain());
                            flight.add(active);
                        }
                        (None, None) => break,
                    }
                }
                prop_assert!(!under_way.is_empty() && under_way.len() <= depth);
                let request = under_way.swap_remove(seeded.below(under_way.len()));
                let span = flight.span(request);
                let source = &sources[span.source.index()];
                prop_assert_eq!(span.offset % source.alignment() as u64, 0);
                prop_assert_eq!(span.memory.len() % source.alignment(), 0);
                prop_assert_eq!(span.memory.as_ptr().addr() % source.alignment(), 0);
                let file = &bytes[span.source.index()];
                let there = file.len().saturating_sub(span.offset as usize).min(span.memory.len());
                let result = match seeded.below(6) {
                    0 if failures => -5,
                    1 if failures => 0,
                    // Never less than a block, or there would be no progress.
                    2 => there.min(4096 + seeded.below(there + 1)) as i32,
                    _ => there as i32,
                };
                failed_requests += usize::from(result <= 0);
                let count = result.max(0) as usize;
                span.memory[..count].copy_from_slice(&file[span.offset as usize..span.offset as usize + count]);
                match flight.complete(request, result) {
                    Step::Again => under_way.push(request),
                    Step::Wait => {}
                    Step::Landed(active) => landed.push(active),
                }
            }
            prop_assert_eq!(landed.len(), wishes.len());
            prop_assert!(failures || landed.iter().all(|active| !active.failed));
            prop_assert!(landed.iter().filter(|active| active.failed).count() <= failed_requests);
            prop_assert!(failed_requests == 0 || landed.iter().any(|active| active.failed));
            for active in landed.iter().filter(|active| !active.failed) {
                let read = active.work.job.reads[0];
                let file = &bytes[read.source.index()][read.offset as usize..][..read.len];
                prop_assert!(&active.work.buffer[read.at..read.at + read.len] == file);
            }
        }
    }

    #[test]
    fn who_waits_goes_first_and_requests_are_cut() {
        let sources = sources();
        let mut flight = Flight::new(8, 1 << 16);
        flight.add(active(Class::Tape, &sources, &[piece(1, 0, 200_000)]));
        flight.add(active(Class::Urgent, &sources, &[piece(1, 5, 70_000)]));
        let mut begun = Vec::new();
        while let Some(request) = flight.issue(Class::Urgent).or_else(|| flight.issue(Class::Tape)) {
            let span = flight.span(request);
            begun.push((span.offset, span.len));
        }
        let urgent = [(5, 65_536), (65_541, 4464)];
        let tape = [(0, 65_536), (65_536, 65_536), (131_072, 65_536), (196_608, 3392)];
        assert_eq!(begun, [&urgent[..], &tape].concat());
    }

    #[test]
    fn a_failure_ends_the_buffer_when_its_other_requests_have_ended() {
        let sources = sources();
        let mut flight = Flight::new(2, 1 << 16);
        flight.add(active(Class::Tape, &sources, &[piece(1, 0, 200_000)]));
        let (first, second) = (flight.issue(Class::Tape).unwrap(), flight.issue(Class::Tape).unwrap());
        assert!(!flight.has_room());
        assert!(matches!(flight.complete(second, -5), Step::Wait));
        assert!(flight.issue(Class::Tape).is_none());
        // The other one comes short, which does not matter any more.
        let Step::Landed(active) = flight.complete(first, 100) else { panic!() };
        assert!(active.failed && flight.is_idle());
    }

    #[test]
    fn the_end_of_a_file_is_no_short_read_and_an_earlier_end_is() {
        let sources = sources();
        let mut flight = Flight::new(2, 1 << 20);
        let tail = || active(Class::Tape, &sources, &[piece(0, 290_000, BYTES - 290_000)]);
        flight.add(tail());
        let request = flight.issue(Class::Tape).unwrap();
        let span = flight.span(request);
        assert_eq!((span.offset, span.len), (286_720, 16_384));
        assert!(matches!(flight.complete(request, 13_281), Step::Landed(active) if !active.failed));

        flight.add(tail());
        let request = flight.issue(Class::Tape).unwrap();
        assert!(matches!(flight.complete(request, 13_000), Step::Again));
        // The block that was cut is asked for again, and is still cut.
        assert_eq!(flight.span(request).offset, 286_720 + 12_288);
        assert!(matches!(flight.complete(request, 712), Step::Landed(active) if active.failed));
    }

    #[test]
    fn what_the_kernel_cannot_read_is_not_plain() {
        let sources = sources();
        let plain = |reads: &[Piece]| {
            let buffer = Budget::unlimited().buffer(16_384, "test").unwrap();
            let cell = Arc::new(Cell::new(Arc::clone(&sources), buffer, 4, None));
            cell.enqueue(|job| job.reads.extend_from_slice(reads));
            let work = cell.begin().unwrap();
            Active::new(Class::Tape, cell, work).is_plain()
        };
        let at = |piece: Piece, at| Piece { at, ..piece };
        assert!(plain(&[piece(0, 4096, 5000), at(piece(1, 3, 5), 9000)]));
        assert!(!plain(&[]));
        assert!(!plain(&[piece(1, 3, 0)]));
        assert!(!plain(&[piece(0, 4095, 5000)]));
        assert!(!plain(&[at(piece(0, 4096, 100), 100)]));
        // A whole block must have room.
        assert!(!plain(&[at(piece(0, 4096, 8000), 12_288)]));
    }
}
