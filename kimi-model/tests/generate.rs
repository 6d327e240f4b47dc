//! Generations at their limits: the context, the number of tokens, stop texts.

mod support;

use std::sync::atomic::AtomicBool;

use kimi_model::{
    Engine, EngineOptions, Error, FinishReason, GenerateOptions, Generation, GenerationConfig, Listener,
    Observer, Sampled, Session, generate,
};
use kimi_testing::{demo_model, kimi_k3_oracle};
use kimi_text::{Specials, Tokenizer};
use support::{engine, open};

/// What a listener was told.
#[derive(Default)]
struct Heard {
    tokens: usize,
    text: String,
    sampled: Vec<(u32, Option<f32>, usize)>,
}

impl Observer for Heard {}

impl Listener for Heard {
    fn sampled(&mut self, sampled: &Sampled<'_>) {
        self.sampled.push((sampled.id, sampled.logprob, sampled.top.len()));
    }

    fn token(&mut self, _id: u32, text: &str) {
        self.tokens += 1;
        self.text.push_str(text);
    }

    fn rest(&mut self, text: &str) {
        self.text.push_str(text);
    }
}

fn run(
    (engine, session): (&mut Engine, &mut Session),
    prompt: &[u32],
    options: &GenerateOptions,
    tokenizer: Option<&Tokenizer>,
) -> Result<Generation, Error> {
    let (never, mut heard) = (AtomicBool::new(false), Heard::default());
    let generation = generate(engine, session, prompt, options, (tokenizer, &never), None, &mut heard)?;
    assert_eq!((heard.tokens, &heard.text), (generation.ids.len(), &generation.text));
    assert!(heard.sampled.iter().map(|sampled| sampled.0).eq(generation.ids.iter().copied()));
    match &generation.logprobs {
        None => assert!(heard.sampled.iter().all(|&(_, logprob, top)| logprob.is_none() && top == 0)),
        Some(logprobs) => assert!(
            heard
                .sampled
                .iter()
                .map(|&(_, logprob, top)| (logprob.unwrap(), top))
                .eq(logprobs.iter().map(|(chosen, top)| (chosen, top.len())))
        ),
    }
    Ok(generation)
}

fn up_to(max_tokens: usize) -> GenerateOptions {
    let mut options = GenerateOptions::default();
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    options
}

