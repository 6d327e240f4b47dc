//! Passes and commits: what a pass leaves alone, what a commit keeps, and what memory, readers and errors do not change.

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kimi_model::{Engine, EngineOptions, Error, KvFormat, Logits, Model, Observer, PassOptions, Session};
use kimi_paging::{MmapSource, Source};
use kimi_testing::{kimi_k3_oracle, same_bits};
use proptest::prelude::*;
use support::{engine, feed, golden, ids, open};

fn prompt() -> Vec<u32> {
    ids(&golden(&kimi_k3_oracle())["input_ids"])
}

/// The logits after one more token, which show everything that the session remembers.
fn probe(engine: &mut Engine, session: &mut Session) -> Vec<f32> {
    feed(engine, session, &[77], 1).concat()
}

fn pass(engine: &mut Engine, session: &mut Session, tokens: &[u32], keep: usize) {
    engine.forward(session, tokens, PassOptions::default()).unwrap().commit(keep).unwrap();
}

#[test]
fn any_prefix_of_a_narrow_pass_can_be_kept() {
    let (prompt, mut engine) = (prompt(), engine(&kimi_k3_oracle(), |_| {}));
    for keep in 0..=8 {
        let mut plain = engine.session().unwrap();
        let mut partial = engine.session().unwrap();
        feed(&mut engine, &mut plain, &prompt[..4 + keep], 1);
        feed(&mut engine, &mut partial, &prompt[..4], 4);
        pass(&mut engine, &mut partial, &prompt[4..12], keep);
        assert_eq!(partial.position(), 4 + keep);
        assert!(same_bits(&probe(&mut engine, &mut partial), &probe(&mut engine, &mut plain)), "{keep} of 8");
    }
}

