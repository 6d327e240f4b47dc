//! The slots against a naive model, over every reader.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use kimi_paging::{Budget, Error, Extent, MAX_PARTS, MemorySource, Readers, RecordProblem, Slots, Source};
use kimi_testing::Seeded;
use proptest::prelude::*;

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/records.rs"]
mod records;
#[path = "support/sources.rs"]
mod sources;

use faulty::{Fault, Faulty};
use records::{drain, extent, over, requests};
use sources::{every_backend, readers};

/// No multiple of any alignment.
const SOURCE_BYTES: usize = 30_003;
const SOURCES: usize = 5;
const RECORD_BYTES: usize = 12_000;
const PARTS: usize = 3;

/// Sources of every kind; the last one may fail.
fn sources(
    faults: impl Fn(usize, u64) -> Fault + Send + Sync + 'static,
) -> (Vec<Vec<u8>>, Vec<Arc<dyn Source>>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bytes");
    let file = Seeded::new(0).bytes(SOURCE_BYTES);
    std::fs::write(&path, &file).unwrap();
    let mut bytes = vec![file; 3];
    bytes.extend((1..3).map(|seed| Seeded::new(seed).bytes(SOURCE_BYTES)));
    let mut list = every_backend(&path);
    list.push(Arc::new(MemorySource::new("memory", bytes[3].clone())));
    list.push(Arc::new(Faulty::new(bytes[4].clone(), faults)));
    assert_eq!(list.len(), SOURCES);
    (bytes, list, dir)
}

/// The parts of a record are fixed by its key, except that a record of `variant` 1 has others under the same key.
fn parts(key: u64, variant: u64) -> Vec<Extent> {
    let mut seeded = Seeded::new(key + 1000 * variant);
    let source = seeded.below(SOURCES);
    let mut next = seeded.below(15_000) as u64;
    let part = |_| {
        // Often neighbours, sometimes of lengths that keep the alignment, sometimes elsewhere.
        let len = match seeded.below(4) {
            0 | 1 => 64,
            2 => seeded.below(100) as u64,
            _ => seeded.below(3900) as u64,
        };
        let source = if seeded.below(4) == 0 { seeded.below(SOURCES) } else { source };
        if seeded.below(4) == 0 {
            next = seeded.below(15_000) as u64;
        }
        next += len;
        extent(source, next - len, len)
    };
    let mut parts: Vec<_> = (0..1 + key as usize % PARTS).map(part).collect();
    if key.is_multiple_of(2) {
        parts.reverse();
    }
    parts
}

#[derive(Debug, Clone)]
enum Op {
    /// Keys with their variants.
    Begin(Vec<(u64, u64)>),
    Next(usize),
    NextReady(usize),
    Cancel,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let request = (0..12u64, prop_oneof![9 => Just(0u64), 1 => Just(1u64)]);
    let op = prop_oneof![
        3 => prop::collection::vec(request, 0..10).prop_map(Op::Begin),
        2 => (1..12usize).prop_map(Op::Next),
        2 => (1..12usize).prop_map(Op::NextReady),
        1 => Just(Op::Cancel),
    ];
    prop::collection::vec(op, 1..30)
}

