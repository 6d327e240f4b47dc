//! The ring against a naive model, over every reader.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use kimi_paging::{
    Backend, Budget, Entry, Error, Extent, MemorySource, Readers, Ring, Run, Source, SourceId, Tape,
    TapeProblem,
};
use kimi_testing::Seeded;
use proptest::prelude::*;

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/sources.rs"]
mod sources;

use faulty::{Fault, Faulty};
use sources::{every_backend, readers};

/// No multiple of any alignment.
const SOURCE_BYTES: usize = 60_003;

/// How many sources [`Sources`] has.
const SOURCES: usize = 5;

/// Sources of every kind over different bytes; the last one may fail.
struct Sources {
    bytes: Vec<Vec<u8>>,
    list: Vec<Arc<dyn Source>>,
    _dir: tempfile::TempDir,
}

impl Sources {
    fn new(faults: impl Fn(usize, u64) -> Fault + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = Seeded::new(0).bytes(SOURCE_BYTES);
        let path = dir.path().join("bytes");
        std::fs::write(&path, &file).unwrap();
        let mut bytes = vec![file; 3];
        bytes.extend((1..3).map(|seed| Seeded::new(seed).bytes(SOURCE_BYTES)));
        let mut list = every_backend(&path);
        list.push(Arc::new(MemorySource::new("memory", bytes[3].clone())));
        list.push(Arc::new(Faulty::new(bytes[4].clone(), faults)));
        assert_eq!(list.len(), SOURCES);
        Self { bytes, list, _dir: dir }
    }
}

/// An entry with its bytes, put together one by one.
#[derive(Debug, Clone)]
struct Naive {
    entry: Entry,
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl Naive {
    fn new(sources: &Sources, row_bytes: usize, runs: &[Run]) -> Self {
        let mut bytes = Vec::new();
        for run in runs {
            for segment in 0..run.count {
                let start = (run.offset + segment * run.stride) as usize;
                bytes.extend(&sources.bytes[run.source.index()][start..start + run.run_bytes as usize]);
            }
        }
        Self { entry: Entry::from_runs(runs.iter().copied(), row_bytes as u64), row_bytes, bytes }
    }

    /// First row and bytes of each tile.
    fn tiles(&self, tile_bytes: usize, row_multiple: usize) -> Option<Vec<(usize, &[u8])>> {
        let rows = self.bytes.len() / self.row_bytes;
        let fitting = tile_bytes / self.row_bytes;
        let tile_rows = if fitting >= rows { rows } else { fitting / row_multiple * row_multiple };
        if tile_rows == 0 {
            return None;
        }
        Some(
            self.bytes
                .chunks(tile_rows * self.row_bytes)
                .enumerate()
                .map(|(n, tile)| (n * tile_rows, tile))
                .collect(),
        )
    }
}

#[derive(Debug, Clone)]
enum Op {
    Push(usize, usize),
    Next(usize),
    Clear,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..6usize, 0..7usize).prop_map(|(start, len)| Op::Push(start, len)),
        4 => (1..20usize).prop_map(Op::Next),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 1..25)
}

/// Row bytes, and runs of `(source, offset, rows, count, gap)`.
type Shape = (usize, Vec<(usize, u64, u64, u64, u64)>);

fn entry_shapes() -> impl Strategy<Value = Vec<Shape>> {
    let gap = prop_oneof![4 => 0..30u64, 1 => 0..5000u64];
    let run = (0..SOURCES, 0..20_000u64, 1..12u64, 1..4u64, gap);
    let row_bytes = prop_oneof![3 => 1..12usize, 1 => 12..700usize];
    prop::collection::vec((row_bytes, prop::collection::vec(run, 1..4)), 1..6)
}

fn naive_entries(sources: &Sources, shapes: &[Shape]) -> Vec<Naive> {
    let entry = |(row_bytes, runs): &Shape| {
        let run = |&(source, offset, rows, count, gap): &(usize, u64, u64, u64, u64)| {
            let run_bytes = rows * *row_bytes as u64;
            Run { source: SourceId::new(source), offset, run_bytes, count, stride: run_bytes + gap }
        };
        Naive::new(sources, *row_bytes, &runs.iter().map(run).collect::<Vec<_>>())
    };
    shapes.iter().map(entry).collect()
}

/// Settings of a ring under test.
#[derive(Debug, Clone, Copy)]
struct Settings {
    tile_bytes: usize,
    depth: usize,
    pinned_bytes: u64,
    row_multiple: usize,
}

