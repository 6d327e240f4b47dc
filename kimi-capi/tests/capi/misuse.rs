//! Calls that are wrong: each is an error with a message, and nothing worse.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use kimi_k3_inference::*;
use kimi_testing::{demo_model, kimi_k3_oracle};

use crate::support::*;

#[test]
fn null_pointers_are_errors() {
    let model = load(&demo_model(), 64);
    let session = kimi_session_new(model.cast());
    let options = kimi_generate_options_new();
    // SAFETY: null pointers are what is tested; everything else is good.
    unsafe {
        assert!(kimi_load_model(null(), 64, 0.0, 1).is_null());
        assert_eq!(last(), (INVALID_ARGUMENT, "path is a null pointer".to_owned()));
        assert!(kimi_model_open(null(), null()).is_null());
        assert!(kimi_tokenizer_open(null()).is_null());
        let mut tokens = [0; 8];
        assert_eq!(kimi_tokenize(model, null(), tokens.as_mut_ptr(), 8), INVALID_ARGUMENT);
        assert_eq!(kimi_tokenize(model, c("text").as_ptr(), null_mut(), 8), INVALID_ARGUMENT);
        assert_eq!(last_error(), "tokens is a null pointer");
        assert_eq!(kimi_generate_next_token(model, null(), 3), INVALID_ARGUMENT);
        assert_eq!(kimi_detokenize(model, 1, null_mut(), 8), INVALID_ARGUMENT);
        assert_eq!(kimi_encode(model, null(), 3, 0, tokens.as_mut_ptr(), 8), INVALID_ARGUMENT);
        assert_eq!(kimi_encode(model, null(), 0, 0, tokens.as_mut_ptr(), 8), 0, "no text needs no place");
        assert_eq!(kimi_decode(model, null(), 2, 0, null_mut(), 0), INVALID_ARGUMENT);
        assert_eq!(kimi_special_token(model, null()), INVALID_ARGUMENT);
        assert_eq!(kimi_session_feed(session, null(), 2), INVALID_ARGUMENT);
        assert_eq!(kimi_options_set_int(options, null(), 1), INVALID_ARGUMENT);
        assert_eq!(kimi_options_set_text(options, c("stop").as_ptr(), null()), INVALID_ARGUMENT);

        assert_eq!(kimi_tokenize(null_mut(), c("text").as_ptr(), tokens.as_mut_ptr(), 8), INVALID_HANDLE);
        assert_eq!(last_error(), "this is a null pointer, a handle of a model is needed");
        assert_eq!(kimi_generate_next_token(null_mut(), tokens.as_ptr(), 1), INVALID_HANDLE);
        assert_eq!(kimi_detokenize(null_mut(), 1, null_mut(), 0), INVALID_HANDLE);
        assert_eq!(kimi_session_feed(null_mut(), tokens.as_ptr(), 1), INVALID_HANDLE);
        assert_eq!(kimi_model_info_json(null(), null_mut(), 0), INVALID_HANDLE);
    }
    assert!(kimi_session_new(null_mut()).is_null());
    assert!(kimi_sampler_new(null(), null()).is_null());
    assert!(kimi_text_new(null(), null()).is_null());
    for free in [
        || kimi_free_model(null_mut()),
        || kimi_session_free(null_mut()),
        || kimi_options_free(null_mut()),
        || kimi_tokenizer_free(null_mut()),
        || kimi_sampler_free(null_mut()),
        || kimi_text_free(null_mut()),
    ] {
        let before = last();
        free();
        assert_eq!(last(), before, "freeing nothing is fine");
    }
    kimi_options_free(options);
    kimi_session_free(session);
    kimi_free_model(model);
}

#[test]
fn a_handle_is_freed_once() {
    let model = load(&demo_model(), 64);
    kimi_free_model(model);
    kimi_free_model(model);
    let freed = "this handle has been freed, a handle of a model is needed";
    assert_eq!(last(), (INVALID_HANDLE, freed.to_owned()));
    assert_eq!(next_token(model, &[1]), INVALID_HANDLE);
    // A younger model is not taken for the one that is gone.
    let other = load(&demo_model(), 64);
    kimi_free_model(model);
    assert_eq!(kimi_last_status(), INVALID_HANDLE);
    assert!(next_token(other, &[1, 2]) >= 0);
    kimi_free_model(other);

    let options = kimi_model_options_new();
    kimi_options_free(options);
    kimi_options_free(options);
    assert_eq!(kimi_last_status(), INVALID_HANDLE);
}

