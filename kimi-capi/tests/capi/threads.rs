//! Many threads at once.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use ::kimi_model::SamplerOptions;
use kimi_k3_inference::*;
use kimi_testing::{demo_model, kimi_k3_oracle};

use crate::support::*;

/// A handle that goes to another thread: a number in the clothes of a pointer.
#[derive(Clone, Copy)]
struct Handle(usize);

impl Handle {
    fn of(model: *mut c_void) -> Self {
        Self(model.addr())
    }

    fn get(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0)
    }
}

#[test]
fn threads_share_a_model() {
    let prompts: [&[c_int]; 3] = [&[3, 1, 4, 1, 5], &[2, 7, 1, 8], &[3, 1, 4]];
    let model = load(&kimi_k3_oracle(), 64);
    let alone: Vec<c_int> = prompts.iter().map(|prompt| next_token(model, prompt)).collect();
    let handle = Handle::of(model);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let alone = &alone;
            scope.spawn(move || {
                for round in 0..10 {
                    let at = (thread + round) % prompts.len();
                    assert_eq!(next_token(handle.get(), prompts[at]), alone[at], "{}", last_error());
                }
            });
        }
    });
    kimi_free_model(model);
}

#[test]
fn sessions_and_models_do_not_disturb_each_other() {
    let expected: Vec<Vec<u32>> = ["The king said", "And the woman"]
        .map(|prompt| expected(&demo_model(), prompt, 12, SamplerOptions::default()).ids)
        .to_vec();
    let models = [load(&demo_model(), 128), load(&demo_model(), 128)].map(Handle::of);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let expected = &expected;
            scope.spawn(move || {
                let model = models[thread / 2].get();
                let prompt = tokenize(model, ["The king said", "And the woman"][thread % 2]);
                let session = kimi_session_new(model.cast());
                let sampler = kimi_sampler_new(model.cast(), std::ptr::null());
                assert_eq!(feed(session, &prompt), OK, "{}", last_error());
                let mut tokens = Vec::new();
                for _ in 0..12 {
                    tokens.push(kimi_session_next(session, sampler));
                    assert_eq!(feed(session, &[]), OK, "{}", last_error());
                }
                assert_eq!(ids(&tokens), expected[thread % 2]);
                kimi_sampler_free(sampler);
                kimi_session_free(session);
            });
        }
    });
    for model in models {
        kimi_free_model(model.get());
    }
}

#[test]
fn the_last_error_belongs_to_its_thread() {
    assert_eq!(next_token(std::ptr::null_mut(), &[1]), INVALID_HANDLE);
    std::thread::spawn(|| assert_eq!(last(), (OK, String::new()))).join().unwrap();
    assert_eq!(kimi_last_status(), INVALID_HANDLE);
}

#[test]
fn a_model_can_be_freed_while_others_use_it() {
    for _ in 0..4 {
        let model = load(&kimi_k3_oracle(), 64);
        let (handle, started) = (Handle::of(model), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = OK;
                    while last >= 0 {
                        last = next_token(handle.get(), &[3, 1, 4, 1, 5]);
                        started.store(true, Ordering::Release);
                    }
                    assert_eq!(last, INVALID_HANDLE, "{}", last_error());
                });
            }
            while !started.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            kimi_free_model(handle.get());
            assert_eq!(kimi_last_status(), OK);
        });
    }
}

#[test]
fn one_of_many_threads_frees_a_handle() {
    let model = load(&kimi_k3_oracle(), 64);
    let handle = Handle::of(model);
    let freed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(move || {
                    kimi_free_model(handle.get());
                    usize::from(kimi_last_status() == OK)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(freed, 1);
}

#[test]
fn another_thread_cancels() {
    let model = load(&demo_model(), 4096);
    let prompt = tokenize(model, "The king said");
    let session = kimi_session_new(model.cast());
    let handle = Handle::of(session.cast());
    std::thread::scope(|scope| {
        let feeding = scope.spawn(move || {
            let session: *mut kimi_session = handle.get().cast();
            let mut last = OK;
            while last == OK {
                last = feed(session, &prompt);
            }
            last
        });
        assert_eq!(kimi_session_cancel(handle.get().cast(), 1), OK);
        assert_eq!(feeding.join().unwrap(), CANCELLED);
    });
    kimi_session_free(session);
    kimi_free_model(model);
}
