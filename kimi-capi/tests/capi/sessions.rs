//! Sessions: feeding, sampling, generating with a callback, cancelling.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use ::kimi_model::{FinishReason, SamplerOptions};
use kimi_k3_inference::*;
use kimi_testing::{demo_model, same_bits};

use crate::support::*;

const PROMPT: &str = "And the woman";

/// What a callback hears.
#[derive(Default)]
struct Heard {
    tokens: Vec<c_int>,
    text: String,
    /// Stop after so many tokens.
    stop_after: Option<usize>,
    /// What the callback does besides.
    also: Option<Box<dyn FnMut()>>,
}

/// # Safety
/// `user` points to a [`Heard`] that nobody else uses, `text` to `len` bytes and a NUL.
unsafe extern "C" fn hear(user: *mut c_void, token: c_int, text: *const c_char, len: usize) -> c_int {
    // SAFETY: as promised.
    let (heard, bytes) =
        unsafe { (&mut *user.cast::<Heard>(), std::slice::from_raw_parts(text.cast::<u8>(), len + 1)) };
    let (&end, text) = bytes.split_last().unwrap();
    assert_eq!(end, 0);
    heard.text.push_str(std::str::from_utf8(text).unwrap());
    if token >= 0 {
        heard.tokens.push(token);
    }
    if let Some(also) = &mut heard.also {
        also();
    }
    c_int::from(heard.stop_after.is_some_and(|count| heard.tokens.len() >= count))
}

/// The result and the finish reason of a generation.
fn generate(
    session: *mut kimi_session,
    tokens: &[c_int],
    options: *mut kimi_options,
    heard: &mut Heard,
) -> (c_int, c_int) {
    let (n, user) = (tokens.len() as c_int, std::ptr::from_mut(heard).cast());
    let mut finish = 0;
    // SAFETY: so many numbers; `hear` gets what it needs.
    let count = unsafe {
        kimi_session_generate(session, tokens.as_ptr(), n, options, Some(hear), user, &raw mut finish)
    };
    (count, finish)
}

fn options(max_tokens: i64, temperature: f64) -> *mut kimi_options {
    let options = kimi_generate_options_new();
    assert_eq!(set_int(options, "max_tokens", max_tokens), OK);
    assert_eq!(set_int(options, "seed", 3), OK);
    assert_eq!(set_float(options, "temperature", temperature), OK);
    options
}

#[test]
fn generating_streams_what_kimi_model_generates() {
    for temperature in [0.0, 0.8] {
        let mut sampler = SamplerOptions::default();
        (sampler.temperature, sampler.seed) = (temperature as f32, 3);
        let expected = expected(&demo_model(), PROMPT, 20, sampler);
        assert_eq!(expected.finish, FinishReason::Length);
        let model = load(&demo_model(), 256);
        let session = kimi_session_new(model.cast());
        let mut heard = Heard::default();
        let prompt = tokenize(model, PROMPT);
        assert_eq!(generate(session, &prompt, options(20, temperature), &mut heard), (20, 3));
        assert_eq!(ids(&heard.tokens), expected.ids);
        assert_eq!(heard.text, expected.text);
        kimi_session_free(session);
        kimi_free_model(model);
    }
}