/// Plays `ops` on a ring and on lists of tiles. Failures are tried again, or given up, as a seed decides.
fn compare(
    sources: &Sources,
    entries: &[Naive],
    settings: Settings,
    ops: &[Op],
    readers: &Readers,
    seed: u64,
) {
    let Settings { tile_bytes, depth, pinned_bytes, row_multiple } = settings;
    let tape = Tape::new(entries.iter().map(|naive| naive.entry.clone()).collect()).unwrap();
    let builder = || {
        Ring::builder(&sources.list, tape.clone())
            .tile_bytes(tile_bytes)
            .depth(depth)
            .pinned_bytes(pinned_bytes)
            .row_multiple(row_multiple as u64)
    };
    let tiles: Option<Vec<_>> = entries.iter().map(|naive| naive.tiles(tile_bytes, row_multiple)).collect();
    let Some(tiles) = tiles else {
        let result = builder().build(&Budget::unlimited(), readers);
        assert!(
            matches!(result, Err(Error::Tape { problem: TapeProblem::TileTooSmall { .. }, .. })),
            "{result:?}"
        );
        return;
    };
    let leased = builder().leased_bytes().unwrap();
    if let Some(less) = leased.checked_sub(1) {
        let tight = Budget::new(less);
        assert!(matches!(builder().build(&tight, readers), Err(Error::OverBudget { .. })));
        assert_eq!(tight.used_bytes(), 0);
    }
    let budget = Budget::new(leased);
    let mut ring = builder().build(&budget, readers).unwrap();
    let mut seeded = Seeded::new(seed);
    let mut expected = VecDeque::new();
    for op in ops {
        match *op {
            Op::Push(start, len) => {
                let (start, end) = (start.min(entries.len()), (start + len).min(entries.len()));
                ring.push(start..end);
                for entry in start..end {
                    expected.extend(tiles[entry].iter().map(|&(first, bytes)| (entry, first, bytes)));
                }
            }
            Op::Next(count) => {
                let mut left = count;
                while left > 0 {
                    let error = match ring.next() {
                        Ok(None) => {
                            assert_eq!(expected.front(), None);
                            break;
                        }
                        Ok(Some(tile)) => {
                            let (entry, first, bytes) =
                                expected.pop_front().expect("nothing else was pushed");
                            assert_eq!((tile.entry(), tile.first_row()), (entry, first));
                            assert_eq!(tile.rows() * entries[entry].row_bytes, bytes.len());
                            assert!(*tile == *bytes, "entry {entry}, row {first}");
                            left -= 1;
                            continue;
                        }
                        Err(error) => error,
                    };
                    assert!(matches!(error, Error::ShortRead { .. } | Error::Io { .. }), "{error:?}");
                    if seeded.below(3) == 0 {
                        ring.clear();
                        expected.clear();
                    }
                }
            }
            Op::Clear => {
                ring.clear();
                expected.clear();
            }
        }
        let mut entries_left: Vec<_> = expected.iter().map(|tile| (tile.0, tile.1)).collect();
        entries_left.retain(|&(entry, first)| tiles[entry].last().unwrap().0 == first);
        assert_eq!(ring.queued(), entries_left.len());
        assert_eq!((budget.used_bytes(), budget.peak_bytes()), (leased, leased));
    }
    drop(ring);
    assert_eq!(budget.used_bytes(), 0);
}

