//! Which records are read, in which order they come, and which stay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use kimi_paging::{Budget, Error, Readers, Slots, Source};
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
use sources::readers;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// With one record at a time hits and misses are those of a list of the uses of each record that is held.
    #[test]
    fn single_requests_hit_like_a_list(
        slots in 1..5usize, keys in prop::collection::vec(0..7u64, 1..60), classes in prop_oneof![Just(1), Just(2)],
    ) {
        let source = Arc::new(Faulty::new(vec![3; 100], |_, _| Fault::None));
        let list: Vec<Arc<dyn Source>> = vec![source.clone()];
        let readers = Readers::new(1).unwrap();
        let mut cache = Slots::new(&list, &Budget::unlimited(), &readers, slots, 64, 1)
            .unwrap()
            .per_class(classes, |key| key as usize % 2);
        let mut held: Vec<(u64, Vec<usize>)> = Vec::new();
        let (mut hits, mut misses) = (0, 0);
        for (now, key) in keys.into_iter().enumerate() {
            let class = |key: u64| key as usize % classes;
            let own = |other: &(u64, Vec<usize>)| class(other.0) == class(key);
            match held.iter_mut().find(|record| record.0 == key) {
                Some(record) => {
                    record.1.push(now);
                    hits += 1;
                }
                None => {
                    let (of_own, share) = (held.iter().filter(|other| own(other)).count(), slots / classes);
                    // A class grows into empty slots and what others have too much; at its share it replaces its own.
                    let grows = held.len() < slots && (share == 0 || of_own <= share);
                    if !grows {
                        let may = |other: &(u64, Vec<usize>)| share == 0 || own(other) == (of_own >= share);
                        let weight = |uses: &[usize]| -> u64 {
                            // All uses so far took one tick each. The decay is linear between powers of two.
                            uses.iter().skip(1).fold((1 << 32, uses[0]), |(weight, last), &use_at| {
                                ((1 << 32) + fade(weight, use_at - last, slots), use_at)
                            }).0
                        };
                        let value = |record: &(u64, Vec<usize>)| {
                            let last = *record.1.last().unwrap();
                            (fade(weight(&record.1), now - 1 - last, slots), last)
                        };
                        let (victim, _) = held
                            .iter()
                            .enumerate()
                            .filter(|(_, other)| may(other))
                            .min_by_key(|(_, other)| value(other))
                            .unwrap();
                        held.remove(victim);
                    }
                    held.push((key, vec![now]));
                    misses += 1;
                }
            }
            cache.begin([(key, [extent(0, key, 5)])]).unwrap();
            prop_assert!(cache.next().unwrap().unwrap().part(0) == [3; 5]);
            prop_assert_eq!((cache.hits(), cache.misses()), (hits, misses));
            prop_assert_eq!((source.log().len() as u64, cache.bytes_read()), (misses, misses * 5));
        }
    }
}

/// `weight * 2^(-age / half_life)`, linear between powers, in whole parts of 2^-32.
fn fade(weight: u64, age: usize, half_life: usize) -> u64 {
    let halved = (0..age / half_life).fold(weight, |weight, _| weight / 2);
    halved - halved * (age % half_life) as u64 / (2 * half_life) as u64
}

#[test]
fn a_round_larger_than_the_cache_is_served_in_waves() {
    let readers = Readers::new(2).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 640], |_, _| Fault::None));
    let mut cache = over(&source, &readers, 3);
    let all: Vec<u64> = (0..10).collect();
    cache.begin(requests(&all)).unwrap();
    assert_eq!(drain(&mut cache), all);
    assert_eq!((cache.hits(), cache.misses(), source.log().len()), (0, 10, 10));
    // The last three stayed. They are wanted late, so what comes before them must not push them out.
    cache.begin(requests(&[9, 8, 7])).unwrap();
    assert_eq!(drain(&mut cache), [9, 8, 7]);
    assert_eq!((cache.hits(), cache.misses()), (3, 10));
    cache.begin(requests(&[9, 1, 8])).unwrap();
    assert_eq!(drain(&mut cache), [9, 1, 8]);
    assert_eq!((cache.hits(), cache.misses()), (5, 11));
}

#[test]
fn records_wanted_later_in_the_round_stay() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 640], |_, _| Fault::None));
    let mut cache = over(&source, &readers, 3);
    cache.begin(requests(&[0, 1, 2])).unwrap();
    drain(&mut cache);
    // 0 is the least recently used, but wanted at the end: 1 goes.
    cache.begin(requests(&[3, 2, 0])).unwrap();
    assert_eq!(drain(&mut cache), [3, 2, 0]);
    assert_eq!((cache.hits(), cache.misses()), (2, 4));
    // All three are wanted later; then the one that is wanted last goes.
    cache.begin(requests(&[5, 3, 2, 0])).unwrap();
    assert_eq!(drain(&mut cache), [5, 3, 2, 0]);
    assert_eq!((cache.hits(), cache.misses()), (4, 6));
    assert_eq!(source.log()[4..], [(5 * 64, 64), (0, 64)]);
    // The same record twice in a round is read once.
    cache.begin(requests(&[7, 8, 7])).unwrap();
    assert_eq!(drain(&mut cache), [7, 8, 7]);
    assert_eq!((cache.hits(), cache.misses()), (5, 8));
}

