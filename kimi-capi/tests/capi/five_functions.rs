//! `kimi_load_model`, `kimi_tokenize`, `kimi_generate_next_token`, `kimi_detokenize`, `kimi_free_model`.

use std::ffi::c_int;
use std::path::Path;

use ::kimi_model::{FinishReason, SamplerOptions};
use kimi_k3_inference::*;
use kimi_testing::{demo_model, kimi_k3_oracle};

use crate::support::*;

const PROMPT: &str = "The king said";

#[test]
fn the_ids_and_texts_are_those_of_kimi_model() {
    let expected = expected(&demo_model(), PROMPT, 24, SamplerOptions::default());
    let model = load(&demo_model(), 256);
    let prompt = tokenize(model, PROMPT);
    let mut tokens = prompt.clone();
    extend(model, &mut tokens, 24);
    assert_eq!(ids(&tokens[prompt.len()..]), expected.ids);

    let mut joined = Vec::new();
    for &token in &tokens[prompt.len()..] {
        let mut buffer = [0xffu8; 64];
        // SAFETY: the buffer has this room.
        let len = unsafe { kimi_detokenize(model, token, buffer.as_mut_ptr().cast(), 64) };
        assert!(len > 0, "{}", last_error());
        assert_eq!(buffer[len as usize], 0);
        joined.extend_from_slice(&buffer[..len as usize]);
    }
    assert_eq!(String::from_utf8(joined).unwrap(), expected.text);
    kimi_free_model(model);
    assert_eq!(last(), (OK, String::new()));
}

#[test]
fn only_what_is_new_is_computed() {
    let model = load(&demo_model(), 256);
    let computed = || {
        // SAFETY: the buffer has the room that `text` says.
        let stats = text(|buf, cap| unsafe { kimi_model_stats_json(model.cast(), buf, cap) });
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["tokens"].as_u64().unwrap()
    };
    let mut tokens = tokenize(model, PROMPT);
    let prompt = tokens.len() as u64;
    extend(model, &mut tokens, 1);
    assert_eq!(computed(), prompt);
    extend(model, &mut tokens, 3);
    assert_eq!(computed(), prompt + 3, "one more token for each call");
    let again = next_token(model, &tokens);
    assert_eq!(again, next_token(model, &tokens));
    assert_eq!(computed(), prompt + 4, "the same question is not computed again");
    tokens.extend([again, 7, 8, 9]);
    next_token(model, &tokens);
    assert_eq!(computed(), prompt + 8, "several at once");
    kimi_free_model(model);
}

/// Tokens that a model has computed.
fn computed(model: *mut std::ffi::c_void) -> u64 {
    // SAFETY: the buffer has the room that `text` says.
    let stats = text(|buf, cap| unsafe { kimi_model_stats_json(model.cast(), buf, cap) });
    serde_json::from_str::<serde_json::Value>(&stats).unwrap()["tokens"].as_u64().unwrap()
}

#[test]
fn a_sequence_that_shares_its_beginning_goes_on_from_a_checkpoint() {
    let (model, alone) = (load(&demo_model(), 512), load(&demo_model(), 512));
    let mut random = kimi_testing::Seeded::new(5);
    let mut some =
        |count: usize| -> Vec<c_int> { (0..count).map(|_| 10 + random.below(200) as c_int).collect() };
    // What is shared with the sequence before, what is new behind it, and what that may cost: the new tokens, and those
    // between the end of what is shared and the checkpoint before it.
    let mut tokens = Vec::new();
    for (shared, new, cost) in [
        (0, 100, 100),
        (100, 1, 1),
        (101, 30, 30),
        // The end of the first call: that of the second gave way, as it was nearer than the spacing.
        (100, 5, 5),
        (99, 5, 104),
        (104, 200, 200),
        (304, 1, 1),
        (304, 1, 1),
        (304, 3, 3),
        (250, 3, 149),
    ] {
        tokens.truncate(shared);
        tokens.extend(some(new));
        let before = computed(model);
        let token = next_token(model, &tokens);
        // With nothing in common it begins anew.
        next_token(alone, &[tokens[0] + 1]);
        assert_eq!(token, next_token(alone, &tokens), "{shared} and {new}");
        assert_eq!(computed(model) - before, cost, "{shared} and {new}");
    }
    // The same question without its last token, whose logits are not known any more.
    let before = computed(model);
    assert_eq!(next_token(model, &tokens[..200]), next_token(alone, &tokens[..200]));
    assert!(computed(model) - before <= 200);
    kimi_free_model(alone);
    kimi_free_model(model);
}