#[test]
fn the_context_is_used_to_its_last_token_and_not_beyond() {
    let mut engine = engine(&kimi_k3_oracle(), |options| options.positions = 12);
    for (prompt, max_tokens, tokens, finish) in [
        (8, 5, 5, FinishReason::Length),
        // The last token is chosen and needs no place any more.
        (8, 6, 5, FinishReason::Context),
        (11, 5, 2, FinishReason::Context),
        (12, 5, 1, FinishReason::Context),
        (12, 1, 1, FinishReason::Length),
        (12, 0, 0, FinishReason::Length),
        (3, usize::MAX, 10, FinishReason::Context),
    ] {
        let mut session = engine.session().unwrap();
        let generation =
            run((&mut engine, &mut session), &[7; 12][..prompt], &up_to(max_tokens), None).unwrap();
        assert_eq!((generation.ids.len(), generation.finish), (tokens, finish), "{prompt} and {max_tokens}");
        assert_eq!(session.position(), prompt + tokens.saturating_sub(1));
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_the_right_numbers_before_anything_is_read() {
    let mut engine = engine(&kimi_k3_oracle(), |options| options.positions = 12);
    let mut session = engine.session().unwrap();
    for max_tokens in [0, 1, usize::MAX] {
        let before = engine.bytes_read().total();
        let error = run((&mut engine, &mut session), &[7; 13], &up_to(max_tokens), None).unwrap_err();
        assert_eq!(error.to_string(), "the context is full: 0 of 12 tokens are taken and 13 more do not fit");
        assert_eq!((session.position(), engine.bytes_read().total()), (0, before));
    }
    run((&mut engine, &mut session), &[7; 9], &up_to(2), None).unwrap();
    let error = run((&mut engine, &mut session), &[7; 3], &up_to(1), None).unwrap_err();
    assert_eq!(error.to_string(), "the context is full: 10 of 12 tokens are taken and 3 more do not fit");
    assert_eq!(run((&mut engine, &mut session), &[7; 2], &up_to(3), None).unwrap().ids.len(), 1);
}

#[test]
fn sizes_that_no_memory_holds_do_not_fit() {
    let make = |positions, columns| {
        let mut options = EngineOptions::default();
        (options.positions, options.columns, options.ram_bytes) = (positions, columns, Some(4 << 30));
        Engine::new(open(&kimi_k3_oracle()), &options)
    };
    for columns in [1, 512, usize::MAX] {
        for positions in [usize::MAX, usize::MAX / 2, 1 << 50] {
            let error = make(positions, columns).unwrap_err();
            assert!(matches!(error, Error::DoesNotFit { .. }), "{positions} and {columns}: {error}");
        }
    }
    // Passes are as wide as the context at most, and as memory allows.
    assert_eq!(make(100, usize::MAX).unwrap().max_columns(), 100);
}

#[test]
fn a_stop_text_ends_the_text_wherever_tokens_part() {
    let tokenizer = Tokenizer::from_dir(demo_model()).unwrap();
    let mut engine = engine(&demo_model(), |_| {});
    let prompt: Vec<u32> =
        tokenizer.encode("[BOS]The king", Specials::Parse).into_iter().map(|id| id.0).collect();
    let mut run = |stop: &[&str]| {
        let mut options = up_to(24);
        options.stop = stop.iter().map(ToString::to_string).collect();
        let mut session = engine.session().unwrap();
        run((&mut engine, &mut session), &prompt, &options, Some(&tokenizer)).unwrap()
    };
    let whole = run(&[]).text;
    assert!(whole.is_ascii() && whole.len() > 60, "{whole}");
    // Every length from every seventh place: within a token, over the end of one, over several.
    for start in (0..whole.len() - 20).step_by(7) {
        for len in [1, 2, 5, 11, 20] {
            let stop = &whole[start..start + len];
            let stopped = run(&[stop, "text that never comes"]);
            assert_eq!(
                (Some(&*stopped.text), stopped.finish),
                (whole.split(stop).next(), FinishReason::Stop)
            );
        }
    }
    // What only begins like a stop text is held back and comes in the end.
    let unfinished = format!("{}~", &whole[whole.len() - 6..]);
    let generation = run(&[&unfinished]);
    assert_eq!((generation.text, generation.finish), (whole, FinishReason::Length));
}

#[test]
fn logprobs_are_those_of_the_logits_for_every_token() {
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let vocab_size = engine.model().config().vocab_size;
    let mut plain = up_to(6);
    let mut session = engine.session().unwrap();
    let without = run((&mut engine, &mut session), &[3, 1, 4], &plain, None).unwrap();
    assert_eq!(without.logprobs, None);
    for top in [0, 1, 5] {
        plain.sampler.logprobs = Some(top);
        let mut session = engine.session().unwrap();
        let generation = run((&mut engine, &mut session), &[3, 1, 4], &plain, None).unwrap();
        assert_eq!(generation.ids, without.ids, "to report changes nothing");
        let logprobs = generation.logprobs.unwrap();
        assert_eq!(logprobs.iter().len(), 6);
        // The logits once more, in passes over what was generated.
        let mut session = engine.session().unwrap();
        let fed = [&[3, 1, 4], &generation.ids[..5]].concat();
        let logits = &support::feed(&mut engine, &mut session, &fed, 1)[2..];
        for ((row, &id), (chosen, alternatives)) in logits.iter().zip(&generation.ids).zip(logprobs.iter()) {
            assert_eq!(row.len(), vocab_size);
            let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            let close = |id: u32, logprob: f32| {
                (f64::from(row[id as usize]) - total.ln() - f64::from(logprob)).abs() < 1e-6
            };
            assert!(close(id, chosen) && alternatives.len() == top);
            assert!(alternatives.iter().all(|token| close(token.id, token.logprob)));
            assert!(alternatives.first().is_none_or(|first| first.id == id), "the greedy choice ranks first");
        }
    }
}

#[test]
fn end_tokens_of_the_generation_config_count_more_than_those_of_the_model() {
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let mut session = engine.session().unwrap();
    let free = run((&mut engine, &mut session), &[3, 1, 4], &up_to(8), None).unwrap().ids;
    let fourth = free.iter().position(|&id| id == free[3]).unwrap();
    let json = format!(r#"{{"eos_token_id": [{}, {}]}}"#, free[3], 511);
    let mut options = up_to(8);
    options.ignore_eos = false;
    GenerationConfig::parse(json.as_bytes(), "generation_config.json".as_ref(), 512)
        .unwrap()
        .apply(&mut options);
    let mut session = engine.session().unwrap();
    let ended = run((&mut engine, &mut session), &[3, 1, 4], &options, None).unwrap();
    assert_eq!((&ended.ids[..], ended.finish), (&free[..=fourth], FinishReason::Eos));
    options.eos_token_ids = Some(Vec::new());
    let mut session = engine.session().unwrap();
    let whole = run((&mut engine, &mut session), &[3, 1, 4], &options, None).unwrap();
    assert_eq!((whole.ids, whole.finish), (free, FinishReason::Length));
}

#[test]
fn sampling_options_out_of_range_are_refused_before_anything_is_read() {
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let mut session = engine.session().unwrap();
    let before = engine.bytes_read().total();
    let mut options = up_to(4);
    options.sampler.logit_bias = vec![(512, 1.0)];
    let error = run((&mut engine, &mut session), &[3, 1, 4], &options, None).unwrap_err();
    assert_eq!(error.to_string(), "logit_bias of token id 512: the vocabulary has 512 entries");
    assert_eq!((session.position(), engine.bytes_read().total()), (0, before));
}
