//! Tokenizer files of arbitrary bytes: a tokenizer that decodes what it encodes, or an error.
#![no_main]

use kimi_text::{Flagged, Specials, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|parts: (&[u8], Option<&[u8]>, &str)| {
    let (vocabulary, config, text) = parts;
    if let Ok(tokenizer) = Tokenizer::from_bytes(vocabulary, config) {
        let ids = tokenizer.encode(text, Specials::AsText);
        assert_eq!(tokenizer.decode_bytes(&ids, Flagged::Show).expect("its own ids"), text.as_bytes());
    }
});