#[test]
fn a_long_generation_keeps_a_bounded_number_of_checkpoints() {
    let model = load(&demo_model(), 2048);
    let mut tokens = tokenize(model, PROMPT);
    let prompt = tokens.len();
    extend(model, &mut tokens, 1500);
    // Every token was computed once, wherever it stood.
    assert_eq!(computed(model), (tokens.len() - 1) as u64);
    for shared in [1400, 900, 300, 40, prompt] {
        let before = computed(model);
        let mut asked = tokens[..shared].to_vec();
        asked.push(if tokens[shared] == 17 { 18 } else { 17 });
        assert!(next_token(model, &asked) >= 0, "{}", last_error());
        let cost = computed(model) - before;
        assert!(cost <= 300, "{cost} tokens for {shared} shared ones");
    }
    kimi_free_model(model);
}

#[test]
fn where_memory_is_short_a_sequence_begins_anew() {
    let path = c_path(&kimi_k3_oracle());
    let open = |ram: i64| {
        let options = kimi_model_options_new();
        assert_eq!((set_int(options, "ram_bytes", ram), set_int(options, "context", 64)), (OK, OK));
        // SAFETY: a text that ends with NUL.
        let model = unsafe { kimi_model_open(path.as_ptr(), options) };
        kimi_options_free(options);
        model
    };
    // The message of a model that does not fit tells what it needs.
    assert!(open(1000).is_null());
    let message = last_error();
    let needed: f64 = message.split(' ').find_map(|word| word.parse().ok()).unwrap();
    let model = open((needed * 1e6) as i64 + 4_000_000);
    assert!(!model.is_null(), "{}", last_error());
    let alone = load(&kimi_k3_oracle(), 64);
    for tokens in [&[3, 1, 4, 1, 5][..], &[3, 1, 4, 1, 6], &[3, 1, 4], &[3, 1, 4, 1, 5, 9]] {
        assert_eq!(next_token(model.cast(), tokens), next_token(alone, tokens), "{}", last_error());
    }
    kimi_free_model(alone);
    kimi_free_model(model.cast());
}

#[test]
fn every_sequence_gives_what_it_gives_to_a_fresh_model() {
    let alone = |tokens: &[c_int]| {
        let model = load(&kimi_k3_oracle(), 64);
        let token = next_token(model, tokens);
        kimi_free_model(model);
        token
    };
    let model = load(&kimi_k3_oracle(), 64);
    // Longer, shorter, equal, another end, another beginning, nothing in common, longer than a logged pass.
    let long: Vec<c_int> = (0..40).map(|i| (i * 7 + 3) % 60).collect();
    for tokens in [
        &[3, 1, 4, 1, 5][..],
        &[3, 1, 4, 1, 5, 9],
        &[3, 1, 4, 1, 5, 9],
        &[3, 1, 4],
        &[3, 1, 4],
        &[3, 1, 4, 2],
        &[3, 1, 5, 2],
        &[8],
        &long,
        &long[..39],
        &long[1..],
        &long,
    ] {
        let token = next_token(model, tokens);
        assert!(kimi_last_status() >= 0, "{}", last_error());
        assert_eq!(token, alone(tokens), "{tokens:?}");
    }
    kimi_free_model(model);
}

#[test]
fn a_refused_sequence_costs_nothing() {
    let model = load(&kimi_k3_oracle(), 64);
    let tokens = [3, 1, 4, 1, 5];
    let token = next_token(model, &tokens);
    assert_eq!(next_token(model, &[3, 1, 4, 1, 5, 1_000_000]), INVALID_ARGUMENT);
    assert!(last_error().contains("token id 1000000 is outside the vocabulary"), "{}", last_error());
    assert_eq!(next_token(model, &[1; 65]), CONTEXT_FULL);
    assert_eq!(next_token(model, &tokens), token);
    // SAFETY: the buffer has the room that `text` says.
    let stats = text(|buf, cap| unsafe { kimi_model_stats_json(model.cast(), buf, cap) });
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["tokens"], 5);
    assert!(next_token(model, &[1; 64]) >= 0, "the context is full to the last token: {}", last_error());
    kimi_free_model(model);
}

