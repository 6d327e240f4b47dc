//! Tokenizers and streams of text.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use kimi_k3_inference::*;
use kimi_testing::demo_model;

use crate::support::*;

fn encode(handle: *const std::ffi::c_void, text: &str, parse_special: c_int) -> Vec<c_int> {
    let mut tokens = vec![0; text.len() + 1];
    let room = tokens.len() as c_int;
    // SAFETY: so many bytes, and a buffer of this room.
    let count = unsafe {
        kimi_encode(handle, text.as_ptr().cast(), text.len(), parse_special, tokens.as_mut_ptr(), room)
    };
    assert!(count >= 0, "{}", last_error());
    tokens.truncate(count as usize);
    tokens
}

#[test]
fn a_tokenizer_alone_does_what_its_model_does() {
    // SAFETY: a text that ends with NUL.
    let tokenizer = unsafe { kimi_tokenizer_open(c_path(&demo_model()).as_ptr()) };
    assert!(!tokenizer.is_null(), "{}", last_error());
    let model = load(&demo_model(), 64);
    for words in ["", "The king said", "naïve 你好 😀", "a [BOS] b"] {
        let tokens = tokenize(model, words);
        assert_eq!(tokens, tokenize(tokenizer.cast(), words), "the five functions take either");
        assert_eq!(tokens, encode(tokenizer.cast(), words, 0));
        let (n, to) = (tokens.len() as c_int, tokens.as_ptr());
        // SAFETY: so many numbers, and a buffer of the room that `text` says.
        let back = text(|buf, cap| unsafe { kimi_decode(tokenizer.cast(), to, n, 0, buf, cap) });
        assert_eq!(back, words);
    }
    // SAFETY: a text that ends with NUL.
    let bos = unsafe { kimi_special_token(model, c"[BOS]".as_ptr()) };
    assert!(bos > 0, "{}", last_error());
    assert_eq!(encode(model, "[BOS]", 1), [bos]);
    assert!(encode(model, "[BOS]", 0).len() > 1, "text stays text unless it is asked for");
    for (hide, expected) in [(0, "[BOS]"), (1, "")] {
        // SAFETY: one number, and a buffer of the room that `text` says.
        let shown = text(|buf, cap| unsafe { kimi_decode(model, &raw const bos, 1, hide, buf, cap) });
        assert_eq!(shown, expected);
    }
    // SAFETY: a text that ends with NUL.
    assert_eq!(unsafe { kimi_special_token(model, c"[NONE]".as_ptr()) }, INVALID_ARGUMENT);
    kimi_free_model(model);
    kimi_tokenizer_free(tokenizer);
    kimi_tokenizer_free(tokenizer);
    assert_eq!(kimi_last_status(), INVALID_HANDLE);
}

#[test]
fn a_stream_gives_whole_characters_up_to_the_stop_text() {
    let model = load(&demo_model(), 64);
    let options = kimi_generate_options_new();
    assert_eq!(set_text(options, "stop", "END"), OK);
    let stream = kimi_text_new(model, options);
    kimi_options_free(options);
    // SAFETY: a buffer of the room that `text` says.
    let read = || text(|buf, cap| unsafe { kimi_text_read(stream, buf, cap) });

    let (mut shown, mut stopped) = (String::new(), false);
    for token in tokenize(model, "naïve 你😀 EN or END and more") {
        let waiting = kimi_text_push(stream, token);
        assert!(waiting >= 0, "{}", last_error());
        stopped |= kimi_last_status() == STOPPED;
        let part = read();
        assert_eq!(part.len(), waiting as usize);
        shown += &part;
    }
    assert_eq!((shown.as_str(), stopped), ("naïve 你😀 EN or ", true));
    kimi_text_finish(stream);
    assert_eq!(read(), "");

    // What nobody reads goes on waiting, and a buffer that is too small loses nothing.
    for token in tokenize(model, "one two") {
        kimi_text_push(stream, token);
    }
    assert_eq!(kimi_text_finish(stream), 7);
    let mut buffer = [0u8; 4];
    // SAFETY: the buffer has this room.
    assert_eq!(unsafe { kimi_text_read(stream, buffer.as_mut_ptr().cast(), 4) }, BUFFER_TOO_SMALL);
    assert_eq!(read(), "one two");
    assert_eq!(read(), "");
    assert_eq!(kimi_text_push(stream, -1), INVALID_ARGUMENT);
    assert_eq!(kimi_text_push(stream, 1_000_000), INVALID_ARGUMENT);
    kimi_free_model(model);
    assert!(kimi_text_push(stream, 1) >= 0, "a stream keeps its tokenizer");
    kimi_text_free(stream);
    assert!(kimi_text_new(null(), null()).is_null());
    // SAFETY: freed handles may be given.
    assert_eq!(unsafe { kimi_text_read(stream, null_mut(), 0) }, INVALID_HANDLE);
}