#[test]
fn handles_of_another_kind_and_other_pointers_are_refused() {
    let model = load(&demo_model(), 64);
    let session = kimi_session_new(model.cast());
    kimi_free_model(session.cast());
    let other = "this is a handle of another kind, a handle of a model is needed";
    assert_eq!(last(), (INVALID_HANDLE, other.to_owned()));
    assert_eq!(feed(model.cast(), &[1]), INVALID_HANDLE);
    assert_eq!(feed(session, &[1]), OK, "nothing has happened to it");
    let mut place = 0u64;
    for pointer in [
        (&raw mut place).cast::<c_void>(),
        Box::into_raw(Box::new(0u128)).cast(),
        std::ptr::without_provenance_mut(1),
        std::ptr::without_provenance_mut(usize::MAX),
        model.wrapping_byte_add(8 << 10),
    ] {
        kimi_free_model(pointer);
        let message = "this is no handle, a handle of a model is needed";
        assert_eq!(last(), (INVALID_HANDLE, message.to_owned()), "{pointer:p}");
        assert_eq!(next_token(pointer, &[1]), INVALID_HANDLE);
    }
    let options = kimi_model_options_new();
    assert!(kimi_sampler_new(model.cast(), options).is_null());
    assert_eq!(
        last_error(),
        "options: are for a model, options for generating are needed",
        "options are of two kinds as well"
    );
    kimi_options_free(options);
    kimi_session_free(session);
    kimi_free_model(model);
}

#[test]
fn buffers_are_never_filled_further_than_they_reach() {
    let model = load(&demo_model(), 64);
    let words = c("The king said unto them");
    // SAFETY: the buffers have the room that is given.
    unsafe {
        let count = kimi_tokenize(model, words.as_ptr(), null_mut(), 0);
        assert!(count > 3);
        for room in 0..count {
            let mut tokens = vec![-7; count as usize];
            let result = kimi_tokenize(model, words.as_ptr(), tokens.as_mut_ptr(), room);
            assert_eq!(result, BUFFER_TOO_SMALL);
            assert_eq!(last_error(), format!("{count} tokens are needed, there is room for {room}"));
            assert!(tokens.iter().all(|&token| token == -7), "nothing is written");
        }
        let mut tokens = vec![-7; count as usize + 1];
        assert_eq!(kimi_tokenize(model, words.as_ptr(), tokens.as_mut_ptr(), count), count);
        assert_eq!(tokens.pop(), Some(-7));
        assert_eq!(kimi_tokenize(model, words.as_ptr(), tokens.as_mut_ptr(), -1), INVALID_ARGUMENT);

        let len = kimi_decode(model, tokens.as_ptr(), count, 0, null_mut(), 0);
        assert_eq!(len as usize, words.as_bytes().len());
        for room in 0..=len {
            let mut buffer = vec![b'x'; len as usize + 2];
            let to = buffer.as_mut_ptr().cast::<c_char>();
            assert_eq!(kimi_decode(model, tokens.as_ptr(), count, 0, to, room), BUFFER_TOO_SMALL);
            assert_eq!(last_error(), format!("{} bytes are needed, there is room for {room}", len + 1));
            let end = if room > 0 { 0 } else { b'x' };
            assert_eq!(buffer[0], end, "what is too small becomes the empty text");
            assert!(buffer[1..].iter().all(|&byte| byte == b'x'));
        }
        let mut buffer = vec![b'x'; len as usize + 2];
        assert_eq!(kimi_decode(model, tokens.as_ptr(), count, 0, buffer.as_mut_ptr().cast(), len + 1), len);
        assert_eq!(&buffer[..=len as usize], words.as_bytes_with_nul());
        assert_eq!(buffer.pop(), Some(b'x'));
    }
    kimi_free_model(model);
}

#[test]
fn text_that_is_not_utf8_is_an_error() {
    let model = load(&demo_model(), 64);
    let mut tokens = [0; 8];
    // SAFETY: texts that end with NUL and buffers that have the room that is given.
    unsafe {
        let text = c"ab\xff".as_ptr();
        assert_eq!(kimi_tokenize(model, text, tokens.as_mut_ptr(), 8), INVALID_ARGUMENT);
        assert_eq!(last_error(), "text: is not UTF-8 from byte 2 on");
        assert_eq!(kimi_encode(model, text, 2, 0, tokens.as_mut_ptr(), 8), 1, "the length is what counts");
        assert_eq!(kimi_tokenize(model, c"".as_ptr(), tokens.as_mut_ptr(), 8), 0);
        assert_eq!(last(), (OK, String::new()), "the empty text is no error");
        // A NUL is a byte like any other where the length is given.
        let zero = [0u8];
        assert_eq!(kimi_encode(model, zero.as_ptr().cast(), 1, 0, tokens.as_mut_ptr(), 8), 1);
        let mut buffer = [b'x'; 4];
        assert_eq!(kimi_detokenize(model, tokens[0], buffer.as_mut_ptr().cast(), 4), 1);
        assert_eq!(&buffer, b"\0\0xx");
    }
    kimi_free_model(model);
}