fn settings() -> impl Strategy<Value = Settings> {
    let tile_bytes = prop_oneof![3 => 8..200usize, 1 => 200..20_000usize];
    (tile_bytes, 1..6usize, prop_oneof![Just(0), 0..200_000u64], 1..4usize).prop_map(
        |(tile_bytes, depth, pinned_bytes, row_multiple)| Settings {
            tile_bytes,
            depth,
            pinned_bytes,
            row_multiple,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn tiles_are_those_of_the_model(shapes in entry_shapes(), settings in settings(), ops in ops(), with in sources::settings()) {
        let sources = Sources::new(|_, _| Fault::None);
        let entries = naive_entries(&sources, &shapes);
        compare(&sources, &entries, settings, &ops, &readers(with), 0);
    }

    #[test]
    fn failures_and_delays_change_nothing_that_is_handed_out(
        shapes in entry_shapes(), settings in settings(), ops in ops(), with in sources::settings(), seed: u64,
    ) {
        let sources = Sources::new(move |number, _| match Seeded::new(seed ^ number as u64).below(10) {
            0 => Fault::Short,
            1 => Fault::Io(ErrorKind::TimedOut),
            2 => Fault::Io(ErrorKind::InvalidInput),
            3 => Fault::Delay(Duration::from_micros(200)),
            _ => Fault::None,
        });
        let entries = naive_entries(&sources, &shapes);
        compare(&sources, &entries, settings, &ops, &readers(with), seed);
    }
}

/// One entry of `rows` rows of 8 bytes in a source of its own.
fn one_entry(source: Arc<dyn Source>, rows: u64) -> (Vec<Arc<dyn Source>>, Tape) {
    let extent = Extent { source: SourceId::new(0), offset: 0, len: rows * 8 };
    (vec![source], Tape::new(vec![Entry::new(extent, 8)]).unwrap())
}

/// Plays everything that was pushed; the sum of all bytes.
fn drain(ring: &mut Ring) -> u64 {
    let mut sum = 0;
    while let Some(tile) = ring.next().unwrap() {
        sum += tile.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    }
    sum
}

#[test]
fn reading_ahead_is_bounded_by_the_slots_and_crosses_passes() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 80], |_, _| Fault::None));
    let (sources, tape) = one_entry(source.clone(), 10);
    let budget = Budget::unlimited();
    let mut ring = Ring::builder(&sources, tape).tile_bytes(8).depth(3).build(&budget, &readers).unwrap();
    let reads_settle_at = |count: usize| {
        while source.log().len() < count {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(source.log().len(), count);
    };
    ring.push(0..1);
    reads_settle_at(3);
    let tile = ring.next().unwrap().unwrap();
    // The slot of a tile in use is not free.
    reads_settle_at(3);
    drop(tile);
    reads_settle_at(4);
    for _ in 1..9 {
        ring.next().unwrap().unwrap();
    }
    reads_settle_at(10);
    // The next pass is read while the last tile of this one waits.
    ring.push(0..1);
    assert_eq!(ring.queued(), 2);
    reads_settle_at(12);
    assert_eq!(drain(&mut ring), 11 * 8);
    assert_eq!((ring.queued(), ring.bytes_read()), (0, 160));
}

#[test]
fn pinned_tiles_are_read_once() {
    let readers = Readers::new(2).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 80], |_, _| Fault::None));
    let (sources, tape) = one_entry(source.clone(), 10);
    let budget = Budget::unlimited();
    let footprint = kimi_paging::Buffer::footprint(8);
    let build = |pinned| {
        Ring::builder(&sources, tape.clone())
            .tile_bytes(8)
            .depth(2)
            .pinned_bytes(pinned)
            .build(&budget, &readers)
            .unwrap()
    };
    let mut ring = build(4 * footprint + 1);
    assert_eq!(ring.resident_bytes(), 32);
    for lap in 1..4 {
        ring.push(0..1);
        let first = ring.next().unwrap().unwrap();
        assert_eq!(first.bytes_read(), if lap == 1 { 8 } else { 0 });
        drop(first);
        assert_eq!(drain(&mut ring), 72);
        assert_eq!((source.log().len(), ring.bytes_read()), (4 + lap * 6, 32 + lap as u64 * 48));
    }
    // Two laps at once: the second meets tiles that the first has not read yet.
    drop(ring);
    let before = source.log().len();
    let mut ring = build(u64::MAX / 2);
    assert_eq!((ring.resident_bytes(), budget.used_bytes()), (80, 10 * footprint));
    ring.push(0..1);
    ring.push(0..1);
    assert_eq!(drain(&mut ring), 160);
    assert_eq!(source.log().len(), before + 10);
}

#[test]
fn bytes_that_were_in_memory_anyway_cost_nothing() {
    let readers = Readers::new(1).unwrap();
    let (sources, tape) = one_entry(Arc::new(MemorySource::new("embedded", vec![1; 80])), 10);
    let budget = Budget::new(0);
    let mut ring = Ring::builder(&sources, tape).tile_bytes(24).build(&budget, &readers).unwrap();
    ring.push(0..1);
    assert_eq!(drain(&mut ring), 80);
    assert_eq!((ring.bytes_read(), readers.stats().tape.reads), (0, 0));
}

/// Bytes that count as mapped, with a list of what was said about them.
#[derive(Debug, Default)]
struct Announced {
    bytes: Vec<u8>,
    said: Mutex<Vec<(&'static str, u64)>>,
}

impl Announced {
    fn take(&self) -> Vec<(&'static str, u64)> {
        std::mem::take(&mut self.said.lock().unwrap())
    }
}

impl Source for Announced {
    fn name(&self) -> &Path {
        Path::new("announced")
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
        panic!("a view needs no read")
    }