#[test]
fn a_session_goes_on_where_it_stopped() {
    let expected = expected(&demo_model(), PROMPT, 30, SamplerOptions::default());
    let model = load(&demo_model(), 256);
    let prompt = tokenize(model, PROMPT);
    let session = kimi_session_new(model.cast());
    // In parts: a callback that stops, a length, one token at a time, a length again.
    let mut heard = Heard { stop_after: Some(7), ..Heard::default() };
    assert_eq!(generate(session, &prompt, options(30, 0.0), &mut heard), (7, 5));
    heard.stop_after = None;
    assert_eq!(generate(session, &[], options(5, 0.0), &mut heard), (5, 3));
    let sampler = kimi_sampler_new(model.cast(), null());
    for _ in 0..6 {
        assert_eq!(feed(session, &[]), OK, "{}", last_error());
        heard.tokens.push(kimi_session_next(session, sampler));
    }
    assert_eq!(generate(session, &[], options(12, 0.0), &mut heard), (12, 3));
    assert_eq!(ids(&heard.tokens), expected.ids);
    assert_eq!(kimi_session_position(session), (prompt.len() + 30 - 1) as c_int);

    // Back to the beginning, and all at once.
    assert_eq!(kimi_session_reset(session), OK);
    assert_eq!(kimi_session_position(session), 0);
    let mut heard = Heard::default();
    assert_eq!(generate(session, &prompt, options(30, 0.0), &mut heard), (30, 3));
    assert_eq!(ids(&heard.tokens), expected.ids);
    kimi_sampler_free(sampler);
    kimi_session_free(session);
    kimi_free_model(model);
}

#[test]
fn logits_do_not_depend_on_how_the_tokens_came() {
    let model = load(&demo_model(), 256);
    let prompt = tokenize(model, PROMPT);
    let (session, other) = (kimi_session_new(model.cast()), kimi_session_new(model.cast()));
    // SAFETY: a buffer of size 0 is only asked for.
    assert_eq!(unsafe { kimi_session_logits(session, null_mut(), 0) }, INVALID_ARGUMENT);
    assert_eq!(last_error(), "there are no logits: feed tokens first");
    assert_eq!(feed(session, &prompt), OK);
    for token in &prompt {
        assert_eq!(feed(other, &[*token]), OK);
    }
    let (a, b) = (logits(session), logits(other));
    assert!(same_bits(&a, &b));

    let sampler = kimi_sampler_new(model.cast(), null());
    // SAFETY: so many numbers.
    let best = unsafe { kimi_sampler_sample(sampler, a.as_ptr(), a.len() as c_int) };
    assert_eq!(best, next_token(model, &prompt));
    assert_eq!(kimi_session_next(session, sampler), best);
    // SAFETY: so many numbers.
    assert_eq!(unsafe { kimi_sampler_sample(sampler, a.as_ptr(), 3) }, INVALID_ARGUMENT);

    // A bias decides, a seed too.
    let options = options(1, 0.0);
    assert_eq!(kimi_options_add_logit_bias(options, 5, 1e6), OK);
    let biased = kimi_sampler_new(model.cast(), options);
    assert_eq!(kimi_session_next(session, biased), 5, "chosen again, the new token takes its place");
    assert_eq!((feed(session, &[]), feed(other, &[5])), (OK, OK));
    assert!(same_bits(&logits(session), &logits(other)));
    assert_eq!(feed(session, &[]), INVALID_ARGUMENT, "there is nothing new");
    kimi_sampler_free(biased);
    kimi_sampler_free(sampler);
    kimi_session_free(other);
    kimi_session_free(session);
    kimi_free_model(model);
}

#[test]
fn penalties_count_what_the_sampler_was_told() {
    let model = load(&demo_model(), 64);
    let generating = options(1, 0.0);
    assert_eq!(set_float(generating, "repetition_penalty", 4.0), OK);
    let sampler = kimi_sampler_new(model.cast(), generating);
    // SAFETY: a buffer of the room that `text` says.
    let info = text(|buf, cap| unsafe { kimi_model_info_json(model.cast(), buf, cap) });
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let mut logits = vec![0.0f32; info["vocab_size"].as_u64().unwrap() as usize];
    (logits[2], logits[3]) = (9.0, 5.0);
    let n = logits.len() as c_int;
    // SAFETY: so many numbers.
    unsafe {
        assert_eq!(kimi_sampler_prompt(sampler, [2].as_ptr(), 1), OK);
        assert_eq!(kimi_sampler_sample(sampler, logits.as_ptr(), n), 3, "a quarter of 9 is less than 5");
        assert_eq!(kimi_sampler_prompt(sampler, [n].as_ptr(), 1), INVALID_ARGUMENT);
        logits.fill(f32::NEG_INFINITY);
        assert_eq!(kimi_sampler_sample(sampler, logits.as_ptr(), n), INVALID_ARGUMENT);
    }
    kimi_options_free(generating);
    kimi_sampler_free(sampler);
    kimi_free_model(model);
}