#[test]
fn what_has_arrived_can_be_taken_before_what_comes_first() {
    for settings in [sources::EXECUTORS[1], sources::EXECUTORS[3]] {
        let readers = readers(settings);
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let open = Arc::clone(&gate);
        // The record that is used first is read last, and only once the gate is open.
        let source = Arc::new(Faulty::new((0..=255).cycle().take(640).collect(), move |_, offset| {
            let (open, changed) = &*open;
            drop(changed.wait_while(open.lock().unwrap(), |open| offset == 9 * 64 && !*open).unwrap());
            Fault::None
        }));
        let mut cache = over(&source, &readers, 4);
        cache.begin(requests(&[9, 3, 1, 3, 0])).unwrap();
        let mut early = Vec::new();
        // What one thread reads one after another arrives only behind a read that is slow, so the slow one comes last.
        for _ in 0..4 {
            if settings.depth > 3 {
                *gate.0.lock().unwrap() = true;
                gate.1.notify_all();
            }
            let record = cache.next_ready().unwrap().unwrap();
            assert_eq!(u64::from(record.part(0)[0]), record.key() * 64 % 256);
            early.push(record.key());
        }
        if settings.depth == 3 {
            early.sort_unstable();
            assert_eq!(early, [0, 1, 3, 3]);
        }
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        early.push(cache.next().unwrap().unwrap().key());
        early.sort_unstable();
        assert_eq!(early, [0, 1, 3, 3, 9]);
        assert!(cache.next_ready().unwrap().is_none());
        assert_eq!((cache.hits(), cache.misses()), (1, 4));
    }
}

#[test]
fn a_round_is_read_in_the_order_of_the_file() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 640], |_, _| Fault::None));
    let mut cache = over(&source, &readers, 8);
    cache.begin(requests(&[7, 2, 9, 0, 4])).unwrap();
    assert_eq!(drain(&mut cache), [7, 2, 9, 0, 4]);
    // The reader may have begun with the first before the others were there, but all were sorted before.
    let offsets: Vec<_> = source.log().iter().map(|read| read.0 / 64).collect();
    assert_eq!(offsets, [0, 2, 4, 7, 9]);
}

#[test]
fn one_failure_holds_nobody_else_up() {
    let readers = Readers::new(1).unwrap();
    let broken = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&broken);
    let source = Arc::new(Faulty::new(vec![1; 640], move |_, offset| {
        if offset == 64 && still.load(Ordering::SeqCst) { Fault::Short } else { Fault::None }
    }));
    let mut cache = over(&source, &readers, 4);
    cache.begin(requests(&[1, 5, 3])).unwrap();
    let (mut keys, mut failures) = (Vec::new(), 0);
    while keys.len() < 3 {
        match cache.next_ready() {
            Ok(record) => keys.push(record.expect("three were asked for").key()),
            Err(Error::ShortRead { offset: 64, .. }) => failures += 1,
            Err(error) => panic!("{error:?}"),
        }
        if keys.len() == 2 {
            assert!(failures > 0);
            broken.store(false, Ordering::SeqCst);
        }
    }
    keys.sort_unstable();
    assert_eq!(keys, [1, 3, 5]);
    assert!(cache.next_ready().unwrap().is_none());
}

#[test]
fn classes_that_take_turns_keep_their_records() {
    let readers = Readers::new(1).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 640], |_, _| Fault::None));
    let play = |mut cache: Slots| {
        for _ in 0..5 {
            // Three layers, each with a favourite and two that alternate.
            for layer in 0..3 {
                let before = cache.misses();
                cache.begin(requests(&[layer * 3, layer * 3 + 1 + (before % 2)])).unwrap();
                drain(&mut cache);
            }
        }
        cache.hits()
    };
    let common = play(over(&source, &readers, 4).per_class(1, |_| 0));
    let shared = play(over(&source, &readers, 6).per_class(3, |key| key as usize / 3));
    // Six keys in turn pass through four common slots without one hit; with its share each favourite stays.
    assert!(common == 0 && shared >= 12, "{common} {shared}");
}

#[test]
fn records_that_fit_are_read_once() {
    let readers = Readers::new(2).unwrap();
    let source = Arc::new(Faulty::new(vec![1; 640], |_, _| Fault::None));
    let mut cache = over(&source, &readers, 10);
    let mut seeded = Seeded::new(5);
    let mut seen = HashMap::new();
    for _ in 0..100 {
        let keys: Vec<u64> = (0..6).map(|_| seeded.below(10) as u64).collect();
        cache.begin(requests(&keys)).unwrap();
        for key in drain(&mut cache) {
            *seen.entry(key).or_insert(0) += 1;
        }
    }
    assert_eq!((seen.len(), cache.misses(), cache.hits()), (10, 10, 590));
}