    fn backend(&self) -> Backend {
        Backend::Mmap
    }

    fn mapped(&self, offset: u64, len: usize) -> Result<Option<&[u8]>, Error> {
        Ok(Some(&self.bytes[offset as usize..offset as usize + len]))
    }

    fn will_need(&self, offset: u64, _: u64) {
        self.said.lock().unwrap().push(("will need", offset));
    }

    fn release(&self, offset: u64, _: u64) {
        self.said.lock().unwrap().push(("release", offset));
    }
}

#[test]
fn mapped_tiles_are_announced_in_time_and_released_after_use() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Announced { bytes: (0..80).collect(), ..Announced::default() });
    let (sources, tape) = one_entry(source.clone(), 10);
    let budget = Budget::unlimited();
    // The first two tiles stay. A window of two is paid for, and no slot.
    let builder = Ring::builder(&sources, tape).tile_bytes(8).depth(2).pinned_bytes(17);
    let mut ring = builder.build(&budget, &readers).unwrap();
    assert_eq!((budget.used_bytes(), ring.resident_bytes()), (2 * 8 + 2 * 8, 16));

    ring.push(0..1);
    assert_eq!(source.take(), [("will need", 0), ("will need", 8)]);
    let tile = ring.next().unwrap().unwrap();
    // A view into the source, no copy.
    assert_eq!(tile.as_ptr(), source.bytes.as_ptr());
    assert_eq!(source.take(), []);
    drop(tile);
    assert_eq!(source.take(), [("will need", 16)]);
    drop(ring.next().unwrap());
    drop(ring.next().unwrap());
    assert_eq!(source.take(), [("will need", 24), ("release", 16), ("will need", 32)]);
    // An abandoned pass gives back what was announced.
    ring.clear();
    assert_eq!(source.take(), [("release", 32), ("release", 24)]);

    ring.push(0..1);
    assert_eq!(source.take(), [("will need", 16), ("will need", 24)]);
    assert_eq!(drain(&mut ring), (0..80).sum::<u64>());
    assert_eq!(ring.bytes_read(), 16 + 8 + 64);
    let said = source.take();
    let released = said.iter().filter(|said| said.0 == "release").map(|said| said.1);
    assert!(released.eq((2..10).map(|tile| tile * 8)));
    assert_eq!(said.len(), 6 + 8);
}

#[test]
fn an_abandoned_pass_leaves_no_trace() {
    let readers = Readers::new(1).unwrap();
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let open = Arc::clone(&gate);
    // The first read waits at the gate.
    let source = Arc::new(Faulty::new((0..80).collect(), move |number, _| {
        let (open, changed) = &*open;
        drop(changed.wait_while(open.lock().unwrap(), |open| number == 0 && !*open).unwrap());
        Fault::None
    }));
    let (sources, tape) = one_entry(source.clone(), 10);
    let budget = Budget::unlimited();
    let mut ring = Ring::builder(&sources, tape).tile_bytes(16).depth(4).build(&budget, &readers).unwrap();
    ring.push(0..1);
    while source.log().is_empty() {
        std::thread::yield_now();
    }
    // A read is under way, three more wait. `clear` has to wait for the first only.
    let cleared = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5));
            assert!(!cleared.load(Ordering::SeqCst));
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
        });
        ring.clear();
        cleared.store(true, Ordering::SeqCst);
    });
    assert_eq!((source.log().len(), ring.queued()), (1, 0));
    assert!(ring.next().unwrap().is_none());
    ring.push(0..1);
    assert_eq!(drain(&mut ring), (0..80).sum::<u64>());
}

#[test]
fn a_read_that_fails_once_is_not_noticed() {
    let readers = Readers::new(1).unwrap();
    for fault in [Fault::Short, Fault::Io(ErrorKind::TimedOut)] {
        let source = Arc::new(Faulty::new(
            vec![1; 80],
            move |number, _| if number == 1 { fault } else { Fault::None },
        ));
        let (sources, tape) = one_entry(source.clone(), 10);
        let mut ring =
            Ring::builder(&sources, tape).tile_bytes(8).build(&Budget::unlimited(), &readers).unwrap();
        ring.push(0..1);
        assert_eq!(drain(&mut ring), 80);
        assert_eq!(source.log().len(), 11);
    }
}