#[test]
fn generations_end_for_the_reason_they_say() {
    let expected = expected(&demo_model(), PROMPT, 20, SamplerOptions::default());
    let model = load(&demo_model(), 64);
    let prompt = tokenize(model, PROMPT);
    let session = kimi_session_new(model.cast());

    // A word of what comes anyway is the stop text.
    let stop: String = expected.text.chars().skip(8).take(6).collect();
    let stopping = options(60, 0.0);
    assert_eq!(set_text(stopping, "stop", &stop), OK);
    let mut heard = Heard::default();
    let (count, finish) = generate(session, &prompt, stopping, &mut heard);
    assert!(count > 0 && finish == 2, "{count} {finish}");
    assert_eq!(heard.text, expected.text[..expected.text.find(&stop).unwrap()]);

    assert_eq!(kimi_session_reset(session), OK);
    let (count, finish) = generate(session, &prompt, options(1000, 0.0), &mut Heard::default());
    assert_eq!((count as usize + prompt.len(), finish), (65, 4), "the last token needs no room");
    assert_eq!(generate(session, &[], options(1, 0.0), &mut Heard::default()).0, CONTEXT_FULL);
    assert_eq!(feed(session, &[]), CONTEXT_FULL);

    assert_eq!(kimi_session_reset(session), OK);
    assert_eq!(generate(session, &[], options(1, 0.0), &mut Heard::default()).0, INVALID_ARGUMENT);
    // SAFETY: so many numbers; neither options nor callback nor a place for the reason are needed.
    let count = unsafe {
        let n = prompt.len() as c_int;
        kimi_session_generate(session, prompt.as_ptr(), n, null(), None, null_mut(), null_mut())
    };
    assert!(count > 0);
    kimi_session_free(session);
    kimi_free_model(model);
}

#[test]
fn cancelling_holds_until_it_is_taken_back() {
    let model = load(&demo_model(), 256);
    let prompt = tokenize(model, PROMPT);
    let session = kimi_session_new(model.cast());
    assert_eq!(kimi_session_cancel(session, 1), OK);
    assert_eq!(feed(session, &prompt), CANCELLED);
    assert_eq!(generate(session, &prompt, options(5, 0.0), &mut Heard::default()), (0, 5));
    assert_eq!(kimi_session_position(session), 0);
    assert_eq!(kimi_session_cancel(session, 0), OK);
    assert_eq!(feed(session, &prompt), OK);

    // From inside: the token that was heard last stays the last one.
    let address = session as usize;
    let mut heard = Heard::default();
    let mut calls = 0;
    heard.also = Some(Box::new(move || {
        calls += 1;
        if calls == 4 {
            kimi_session_cancel(address as *mut kimi_session, 1);
        }
    }));
    assert_eq!(kimi_session_reset(session), OK);
    assert_eq!(generate(session, &prompt, options(50, 0.0), &mut heard), (4, 5));
    assert_eq!(kimi_session_position(session) as usize, prompt.len() + 3);
    assert_eq!(kimi_session_cancel(session, 0), OK);
    let expected = expected(&demo_model(), PROMPT, 6, SamplerOptions::default());
    heard.also = None;
    assert_eq!(generate(session, &[], options(2, 0.0), &mut heard), (2, 3));
    assert_eq!(ids(&heard.tokens), expected.ids);
    kimi_session_free(session);
    kimi_free_model(model);
}