/// Plays `ops`. Failures are tried again, or given up, as a seed decides.
fn compare(
    bytes: &[Vec<u8>],
    list: &[Arc<dyn Source>],
    slots: usize,
    ops: &[Op],
    readers: &Readers,
    seed: u64,
) {
    let leased = Slots::leased_bytes(list, slots, RECORD_BYTES, PARTS);
    let budget = Budget::new(leased);
    let mut cache = Slots::new(list, &budget, readers, slots, RECORD_BYTES, PARTS)
        .unwrap()
        .keep_mapped(seed.is_multiple_of(2));
    if seed.is_multiple_of(3) {
        cache = cache.per_class(2 + seed as usize % 3, |key| key as usize / 4);
    }
    let mut seeded = Seeded::new(seed);
    let mut expected: std::collections::VecDeque<(u64, Vec<Extent>)> = Default::default();
    for op in ops {
        match op {
            Op::Begin(requests) => {
                expected = requests.iter().map(|&(key, variant)| (key, parts(key, variant))).collect();
                cache.begin(expected.iter().map(|(key, parts)| (*key, parts))).unwrap();
            }
            Op::Next(count) | Op::NextReady(count) => {
                let mut left = *count;
                let in_order = matches!(op, Op::Next(_));
                while left > 0 {
                    let error = match if in_order { cache.next() } else { cache.next_ready() } {
                        Ok(None) => {
                            assert_eq!(expected.front(), None);
                            break;
                        }
                        Ok(Some(record)) => {
                            let is_it = |(key, parts): &(u64, Vec<Extent>)| {
                                let mut wanted = parts.iter().map(|part| {
                                    let start = part.offset as usize;
                                    &bytes[part.source.index()][start..start + part.len as usize]
                                });
                                let same = |at| wanted.next() == Some(record.part(at));
                                (record.key(), record.parts()) == (*key, parts.len())
                                    && (0..parts.len()).all(same)
                            };
                            let at = expected.iter().position(is_it).expect("it was asked for");
                            assert!(at == 0 || !in_order);
                            expected.remove(at);
                            left -= 1;
                            continue;
                        }
                        Err(error) => error,
                    };
                    assert!(matches!(error, Error::ShortRead { .. } | Error::Io { .. }), "{error:?}");
                    if seeded.below(3) == 0 {
                        cache.cancel();
                        expected.clear();
                    }
                }
            }
            Op::Cancel => {
                cache.cancel();
                expected.clear();
            }
        }
        assert_eq!((budget.used_bytes(), budget.peak_bytes()), (leased, leased));
    }
    drop(cache);
    assert_eq!(budget.used_bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn records_are_those_of_the_model(slots in 1..6usize, ops in ops(), with in sources::settings(), seed: u64) {
        let (bytes, list, _dir) = sources(|_, _| Fault::None);
        compare(&bytes, &list, slots, &ops, &readers(with), seed);
    }

    #[test]
    fn failures_and_delays_change_nothing_that_is_handed_out(slots in 1..6usize, ops in ops(), with in sources::settings(), seed: u64) {
        let (bytes, list, _dir) = sources(move |number, _| match Seeded::new(seed ^ number as u64).below(10) {
            0 => Fault::Short,
            1 => Fault::Io(ErrorKind::TimedOut),
            2 => Fault::Io(ErrorKind::InvalidInput),
            3 => Fault::Delay(Duration::from_micros(200)),
            _ => Fault::None,
        });
        compare(&bytes, &list, slots, &ops, &readers(with), seed);
    }
}

#[test]
fn other_parts_under_the_same_key_are_another_record() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Faulty::new((0..200).collect(), |_, _| Fault::None));
    let mut cache = over(&source, &readers, 2);
    let round = |cache: &mut Slots, parts: &[[Extent; 1]]| {
        cache.begin(parts.iter().map(|parts| (7, parts))).unwrap();
        let mut firsts = Vec::new();
        while let Some(record) = cache.next().unwrap() {
            firsts.push(record.part(0)[0]);
        }
        firsts
    };
    let (a, b) = ([extent(0, 10, 4)], [extent(0, 20, 4)]);
    assert_eq!(round(&mut cache, &[a, b, a, a, b]), [10, 20, 10, 10, 20]);
    assert_eq!(round(&mut cache, &[b]), [20]);
    assert_eq!(round(&mut cache, &[a, b]), [10, 20]);
}

#[test]
fn a_short_read_is_tried_again_and_never_a_missing_part() {
    let readers = Readers::new(1).unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let still = Arc::clone(&broken);
    let source = Arc::new(Faulty::new(vec![1; 640], move |number, offset| {
        let always = offset == 128 && still.load(Ordering::SeqCst);
        if number == 0 || always { Fault::Short } else { Fault::None }
    }));
    let mut cache = over(&source, &readers, 4);
    cache.begin(requests(&[0, 1])).unwrap();
    assert_eq!(drain(&mut cache), [0, 1]);
    assert_eq!(source.log().len(), 3);

    broken.store(true, Ordering::SeqCst);
    cache.begin(requests(&[1, 2, 3])).unwrap();
    assert_eq!(cache.next().unwrap().unwrap().key(), 1);
    for _ in 0..2 {
        let error = cache.next().unwrap_err();
        assert!(matches!(error, Error::ShortRead { offset: 128, expected: 64, found: 32, .. }), "{error:?}");
    }
    // The next round does not take the failed record for one that is there.
    cache.begin(requests(&[2])).unwrap();
    assert!(cache.next().is_err());
    broken.store(false, Ordering::SeqCst);
    assert_eq!(cache.next().unwrap().unwrap().part(0), &[1; 64]);
    cache.begin(requests(&[3, 2])).unwrap();
    assert_eq!(drain(&mut cache), [3, 2]);
}

#[test]
fn a_cancelled_round_keeps_what_was_read() {
    let readers = Readers::new(1).unwrap();
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let open = Arc::clone(&gate);
    // The first read waits at the gate.
    let source = Arc::new(Faulty::new(vec![1; 640], move |number, _| {
        let (open, changed) = &*open;
        drop(changed.wait_while(open.lock().unwrap(), |open| number == 0 && !*open).unwrap());
        Fault::None
    }));
    let mut cache = over(&source, &readers, 4);
    cache.begin(requests(&[0, 1, 2])).unwrap();
    while source.log().is_empty() {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5));
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
        });
        cache.cancel();
    });
    assert_eq!(source.log().len(), 1);
    assert!(cache.next().unwrap().is_none());
    cache.begin(requests(&[0, 1])).unwrap();
    assert_eq!(drain(&mut cache), [0, 1]);
    assert_eq!((source.log().len(), cache.hits()), (2, 1));
}