#[test]
fn a_read_that_keeps_failing_is_an_error_of_its_tile_only() {
    let readers = Readers::new(2).unwrap();
    let broken = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&broken);
    let source = Arc::new(Faulty::new(vec![1; 80], move |_, offset| {
        if offset == 24 && still.load(Ordering::SeqCst) { Fault::Short } else { Fault::None }
    }));
    let (sources, tape) = one_entry(source, 10);
    let mut ring =
        Ring::builder(&sources, tape).tile_bytes(8).depth(4).build(&Budget::unlimited(), &readers).unwrap();
    ring.push(0..1);
    for _ in 0..3 {
        assert_eq!(ring.next().unwrap().unwrap().len(), 8);
    }
    for _ in 0..3 {
        let error = ring.next().unwrap_err();
        assert!(matches!(error, Error::ShortRead { offset: 24, expected: 8, found: 4, .. }), "{error:?}");
    }
    broken.store(false, Ordering::SeqCst);
    let tile = ring.next().unwrap().unwrap();
    assert_eq!(tile.first_row(), 3);
    drop(tile);
    assert_eq!(drain(&mut ring), 6 * 8);
}

#[test]
fn impossible_settings_are_errors() {
    let readers = Readers::new(1).unwrap();
    let budget = Budget::new(100_000);
    let (sources, tape) = one_entry(Arc::new(MemorySource::new("short", vec![0; 79])), 10);
    let builder = || Ring::builder(&sources, tape.clone());
    let past = builder().build(&budget, &readers);
    assert!(
        matches!(past, Err(Error::Tape { entry: 0, problem: TapeProblem::PastEnd { end: 80, len: 79, .. } })),
        "{past:?}"
    );
    for (built, name) in [
        (builder().tile_bytes(0).build(&budget, &readers), "tile_bytes"),
        (builder().depth(0).build(&budget, &readers), "depth"),
        (builder().row_multiple(0).build(&budget, &readers), "row_multiple"),
    ] {
        assert!(matches!(built, Err(Error::Setting { what, found: 0, .. }) if what == name));
    }
    let (sources, tape) = one_entry(Arc::new(Faulty::new(vec![0; 80], |_, _| Fault::None)), 10);
    let builder = || Ring::builder(&sources, tape.clone());
    let error = builder().tile_bytes(31).row_multiple(4).build(&budget, &readers).unwrap_err();
    assert_eq!(error.to_string(), "tape entry 0: needs tiles of 32 bytes, but `tile_bytes` is 31");
    assert!(matches!(
        builder().depth(1000).build(&budget, &readers),
        Err(Error::OverBudget { what: "ring", .. })
    ));
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_leaked_tile_is_an_error_and_no_hang() {
    let readers = Readers::new(1).unwrap();
    let (sources, tape) = one_entry(Arc::new(Faulty::new(vec![1; 80], |_, _| Fault::None)), 10);
    let mut ring =
        Ring::builder(&sources, tape).tile_bytes(8).depth(2).build(&Budget::unlimited(), &readers).unwrap();
    ring.push(0..1);
    std::mem::forget(ring.next().unwrap());
    std::mem::forget(ring.next().unwrap());
    assert!(matches!(ring.next(), Err(Error::Leaked { what: "tile" })));
    ring.clear();
    assert!(ring.next().unwrap().is_none());
}

#[test]
fn many_rings_share_readers() {
    let readers = Readers::new(3).unwrap();
    let sources = Sources::new(|number, _| {
        if number.is_multiple_of(7) { Fault::Delay(Duration::from_micros(50)) } else { Fault::None }
    });
    let shapes: Vec<Shape> = vec![
        (8, vec![(3, 0, 30, 3, 8)]),
        (4, vec![(0, 5, 50, 1, 0), (3, 9, 40, 2, 1)]),
        (5, vec![(2, 3, 100, 1, 0)]),
    ];
    let entries = naive_entries(&sources, &shapes);
    let ops: Vec<_> = (0..40)
        .flat_map(|n| [Op::Push(0, 3), Op::Next(n % 70), if n % 9 == 8 { Op::Clear } else { Op::Next(3) }])
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (sources, entries, ops, readers) = (&sources, &entries, &ops, &readers);
            scope.spawn(move || {
                let settings = Settings {
                    tile_bytes: 40 + thread,
                    depth: 1 + thread,
                    pinned_bytes: 9000 * thread as u64,
                    row_multiple: 1,
                };
                compare(sources, entries, settings, ops, readers, 0);
            });
        }
    });
}
