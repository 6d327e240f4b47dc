//! The same bytes from every backend and every executor, and the same errors.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kimi_paging::{
    Budget, Entry, Error, Extent, MemorySource, ReadSettings, Ring, Run, Slots, Source, SourceId, Tape,
    TuneLimits, Tuning, tune,
};
use kimi_testing::Seeded;
use proptest::prelude::*;

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/sources.rs"]
mod sources;

use faulty::{Fault, Faulty};
use sources::{EXECUTORS, every_backend, readers};

/// Ends inside a block.
const FILE_BYTES: usize = 900_007;

fn extent(source: usize, offset: u64, len: u64) -> Extent {
    Extent { source: SourceId::new(source), offset, len }
}

/// Everything that a ring and slots hand out for two laps over `tape` and the records, or the first error.
fn play(
    list: &[Arc<dyn Source>],
    tape: &Tape,
    records: &[Vec<Extent>],
    with: ReadSettings,
) -> Result<Vec<u8>, Error> {
    let readers = readers(with);
    let budget = Budget::unlimited();
    let builder = Ring::builder(list, tape.clone()).tile_bytes(200_000).depth(3).pinned_bytes(300_000);
    let mut ring = builder.build(&budget, &readers)?;
    let mut slots = Slots::new(list, &budget, &readers, 3, 300_000, 3)?;
    let mut bytes = Vec::new();
    for _ in 0..2 {
        ring.push(0..tape.len());
        slots.begin((0..).zip(records))?;
        while let Some(tile) = ring.next()? {
            bytes.extend_from_slice(&tile);
        }
        while let Some(record) = slots.next()? {
            (0..record.parts()).for_each(|part| bytes.extend_from_slice(record.part(part)));
        }
    }
    Ok(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn tapes_and_records_are_the_same(
        runs in prop::collection::vec((0..300_000u64, 1..40u64, 1..9u64, 0..70_000u64), 1..5),
        tails in prop::collection::vec(0..9000u64, 1..4),
        row_bytes in 1..4000u64,
        parts in prop::collection::vec(prop::collection::vec((0..800_000u64, 0..100_000u64), 1..4), 0..8),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        let bytes = Seeded::new(1).bytes(FILE_BYTES);
        fs::write(&path, &bytes).unwrap();
        let mut entries: Vec<_> = runs.iter().map(|&(offset, rows, count, gap)| {
            // What does not fit the file has fewer segments.
            let run_bytes = rows * row_bytes;
            let stride = run_bytes + gap;
            let count = count.min((FILE_BYTES as u64 - offset - run_bytes) / stride + 1);
            Entry::from_runs([Run { source: SourceId::new(0), offset, run_bytes, count, stride }], row_bytes)
        }).collect();
        entries.extend(tails.iter().map(|&len| {
            Entry::new(extent(0, FILE_BYTES as u64 - (len + 1), len + 1), 1)
        }));
        let tape = Tape::new(entries).unwrap();
        let records: Vec<Vec<_>> = parts
            .iter()
            .map(|parts| parts.iter().map(|&(offset, len)| extent(0, offset, len.min(FILE_BYTES as u64 - offset))).collect())
            .collect();
        let memory: Arc<dyn Source> = Arc::new(MemorySource::new("bytes", bytes.clone()));
        let expected = play(&[memory], &tape, &records, ReadSettings::threads(1)).unwrap();
        for source in every_backend(&path) {
            for with in EXECUTORS {
                let found = play(&[Arc::clone(&source)], &tape, &records, with).unwrap();
                prop_assert!(found == expected, "{} {:?}", source.backend(), with);
            }
        }
    }

    /// What the system reads may end early or not be readable at all, and what is read then may fail as well.
    #[test]
    fn every_executor_copes_with_the_same_failures(seed: u64, kernel in 0..4usize, with in sources::settings()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        let bytes = Seeded::new(2).bytes(400_000);
        fs::write(&path, &bytes).unwrap();
        let decide = move |number: usize, _| match Seeded::new(seed ^ number as u64).below(10) {
            0 => Fault::Short,
            1 => Fault::Io(ErrorKind::TimedOut),
            2 => Fault::Io(ErrorKind::InvalidInput),
            3 => Fault::Panic,
            4 => Fault::Delay(Duration::from_micros(200)),
            _ => Fault::None,
        };
        let source = match kernel {
            0 => Faulty::new(bytes.clone(), decide),
            1 => Faulty::with_file(bytes.clone(), File::open(&path).unwrap(), decide),
            // Reads behind the middle find less, or nothing.
            2 => {
                OpenOptions::new().write(true).open(&path).unwrap().set_len(200_001).unwrap();
                Faulty::with_file(bytes.clone(), File::open(&path).unwrap(), decide)
            }
            // Not opened for reading.
            _ => Faulty::with_file(bytes.clone(), OpenOptions::new().write(true).open(&path).unwrap(), decide),
        };
        let list: Vec<Arc<dyn Source>> = vec![Arc::new(source)];
        let tape = Tape::new(vec![Entry::new(extent(0, 3, 390_000), 1000)]).unwrap();
        let readers = readers(with);
        let builder = Ring::builder(&list, tape).tile_bytes(100_000).depth(3);
        let mut ring = builder.build(&Budget::unlimited(), &readers).unwrap();
        let mut slots = Slots::new(&list, &Budget::unlimited(), &readers, 3, 80_000, 1).unwrap();
        let is_typed = |error: &Error| {
            matches!(error, Error::ShortRead { .. } | Error::Io { .. } | Error::ReaderPanicked { .. })
        };
        for lap in 0..4u64 {
            ring.push(0..1);
            slots.begin((0..5).map(|n| (lap * 5 + n, [extent(0, n * 70_001, 70_000)]))).unwrap();
            let (mut tiles, mut records, mut failures) = (0, 0, 0);
            while tiles < 4 || records < 5 {
                let ring_first = (tiles + records + failures) % 2 == 0;
                if tiles < 4 && (ring_first || records == 5) {
                    match ring.next() {
                        Ok(tile) => {
                            let tile = tile.unwrap();
                            let start = 3 + tile.first_row() * 1000;
                            prop_assert!(*tile == bytes[start..start + tile.len()]);
                            tiles += 1;
                            continue;
                        }
                        Err(error) => prop_assert!(is_typed(&error), "{error:?}"),
                    }
                } else {
                    match slots.next_ready() {
                        Ok(record) => {
                            let record = record.unwrap();
                            let start = (record.key() - lap * 5) as usize * 70_001;
                            prop_assert!(record.part(0) == &bytes[start..start + 70_000]);
                            records += 1;
                            continue;
                        }
                        Err(error) => prop_assert!(is_typed(&error), "{error:?}"),
                    }
                }
                failures += 1;
                if failures == 30 {
                    ring.clear();
                    slots.cancel();
                    break;
                }
            }
        }
    }
}

#[cfg(unix)] // Windows does not let a mapped file shrink
#[test]
fn a_file_that_shrinks_is_an_error_whoever_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shrinking");
    let bytes = Seeded::new(3).bytes(FILE_BYTES);
    for with in EXECUTORS {
        fs::write(&path, &bytes).unwrap();
        for source in every_backend(&path) {
            let backend = source.backend();
            let readers = readers(with);
            let list = [source];
            let tape = Tape::new(vec![Entry::new(extent(0, 1, 900_000), 100_000)]).unwrap();
            let builder = Ring::builder(&list, tape).tile_bytes(100_000).depth(2);
            let mut ring = builder.build(&Budget::unlimited(), &readers).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(350_000).unwrap();
            ring.push(0..1);
            let short = loop {
                match ring.next() {
                    Ok(tile) => {
                        let tile = tile.expect("nine tiles were pushed");
                        let start = 1 + tile.first_row() * 100_000;
                        assert!(*tile == bytes[start..start + 100_000], "{backend} {with:?}");
                    }
                    Err(error) => break error,
                }
            };
            let Error::ShortRead { offset, expected, found, .. } = short else { panic!("{short:?}") };
            // Direct reads begin with the block.
            assert!((offset..offset + expected).contains(&300_001), "{backend} {with:?}");
            assert_eq!(offset + found, 350_000, "{backend} {with:?}");
            // Complete again, the file is read on.
            fs::write(&path, &bytes).unwrap();
            let tile = ring.next().unwrap().unwrap();
            assert_eq!(tile.first_row(), 3);
            assert!(*tile == bytes[300_001..400_001], "{backend} {with:?}");
        }
    }
}

