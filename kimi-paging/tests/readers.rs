//! The reader threads: order, failures, counting, the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use kimi_paging::{
    Backend, Budget, Entry, Error, Extent, FileSource, ReadSettings, Readers, Ring, Slots, Source, SourceId,
    Tape,
};

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/sources.rs"]
mod sources;

use faulty::{Fault, Faulty};
use sources::{EXECUTORS, ONE_BY_ONE};

fn extent(offset: u64, len: u64) -> Extent {
    Extent { source: SourceId::new(0), offset, len }
}

/// A ring of tiles of 8 bytes over the first 80 of `source`, and slots for records of 8.
fn both(source: &Arc<Faulty>, readers: &Readers) -> (Ring, Slots) {
    let list: Vec<Arc<dyn Source>> = vec![source.clone()];
    let tape = Tape::new(vec![Entry::new(extent(0, 80), 8)]).unwrap();
    let ring =
        Ring::builder(&list, tape).tile_bytes(8).depth(5).build(&Budget::unlimited(), readers).unwrap();
    let slots = Slots::new(&list, &Budget::unlimited(), readers, 3, 8, 1).unwrap();
    (ring, slots)
}

#[test]
fn who_waits_is_served_before_who_reads_ahead() {
    for settings in ONE_BY_ONE {
        let readers = sources::readers(settings);
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let open = Arc::clone(&gate);
        let source = Arc::new(Faulty::new(vec![1; 200], move |number, _| {
            let (open, changed) = &*open;
            drop(changed.wait_while(open.lock().unwrap(), |open| number == 0 && !*open).unwrap());
            Fault::None
        }));
        let (mut ring, mut slots) = both(&source, &readers);
        ring.push(0..1);
        while source.log().is_empty() {
            std::thread::yield_now();
        }
        // The only reader is busy; four tiles wait. Two records pass them by.
        slots.begin([(0, [extent(100, 8)]), (1, [extent(120, 8)])]).unwrap();
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        while slots.next().unwrap().is_some() {}
        while let Some(tile) = ring.next().unwrap() {
            assert_eq!(*tile, [1; 8]);
        }
        let offsets: Vec<_> = source.log().iter().map(|read| read.0).collect();
        assert_eq!(offsets, [0, 100, 120, 8, 16, 24, 32, 40, 48, 56, 64, 72]);
    }
}

#[test]
fn a_panic_in_a_source_is_an_error_and_the_reader_goes_on() {
    for settings in ONE_BY_ONE {
        let readers = sources::readers(settings);
        let source =
            Arc::new(Faulty::new(
                vec![1; 200],
                |number, _| if number == 1 { Fault::Panic } else { Fault::None },
            ));
        let (mut ring, _) = both(&source, &readers);
        ring.push(0..1);
        assert!(ring.next().unwrap().is_some());
        let error = ring.next().unwrap_err();
        assert_eq!(error.to_string(), "reading faulty panicked: read 1");
        // That tile again, and the rest.
        for _ in 1..10 {
            assert_eq!(*ring.next().unwrap().unwrap(), [1; 8]);
        }
        assert!(ring.next().unwrap().is_none());
    }
}

#[test]
fn nobody_waits_for_readers_that_are_gone() {
    for settings in EXECUTORS {
        let readers = sources::readers(settings);
        let source = Arc::new(Faulty::new(vec![1; 200], |_, _| Fault::None));
        let (mut ring, mut slots) = both(&source, &readers);
        ring.push(0..1);
        slots.begin([(0, [extent(100, 8)])]).unwrap();
        drop(readers);
        // What was read in time is still handed out, then comes the error, and again when asked again.
        let error = loop {
            match ring.next() {
                Ok(tile) => assert_eq!(*tile.unwrap(), [1; 8]),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::ReadersClosed));
        assert!(matches!(ring.next(), Err(Error::ReadersClosed)));
        slots.begin([(1, [extent(120, 8)])]).unwrap();
        assert!(matches!(slots.next(), Err(Error::ReadersClosed)));
        ring.clear();
        assert!(ring.next().unwrap().is_none());
    }
}