/// A copy of a model folder in which some token is an end token.
fn with_end_token(folder: &Path, id: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        if file.is_file() {
            std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    let config = format!("{{\"eos_token_id\": {id}}}");
    std::fs::write(dir.path().join("generation_config.json"), config).unwrap();
    dir
}

#[test]
fn an_end_token_and_the_token_0_are_told_apart() {
    let expected = expected(&demo_model(), PROMPT, 6, SamplerOptions::default());
    assert_eq!(expected.finish, FinishReason::Length);
    let dir = with_end_token(&demo_model(), expected.ids[3]);
    let model = load(dir.path(), 64);
    let mut tokens = tokenize(model, PROMPT);
    extend(model, &mut tokens, 3);
    assert_eq!((next_token(model, &tokens), kimi_last_status()), (0, END_OF_SEQUENCE));
    assert_eq!(last_error(), "", "it is no error");
    // A program that goes on all the same is answered as before.
    tokens.push(expected.ids[3].cast_signed());
    assert_eq!((next_token(model, &tokens), kimi_last_status()), (expected.ids[4].cast_signed(), OK));
    kimi_free_model(model);

    let model = load(&kimi_k3_oracle(), 64);
    let zero = (0..512).find(|&id| next_token(model, &[id]) == 0 && kimi_last_status() == OK);
    assert_eq!(zero, Some(366), "the token 0 follows this one");
    kimi_free_model(model);
}

#[test]
fn the_kv_cache_is_bounded() {
    let path = c_path(&demo_model());
    let capacity = |max_seq_len, kv_cache_gb| {
        // SAFETY: a text that ends with NUL.
        let model = unsafe { kimi_load_model(path.as_ptr(), max_seq_len, kv_cache_gb, 1) };
        if model.is_null() {
            return kimi_last_status();
        }
        let session = kimi_session_new(model.cast());
        let capacity = kimi_session_capacity(session);
        kimi_session_free(session);
        kimi_free_model(model);
        capacity
    };
    let unbounded = capacity(1024, 0.0);
    assert_eq!(unbounded, 1024);
    assert_eq!(capacity(1024, 4.0), 1024);
    assert_eq!(capacity(1024, f32::INFINITY), 1024);
    assert_eq!(capacity(100, -1.0), 100);
    let bounded = capacity(1024, 0.000_2);
    assert!(bounded > 0 && bounded < 1024 && bounded % 64 == 0, "{bounded}");
    // The message names the block; so many of them give so many positions.
    assert_eq!(capacity(1024, 1e-9), DOES_NOT_FIT);
    let message = last_error();
    let block: f64 =
        message.split(' ').find_map(|word| word.parse().ok().filter(|&n: &f64| n > 1.0)).unwrap();
    assert_eq!(bounded, (200_000.0 / block) as c_int * 64, "{message}");
    assert_eq!(capacity(1024, f32::NAN), INVALID_ARGUMENT);
}

#[test]
fn a_single_file_is_loaded_whatever_it_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let open = &mut |file: &Path| Ok(std::sync::Arc::new(kimi_paging::FileSource::open(file)?) as _);
    let model = ::kimi_model::Model::open(&demo_model(), open).unwrap();
    let file = dir.path().join("kimi-k3-4bit-8b.gguf");
    ::kimi_model::pack::join(&model, &file, &|_| (), &std::sync::atomic::AtomicBool::new(false)).unwrap();
    let (folder, single) = (load(&demo_model(), 128), load(&file, 128));
    let mut sequences = [folder, single].map(|model| tokenize(model, PROMPT));
    for (model, tokens) in [folder, single].into_iter().zip(&mut sequences) {
        extend(model, tokens, 24);
    }
    assert_eq!(sequences[0], sequences[1]);
    // SAFETY: a text that ends with NUL.
    let tokenizer = unsafe { kimi_tokenizer_open(c_path(&file).as_ptr()) };
    assert_eq!(tokenize(tokenizer.cast(), PROMPT), tokenize(folder, PROMPT));
    kimi_tokenizer_free(tokenizer);
    for model in [folder, single] {
        kimi_free_model(model);
    }
}

#[test]
fn what_is_no_model_folder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = dir.path().join("kimi-k3-4bit-8b.gguf");
    std::fs::write(&gguf, b"GGUF\x03\0\0\0").unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "GG").unwrap();
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let broken = dir.path().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("config.json"), "{").unwrap();
    for (path, status, message) in [
        (
            &gguf,
            INVALID_ARGUMENT,
            "kimi-k3-4bit-8b.gguf: is a GGUF file; a model is a folder with config.json",
        ),
        (&text, INVALID_ARGUMENT, "notes.txt: is a file that begins with \"GG\"; a model is"),
        (&dir.path().join("nowhere"), INVALID_ARGUMENT, "nowhere: does not exist; a model is"),
        (&empty, CORRUPT, "config.json: cannot be read; a model folder needs a config.json: "),
        (&broken, CORRUPT, "config.json: not valid JSON: "),
    ] {
        // SAFETY: a text that ends with NUL.
        let model = unsafe { kimi_load_model(c_path(path).as_ptr(), 64, 0.0, 1) };
        assert!(model.is_null());
        assert_eq!(kimi_last_status(), status, "{}", last_error());
        assert!(last_error().contains(message), "{}", last_error());
    }
}