#[test]
fn numbers_out_of_range_are_errors() {
    let model = load(&demo_model(), 64);
    // SAFETY: as many numbers as are given, and buffers that have the room that is given.
    unsafe {
        let tokens = [1, -5];
        assert_eq!(kimi_generate_next_token(model, tokens.as_ptr(), 2), INVALID_ARGUMENT);
        assert_eq!(last_error(), "tokens: the one at place 1 is -5, below 0");
        assert_eq!(kimi_generate_next_token(model, tokens.as_ptr(), 0), INVALID_ARGUMENT);
        assert_eq!(last_error(), "the prompt is empty; give a text or ids");
        assert_eq!(kimi_generate_next_token(model, tokens.as_ptr(), c_int::MIN), INVALID_ARGUMENT);
        let odd = tokens.as_ptr().wrapping_byte_add(1);
        assert_eq!(kimi_generate_next_token(model, odd, 1), INVALID_ARGUMENT);
        assert_eq!(last_error(), "tokens: is not aligned to 4 bytes");
        for token in [-1, c_int::MIN, c_int::MAX, 1_000_000] {
            let mut buffer = [b'x'; 8];
            assert_eq!(kimi_detokenize(model, token, buffer.as_mut_ptr().cast(), 8), INVALID_ARGUMENT);
            assert_eq!(buffer, [b'x'; 8]);
        }
    }
    kimi_free_model(model);

    let options = kimi_model_options_new();
    for (name, value) in [("threads", 0), ("threads", -1), ("ram_bytes", -1), ("context", 0), ("chunk", 0)] {
        assert_eq!(set_int(options, name, value), INVALID_ARGUMENT, "{name}");
    }
    for (name, value) in [("kv", "q8"), ("io", "tape"), ("isa", "mmx"), ("arith", "slow"), ("check", "some")]
    {
        assert_eq!(set_text(options, name, value), INVALID_ARGUMENT, "{name}");
        assert!(last_error().contains(value), "{}", last_error());
    }
    for name in ["temperature", "stop", "", "thread"] {
        assert_eq!(set_int(options, name, 1), INVALID_ARGUMENT, "{name}");
    }
    assert!(last_error().contains("no such option of this type as `thread`"), "{}", last_error());
    assert!(last_error().contains("threads"), "{}", last_error());
    kimi_options_free(options);

    let options = kimi_generate_options_new();
    assert_eq!(set_int(options, "max_tokens", -1), INVALID_ARGUMENT);
    assert_eq!(set_text(options, "stop", ""), INVALID_ARGUMENT);
    assert_eq!(set_float(options, "threads", 1.0), INVALID_ARGUMENT);
    assert_eq!(set_float(options, "temperature", f64::NAN), OK, "values are checked where they are used");
    let model = load(&demo_model(), 64);
    assert!(kimi_sampler_new(model.cast(), options).is_null());
    assert!(last_error().starts_with("temperature is NaN"), "{}", last_error());
    kimi_options_free(options);
    kimi_free_model(model);
}

#[test]
fn a_model_without_a_vocabulary_takes_ids() {
    let model = load(&kimi_k3_oracle(), 64);
    let mut tokens = [0; 8];
    // SAFETY: a text that ends with NUL and a buffer that has the room that is given.
    unsafe {
        assert_eq!(kimi_tokenize(model, c"text".as_ptr(), tokens.as_mut_ptr(), 8), NO_TOKENIZER);
        assert!(kimi_tokenizer_open(c_path(&kimi_k3_oracle()).as_ptr()).is_null());
        assert_eq!(kimi_last_status(), NO_TOKENIZER);
    }
    assert!(next_token(model, &[3, 1, 4]) >= 0);
    kimi_free_model(model);
}

#[test]
fn a_model_that_does_not_fit_brings_its_plan() {
    let options = kimi_model_options_new();
    assert_eq!(set_int(options, "ram_bytes", 1000), OK);
    // SAFETY: a text that ends with NUL.
    let model = unsafe { kimi_model_open(c_path(&demo_model()).as_ptr(), options) };
    assert!(model.is_null());
    assert_eq!(kimi_last_status(), DOES_NOT_FIT);
    assert!(last_error().contains("recurrent state"), "{}", last_error());
    kimi_options_free(options);
}
