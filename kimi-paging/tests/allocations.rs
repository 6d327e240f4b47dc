//! Streaming allocates nothing once it is under way.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kimi_paging::{
    Budget, Entry, Extent, FileSource, MemorySource, ReadSettings, Ring, Run, Slots, Source, SourceId, Tape,
};

#[path = "support/sources.rs"]
mod sources;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A pass over the tape with a round of records after every entry, the next pass pushed before this one ends.
fn pass(ring: &mut Ring, slots: &mut Slots, entries: usize, number: u64) -> u64 {
    let mut sum = 0;
    let (mut done, mut pushed) = (0, false);
    while done < entries {
        let tile = ring.next().unwrap().unwrap();
        sum += tile.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let ends = (tile.first_row() + tile.rows()) as u64 == 64;
        let entry = tile.entry() as u64;
        drop(tile);
        if ends {
            done += 1;
            let key = |n: u64| (entry * 13 + n * 7 + number) % 40;
            let parts = |key: u64| {
                [0, 1].map(|part| Extent {
                    source: SourceId::new(2 * (key as usize % 2)),
                    offset: key * 100 + part * 64,
                    len: 64 - part * 40,
                })
            };
            slots.begin((0..9).map(|n| (key(n), parts(key(n))))).unwrap();
            let in_order = number.is_multiple_of(2);
            while let Some(record) = if in_order { slots.next() } else { slots.next_ready() }.unwrap() {
                sum += u64::from(record.part(1)[0]);
            }
        }
        if done + 1 == entries && !pushed {
            ring.push(0..entries);
            pushed = true;
        }
    }
    sum
}

#[test]
fn laps_allocate_nothing() {
    for settings in [ReadSettings::threads(3), ReadSettings::uring(8, 1 << 16)] {
        laps(settings);
    }
}

fn laps(settings: ReadSettings) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    std::fs::write(&path, vec![1; 64 << 10]).unwrap();
    let list: Vec<Arc<dyn Source>> = vec![
        Arc::new(FileSource::open(&path).unwrap()),
        Arc::new(MemorySource::new("memory", vec![2; 8 << 10])),
        sources::direct(&path),
    ];
    let run =
        |source, offset| Run { source: SourceId::new(source), offset, run_bytes: 64, count: 16, stride: 128 };
    let entry = |n: u64| match n % 5 {
        0 => Entry::new(Extent { source: SourceId::new(0), offset: n * 1000 + 3, len: 64 * 24 }, 24),
        1 => Entry::from_runs([run(0, n * 700)], 16),
        2 => Entry::new(Extent { source: SourceId::new(1), offset: n * 10, len: 64 * 24 }, 24),
        3 => Entry::new(Extent { source: SourceId::new(2), offset: n * 1000 + 3, len: 64 * 24 }, 24),
        _ => Entry::from_runs([run(2, n * 700)], 16),
    };
    let tape = Tape::new((0..30).map(entry).collect()).unwrap();
    let (budget, readers) = (Budget::unlimited(), sources::readers(settings));
    let mut ring = Ring::builder(&list, tape)
        .tile_bytes(200)
        .depth(6)
        .pinned_bytes(200_000)
        .build(&budget, &readers)
        .unwrap();
    let mut slots = Slots::new(&list, &budget, &readers, 12, Slots::record_bytes(&[64, 24]), 2).unwrap();
    ring.push(0..30);
    let mut sums: Vec<_> = Vec::with_capacity(100);
    for number in 0..5 {
        sums.push(pass(&mut ring, &mut slots, 30, number));
    }
    let (before, misses) = (ALLOCATIONS.load(Ordering::SeqCst), slots.misses());
    for number in 5..50 {
        sums.push(pass(&mut ring, &mut slots, 30, number));
    }
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0);
    assert!(slots.misses() > misses + 1000 && slots.hits() > 1000, "{slots:?}");
    assert!(ring.resident_bytes() > 0 && ring.resident_bytes() < ring.tape().bytes());
    assert!(sums.iter().all(|&sum| sum == sums[0]), "{sums:?}");
}
