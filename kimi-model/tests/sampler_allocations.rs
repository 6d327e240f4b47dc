//! Sampling allocates nothing once it is under way.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kimi_model::{Sampler, SamplerOptions};
use kimi_testing::Seeded;

thread_local! {
    /// The test harness has threads of its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn only_the_first_tokens_allocate() {
    let changes: [fn(&mut SamplerOptions); 9] = [
        |_| {},
        |options| options.temperature = 1.0,
        |options| (options.temperature, options.top_k) = (1.0, 40),
        |options| (options.temperature, options.top_k) = (1.0, 3000),
        |options| (options.temperature, options.top_p) = (1.0, 0.99),
        |options| (options.temperature, options.min_p) = (1.0, 0.01),
        |options| (options.logit_bias, options.logprobs) = (vec![(3, 1.0)], Some(20)),
        |options| (options.repetition_penalty, options.frequency_penalty) = (1.1, 0.1),
        |options| (options.presence_penalty, options.penalty_window, options.logprobs) = (1.0, 64, Some(0)),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut options = SamplerOptions::default();
        change(&mut options);
        let mut sampler = Sampler::new(&options, 5000).unwrap();
        let mut random = Seeded::new(1);
        let logits: Vec<_> = (0..4).map(|_| random.normals(5000, 2.0)).collect();
        // Enough to fill the window.
        sampler.prompt(&[1; 65]);
        sampler.sample(&logits[0]).unwrap();
        let before = ALLOCATIONS.get();
        assert!(before > 0);
        let ids: usize = (0..500)
            .map(|token| sampler.sample(&logits[token % 4]).map_or(0, |sampled| sampled.id as usize))
            .sum();
        assert_eq!(ALLOCATIONS.get() - before, 0, "{number}: {ids}");
    }
}
