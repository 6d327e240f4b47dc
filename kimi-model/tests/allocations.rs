//! Decoding takes no memory from the heap once it runs.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kimi_model::pack::{PackOptions, Recipe, pack};
use kimi_model::{Arith, Check, Logits, PassOptions};
use kimi_testing::{demo_model, kimi_k3_oracle};
use support::{FAMILIES, engine, family, open};

/// Counts the allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator is an unsafe trait")]
// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of `tokens` tokens after some that warm up.
fn allocations(dir: &Path, arith: Arith, ram: u64, threads: usize, tokens: u32) -> usize {
    let mut engine = engine(dir, |options| {
        options.arith = arith;
        options.check = Check::All;
        options.ram_bytes = Some(ram);
        options.threads = Some(threads);
    });
    let mut session = engine.session().unwrap();
    let mut decode = |id: u32| {
        let mut options = PassOptions::default();
        options.logits = Logits::Last;
        options.more = true;
        engine.forward(&mut session, &[id], options).unwrap().commit(1).unwrap();
    };
    (1..9).for_each(&mut decode);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (9..9 + tokens).for_each(&mut decode);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn a_token_allocates_nothing() {
    let packed = tempfile::tempdir().unwrap();
    let recipe = Recipe::new("i4".parse().unwrap());
    let (source, never) = (kimi_k3_oracle(), AtomicBool::new(false));
    pack(&open(&source), &source, packed.path(), &PackOptions::new(recipe), &|_| (), &never).unwrap();
    let families = FAMILIES.map(family);
    let families = families.iter().map(|dir| (&**dir, Arith::Exact));
    let demo = demo_model();
    for (dir, arith) in [
        (&*source, Arith::Exact),
        (&*demo, Arith::Exact),
        (packed.path(), Arith::Exact),
        (packed.path(), Arith::Fast),
    ]
    .into_iter()
    .chain(families)
    {
        // All in memory, and nearly nothing.
        for ram in [1 << 30, 48 << 20] {
            let found = allocations(dir, arith, ram, 1, 32);
            assert_eq!(found, 0, "{} {arith} {ram}", dir.display());
            // With several threads rayon's queue takes a block of memory for every few dozen passes.
            let found = allocations(dir, arith, ram, 2, 32);
            assert!(found <= 2, "{} {arith} {ram}: {found}", dir.display());
        }
    }
}