#[test]
fn memory_for_the_alignment_is_leased() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bytes");
    fs::write(&path, Seeded::new(4).bytes(100_000)).unwrap();
    for source in every_backend(&path) {
        let aligned = source.alignment() > 1;
        let list = [source];
        let budget = Budget::new(Slots::leased_bytes(&list, 3, 10_000, 2));
        let slots = Slots::new(&list, &budget, &readers(EXECUTORS[0]), 3, 10_000, 2).unwrap();
        assert_eq!(budget.available_bytes(), 0);
        assert_eq!(budget.used_bytes() > 3 * kimi_paging::Buffer::footprint(10_000), aligned);
        drop(slots);

        // One byte of the first block and one of the next: two blocks.
        let tape = Tape::new(vec![Entry::new(extent(0, 4095, 2), 1)]).unwrap();
        let leased = Ring::builder(&list, tape).depth(1).leased_bytes().unwrap();
        let expected = if aligned { kimi_paging::Buffer::footprint(8192) } else { leased };
        assert_eq!(leased, expected);
    }
}

fn tuned(path: &Path, limits: TuneLimits) -> Vec<Tuning> {
    let budget = Budget::new(1 << 30);
    let tuned = every_backend(path).into_iter().map(|source| {
        let tuning = tune(&[source], &budget, limits).unwrap();
        assert_eq!(budget.used_bytes(), 0);
        tuning
    });
    tuned.collect()
}