#[test]
fn a_wide_pass_is_kept_whole_or_not_at_all() {
    let (prompt, mut engine) = (prompt(), engine(&kimi_k3_oracle(), |_| {}));
    let mut session = engine.session().unwrap();
    let wide = engine.forward(&mut session, &prompt[..9], PassOptions::default()).unwrap();
    assert!(matches!(wide.commit(5), Err(Error::Commit { columns: 9, count: 5 })));
    pass(&mut engine, &mut session, &prompt[..9], 0);
    assert_eq!(session.position(), 0);
    pass(&mut engine, &mut session, &prompt[..9], 9);
    let mut plain = engine.session().unwrap();
    feed(&mut engine, &mut plain, &prompt[..9], 1);
    assert!(same_bits(&probe(&mut engine, &mut session), &probe(&mut engine, &mut plain)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rejected_columns_leave_no_trace(steps in prop::collection::vec((1usize..13, 0usize..13, any::<u64>()), 1..6)) {
        let prompt = prompt();
        let mut engine = engine(&kimi_k3_oracle(), |_| {});
        let (mut session, mut plain) = (engine.session().unwrap(), engine.session().unwrap());
        let mut kept = 0;
        for (width, keep, seed) in steps {
            let keep = if width > 8 { if keep > 6 { width } else { 0 } } else { keep.min(width) };
            if kept + keep > prompt.len() {
                break;
            }
            // What is kept follows the prompt, what is rejected is anything.
            let mut seeded = kimi_testing::Seeded::new(seed);
            let mut tokens = prompt[kept..kept + keep].to_vec();
            tokens.resize_with(width, || seeded.below(512) as u32);
            pass(&mut engine, &mut session, &tokens, keep);
            kept += keep;
        }
        feed(&mut engine, &mut plain, &prompt[..kept], 1);
        prop_assert!(same_bits(&probe(&mut engine, &mut session), &probe(&mut engine, &mut plain)));
    }
}

#[test]
fn sessions_do_not_see_each_other() {
    let (prompt, mut engine) = (prompt(), engine(&kimi_k3_oracle(), |_| {}));
    let (mut one, mut two, mut alone) =
        (engine.session().unwrap(), engine.session().unwrap(), engine.session().unwrap());
    for (i, &token) in prompt.iter().enumerate() {
        feed(&mut engine, &mut one, &[token], 1);
        feed(&mut engine, &mut two, &[prompt[prompt.len() - 1 - i]], 1);
    }
    feed(&mut engine, &mut alone, &prompt, 5);
    assert!(same_bits(&probe(&mut engine, &mut one), &probe(&mut engine, &mut alone)));
}

#[test]
fn rounded_latents_give_the_same_bits_however_the_prompt_is_fed() {
    let prompt = prompt();
    let expected = &golden(&kimi_k3_oracle())["logits"];
    for (kv, range) in [(KvFormat::Bf16, 1e-4..0.1), (KvFormat::I8, 1e-3..0.3), (KvFormat::I4, 1e-2..3.0)] {
        let mut whole: Option<Vec<Vec<f32>>> = None;
        for threads in [1, 2] {
            let mut engine = engine(&kimi_k3_oracle(), |options| {
                (options.kv, options.threads) = (kv, Some(threads));
            });
            for chunk in [prompt.len(), 1, 3, 7] {
                let mut session = engine.session().unwrap();
                let logits = feed(&mut engine, &mut session, &prompt, chunk);
                let whole = whole.get_or_insert_with(|| logits.clone());
                assert!(same_bits(&logits.concat(), &whole.concat()), "{kv}, {threads} threads, {chunk}");
            }
        }
        let difference = support::difference(&whole.unwrap(), expected);
        assert!(range.contains(&difference), "rounding to {kv} shows, and stays small: {difference}");
    }
}

#[test]
fn short_prompts_are_finite() {
    let (prompt, mut engine) = (prompt(), engine(&kimi_k3_oracle(), |_| {}));
    for length in 1..=3 {
        let mut session = engine.session().unwrap();
        let logits = feed(&mut engine, &mut session, &prompt[..length], length).concat();
        assert!(logits.iter().all(|logit| logit.is_finite()));
    }
}

/// Asks for the end when a layer is done.
struct Stop<'a>(usize, &'a AtomicBool);

impl Observer for Stop<'_> {
    fn layer(&mut self, layer: usize, _layers: usize, _sums: &[f32]) {
        self.1.store(layer >= self.0, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn a_cancelled_pass_leaves_engine_and_session_fit() {
    let (prompt, mut engine) = (prompt(), engine(&kimi_k3_oracle(), |_| {}));
    let (mut session, mut plain) = (engine.session().unwrap(), engine.session().unwrap());
    feed(&mut engine, &mut session, &prompt[..5], 5);
    feed(&mut engine, &mut plain, &prompt[..5], 5);
    for layer in [0, 3, 7] {
        let cancel = AtomicBool::new(false);
        let mut stop = Stop(layer, &cancel);
        let mut options = PassOptions::default();
        options.logits = Logits::Last;
        options.more = true;
        options.cancel = Some(&cancel);
        options.observer = Some(&mut stop);
        let error = engine.forward(&mut session, &prompt[5..9], options).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_eq!(session.position(), 5);
    }
    assert!(same_bits(&probe(&mut engine, &mut session), &probe(&mut engine, &mut plain)));
}

#[test]
fn what_a_pass_cannot_take_is_refused() {
    let mut engine = engine(&kimi_k3_oracle(), |options| {
        options.positions = 6;
        options.columns = 4;
    });
    let mut session = engine.session().unwrap();
    let mut refuse = |tokens: &[u32], expected: &str| {
        let error = engine.forward(&mut session, tokens, PassOptions::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    refuse(&[], "1 to 4 tokens, not 0");
    refuse(&[1; 5], "1 to 4 tokens, not 5");
    refuse(&[1, 512], "token id 512 is outside the vocabulary of 512");
    pass(&mut engine, &mut session, &[1; 4], 4);
    let error = engine.forward(&mut session, &[1; 3], PassOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the context is full: 4 of 6 tokens are taken and 3 more do not fit");
    pass(&mut engine, &mut session, &[1; 2], 2);
}

#[test]
fn memory_and_readers_do_not_change_a_bit() {
    let prompt = prompt();
    let expected = {
        let mut engine = engine(&kimi_k3_oracle(), |_| {});
        let mut session = engine.session().unwrap();
        feed(&mut engine, &mut session, &prompt, 7).concat()
    };
    let floor = {
        let mut options = EngineOptions::default();
        options.ram_bytes = Some(1 << 20);
        match Engine::new(open(&kimi_k3_oracle()), &options).unwrap_err() {
            Error::DoesNotFit { needed, .. } => needed,
            other => panic!("{other}"),
        }
    };
    #[expect(unsafe_code, reason = "the fixture is not changed while the test runs")]
    // SAFETY: nobody writes to the committed fixture.
    let map = |path: &std::path::Path| unsafe { MmapSource::open(path) };
    // Everything from the floor, where nothing is pinned, up to all weights in memory. The floor moves with the
    // process, which other tests share.
    for extra in [8u64 << 20, 9 << 20, 10 << 20, 64 << 20] {
        for mapped in [false, true] {
            let model = if mapped {
                Arc::new(
                    Model::open(&kimi_k3_oracle(), &mut |path| Ok(Arc::new(map(path)?) as Arc<dyn Source>))
                        .unwrap(),
                )
            } else {
                open(&kimi_k3_oracle())
            };
            let mut options = EngineOptions::default();
            options.ram_bytes = Some(floor + extra);
            options.positions = 64;
            options.columns = 12;
            let mut engine = Engine::new(model, &options).unwrap();
            let mut session = engine.session().unwrap();
            let logits = feed(&mut engine, &mut session, &prompt, 7).concat();
            assert!(same_bits(&logits, &expected), "{extra} bytes over the floor, mapped {mapped}");
            assert!(engine.budget().peak_bytes() <= engine.budget().limit_bytes());
        }
    }
}