#[test]
fn dropping_joins_the_threads() {
    for settings in ONE_BY_ONE {
        let busy = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&busy);
        let source = Arc::new(Faulty::new(vec![1; 200], move |_, _| {
            flag.store(true, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            flag.store(false, Ordering::SeqCst);
            Fault::None
        }));
        let readers = sources::readers(settings);
        let (mut ring, _) = both(&source, &readers);
        ring.push(0..1);
        while !busy.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(readers);
        assert!(!busy.load(Ordering::SeqCst));
        assert_eq!(source.log().len(), 1);
    }
}

#[test]
fn reads_are_counted() {
    let readers = Readers::new(2).unwrap();
    let source =
        Arc::new(Faulty::new(vec![1; 200], |_, _| Fault::Delay(std::time::Duration::from_millis(1))));
    assert_eq!((readers.stats().tape.reads, readers.stats().threads), (0, 2));
    let (mut ring, mut slots) = both(&source, &readers);
    ring.push(0..1);
    while ring.next().unwrap().is_some() {}
    slots.begin([(0, [extent(100, 8)]), (1, [extent(120, 4)])]).unwrap();
    while slots.next().unwrap().is_some() {}
    drop((ring, slots));
    let stats = readers.stats();
    assert_eq!((stats.tape.reads, stats.tape.bytes), (10, 80));
    assert_eq!((stats.urgent.reads, stats.urgent.bytes), (2, 12));
    // A sleep lasts at least as long as it says.
    assert!(stats.tape.busy_ns >= 10_000_000 && stats.urgent.busy_ns >= 2_000_000);
    assert!(stats.tape.wait_ns > 0 && stats.urgent.wait_ns > 0);
    // Two threads were busy for 12 ms together.
    assert!(stats.active_ns >= 6_000_000);
}

#[test]
fn reads_of_the_kernel_are_counted_like_those_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bytes");
    std::fs::write(&path, vec![1; 300_000]).unwrap();
    for settings in EXECUTORS {
        for source in [Arc::new(FileSource::open(&path).unwrap()) as _, sources::direct(&path)] {
            let readers = sources::readers(settings);
            let extra = if source.backend() == Backend::Direct { 4096 } else { 0 };
            let tape = Tape::new(vec![Entry::new(extent(0, 270_000), 30_000)]).unwrap();
            let builder = Ring::builder(&[source], tape).tile_bytes(90_000);
            let mut ring = builder.build(&Budget::unlimited(), &readers).unwrap();
            ring.push(0..1);
            while ring.next().unwrap().is_some() {}
            assert_eq!(ring.bytes_read(), 270_000);
            drop(ring);
            let stats = readers.stats();
            let counted = stats.tape.bytes;
            assert_eq!((stats.tape.reads, stats.urgent.reads), (3, 0));
            assert!((270_000..=270_000 + 6 * extra).contains(&counted), "{counted}");
            assert!(stats.tape.busy_ns > 0 && stats.active_ns > 0);
        }
    }
}

#[test]
fn settings_out_of_range_are_errors() {
    for (settings, name) in [
        (ReadSettings::uring(0, 1 << 16), "reads under way"),
        (ReadSettings::uring(1025, 1 << 16), "reads under way"),
        (ReadSettings::uring(8, 0), "request_bytes"),
        (ReadSettings::uring(8, 1000), "request_bytes"),
        (ReadSettings::uring(8, 2 << 30), "request_bytes"),
    ] {
        let refused = Readers::with_settings(&settings);
        assert!(matches!(refused, Err(Error::Setting { what, .. }) if what == name), "{settings:?}");
    }
}

#[test]
fn no_threads_read_nothing() {
    assert!(matches!(Readers::new(0), Err(Error::Setting { what: "reader threads", .. })));
}