#[test]
fn a_measurement_stays_in_its_limits_and_can_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bytes");
    fs::write(&path, Seeded::new(5).bytes(24 << 20)).unwrap();
    let limits = TuneLimits { bytes: 16 << 20, time: Duration::from_secs(600) };
    for (tuning, source) in tuned(&path, limits).into_iter().zip(every_backend(&path)) {
        assert_eq!(tuning.backend, source.backend());
        let bytes: u64 = tuning.samples.iter().map(|sample| sample.bytes).sum();
        let chosen = tuning.samples.iter().find(|sample| sample.settings == tuning.settings);
        match source.backend() {
            kimi_paging::Backend::Mmap => assert_eq!((bytes, chosen), (0, None)),
            _ => {
                assert!((8 << 20..=16 << 20).contains(&bytes), "{bytes}");
                assert_eq!(chosen.unwrap().bytes_per_second(), tuning.bytes_per_second);
            }
        }
        let json = serde_json::to_string(&tuning).unwrap();
        assert_eq!(serde_json::from_str::<Tuning>(&json).unwrap(), tuning);
        readers(tuning.settings);
    }
    // No time, no bytes, no file: no measurement, and settings all the same.
    for limits in [TuneLimits { time: Duration::ZERO, ..limits }, TuneLimits { bytes: 0, ..limits }] {
        for tuning in tuned(&path, limits) {
            assert_eq!((tuning.samples.len(), tuning.settings), (0, ReadSettings::default()));
        }
    }
    let nothing = tune(&[], &Budget::unlimited(), limits).unwrap();
    assert_eq!(nothing.settings, ReadSettings::default());
    // Without memory for more, only what fits is measured.
    let small = tune(&every_backend(&path), &Budget::new(9 << 20), limits).unwrap();
    assert!(!small.samples.is_empty() && small.samples.iter().all(|sample| sample.settings.depth <= 4));
}