#[test]
fn a_callback_that_calls_back_is_told_that_it_would_wait_for_itself() {
    let model = load(&demo_model(), 64);
    let prompt = tokenize(model, PROMPT);
    let (session, other) = (kimi_session_new(model.cast()), kimi_session_new(model.cast()));
    let handles = [model as usize, session as usize, other as usize];
    let answers = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let noted = answers.clone();
    let also = Box::new(move || {
        let [model, session, other] = handles;
        noted.borrow_mut().extend([
            feed(session as *mut kimi_session, &[1]),
            feed(other as *mut kimi_session, &[1]),
            kimi_session_position(session as *mut kimi_session),
            next_token(model as *mut c_void, &[1]),
            kimi_session_reset(session as *mut kimi_session),
            // What computes nothing works.
            kimi_session_position(other as *mut kimi_session),
            i32::from(!tokenize(model as *mut c_void, "word").is_empty()),
        ]);
    });
    let mut heard = Heard { also: Some(also), ..Heard::default() };
    assert_eq!(generate(session, &prompt, options(1, 0.0), &mut heard), (1, 3));
    assert_eq!(answers.borrow()[..], [BUSY, BUSY, BUSY, BUSY, BUSY, 0, 1]);
    assert_eq!(feed(other, &prompt), OK, "afterwards everything is as before");
    kimi_session_free(session);
    kimi_session_free(other);
    kimi_free_model(model);
}

#[test]
fn a_session_outlives_the_handle_of_its_model() {
    let model = load(&demo_model(), 64);
    let prompt = tokenize(model, PROMPT);
    let session = kimi_session_new(model.cast());
    kimi_free_model(model);
    assert!(kimi_session_new(model.cast()).is_null());
    assert_eq!(feed(session, &prompt), OK, "{}", last_error());
    kimi_session_free(session);
    assert_eq!(feed(session, &prompt), INVALID_HANDLE);
}

#[test]
fn reports_say_how_the_model_runs() {
    let opening = kimi_model_options_new();
    for (name, value) in [("ram_bytes", 2_000_000_000), ("context", 128), ("chunk", 16), ("threads", 1)] {
        assert_eq!(set_int(opening, name, value), OK);
    }
    for (name, value) in
        [("kv", "bf16"), ("io", "pread"), ("isa", "scalar"), ("arith", "exact"), ("check", "all")]
    {
        assert_eq!(set_text(opening, name, value), OK, "{}", last_error());
    }
    // SAFETY: a text that ends with NUL.
    let model = unsafe { kimi_model_open(c_path(&demo_model()).as_ptr(), opening) };
    assert!(!model.is_null(), "{}", last_error());
    assert!(next_token(model.cast(), &[1, 2, 3]) >= 0);
    type Report = unsafe extern "C" fn(*const kimi_model, *mut c_char, c_int) -> c_int;
    let report = |report: Report| {
        // SAFETY: a buffer of the room that `text` says.
        let json = text(|buf, cap| unsafe { report(model, buf, cap) });
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    let (info, plan, stats) =
        (report(kimi_model_info_json), report(kimi_model_plan_json), report(kimi_model_stats_json));
    assert_eq!((&info["context"], &info["has_tokenizer"]), (&128.into(), &true.into()));
    assert!(info["eos_token_ids"].as_array().is_some_and(|ids| !ids.is_empty()), "{info}");
    assert_eq!((&plan["columns"], &plan["positions"]), (&16.into(), &128.into()));
    assert_eq!(plan["limit_bytes"], 2_000_000_000u64);
    let items = plan["items"].as_array().unwrap().iter().map(|item| item["bytes"].as_u64().unwrap());
    assert_eq!(plan["total_bytes"], items.sum::<u64>());
    for (key, value) in [("isa", "scalar"), ("kv", "bf16"), ("arith", "exact")] {
        assert_eq!(stats[key], value);
    }
    assert_eq!((&stats["passes"], &stats["tokens"], &stats["threads"]), (&1.into(), &3.into(), &1.into()));
    assert!(stats["bytes_read"]["trunk"].as_u64().unwrap() > 0);
    assert!(stats["io"]["reads"].as_u64().unwrap() > 0);
    kimi_options_free(opening);
    kimi_free_model(model.cast());
}