#[test]
fn parts_are_aligned_and_neighbours_are_read_at_once() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Faulty::new((0..=255).cycle().take(1000).collect(), |_, _| Fault::None));
    let list: Vec<Arc<dyn Source>> = vec![source.clone()];
    let record_bytes = Slots::record_bytes(&[128, 64, 10]);
    assert_eq!(record_bytes, 256);
    let mut cache = Slots::new(&list, &Budget::unlimited(), &readers, 1, record_bytes, 3).unwrap();
    cache.begin([(1, [extent(0, 328, 10), extent(0, 136, 128), extent(0, 264, 64)])]).unwrap();
    let record = cache.next().unwrap().unwrap();
    for (part, (start, len)) in [(328, 10), (136, 128), (264, 64)].into_iter().enumerate() {
        let bytes = record.part(part);
        assert_eq!((bytes.len(), usize::from(bytes[0]), bytes.as_ptr().addr() % 64), (len, start % 256, 0));
    }
    assert_eq!(source.log(), [(136, 202)]);
}

#[test]
fn impossible_settings_and_requests_are_errors() {
    let readers = Readers::new(1).unwrap();
    let budget = Budget::new(20_000);
    let list: Vec<Arc<dyn Source>> = vec![Arc::new(MemorySource::new("memory", vec![1; 100]))];
    let new = |slots, record_bytes, parts| Slots::new(&list, &budget, &readers, slots, record_bytes, parts);
    for (built, name) in [
        (new(0, 1, 1), "slots"),
        (new(1, 0, 1), "record_bytes"),
        (new(1, 1, 0), "parts"),
        (new(1, 1, MAX_PARTS + 1), "parts"),
    ] {
        assert!(matches!(built, Err(Error::Setting { what, .. }) if what == name));
    }
    assert!(matches!(new(3, 4096, 1), Err(Error::OverBudget { what: "slots", .. })));
    assert!(matches!(new(1, usize::MAX, 1), Err(Error::TooLarge { .. })));
    assert_eq!(budget.used_bytes(), 0);

    let mut cache = new(1, 64, 1).unwrap();
    let good = [extent(0, 0, 4)];
    let mut problem = |parts: &[Extent]| match cache.begin([(1, &good[..]), (9, parts)]) {
        Err(Error::Record { key: 9, problem }) => problem,
        other => panic!("{other:?}"),
    };
    assert_eq!(problem(&[extent(0, 0, 65)]), RecordProblem::Size { needed: 65, record_bytes: 64 });
    assert_eq!(problem(&[extent(0, 0, 1); 2]), RecordProblem::Parts { found: 2, limit: 1 });
    assert!(matches!(problem(&[extent(0, 99, 2)]), RecordProblem::PastEnd { end: 101, len: 100, .. }));
    assert_eq!(problem(&[extent(3, 0, 1)]), RecordProblem::Source { found: 3, sources: 1 });
    // Nothing of a refused round is asked for.
    assert!(cache.next().unwrap().is_none());
}

#[test]
fn a_leaked_record_is_an_error_and_no_hang() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 640], |_, _| Fault::None));
    let mut cache = over(&source, &readers, 2);
    cache.begin(requests(&[0, 1, 2])).unwrap();
    std::mem::forget(cache.next().unwrap());
    assert_eq!(drain(&mut cache), [1, 2]);
    std::mem::forget(cache.next().unwrap());
    cache.begin(requests(&[0])).unwrap();
    assert!(matches!(cache.next(), Err(Error::Leaked { what: "record" })));
    cache.begin(requests(&[2])).unwrap();
    std::mem::forget(cache.next().unwrap());
    cache.begin(requests(&[3])).unwrap();
    assert!(matches!(cache.next(), Err(Error::Leaked { what: "record" })));
}

#[test]
fn many_caches_share_readers() {
    let readers = Readers::new(3).unwrap();
    let (bytes, list, _dir) =
        sources(
            |number, _| {
                if number.is_multiple_of(5) { Fault::Delay(Duration::from_micros(50)) } else { Fault::None }
            },
        );
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (bytes, list, readers) = (&bytes, &list, &readers);
            scope.spawn(move || {
                let mut seeded = Seeded::new(thread);
                let mut ops = Vec::new();
                for _ in 0..100 {
                    ops.push(Op::Begin((0..seeded.below(9)).map(|_| (seeded.below(12) as u64, 0)).collect()));
                    ops.push(Op::Next(seeded.below(12)));
                }
                compare(bytes, list, 1 + thread as usize, &ops, readers, thread);
            });
        }
    });
}
