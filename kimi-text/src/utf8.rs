//! Bytes that arrive in parts, as text.

/// Turns bytes into text as they arrive, without ever splitting a character.
///
/// The text is that of [`String::from_utf8_lossy`] on all the bytes, wherever they were parted: an incomplete
/// character at the end is held back until it is complete, and each maximal invalid part becomes one U+FFFD.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The beginning of a character, at most three bytes; more only inside `push`.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Takes the next bytes and appends to `text` what became complete.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut read = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            read += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() || (read + invalid.len() == self.held.len() && is_incomplete(invalid)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            read += invalid.len();
        }
        self.held.drain(..read);
    }

    /// Ends the text: a character that is still incomplete becomes U+FFFD. The stream is then as new.
    pub fn finish(&mut self, text: &mut String) {
        if !self.held.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }

    /// Bytes held back: 0 to 3.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

/// Whether more bytes could make a character of these.
fn is_incomplete(invalid: &[u8]) -> bool {
    std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn streamed<'b>(parts: impl IntoIterator<Item = &'b [u8]>) -> String {
        let mut stream = Utf8Stream::default();
        let mut text = String::new();
        for part in parts {
            stream.push(part, &mut text);
            assert!(stream.held_bytes() <= 3);
        }
        stream.finish(&mut text);
        assert_eq!(stream.held_bytes(), 0);
        text
    }

    #[test]
    fn an_invalid_byte_does_not_hold_up_what_follows() {
        let mut stream = Utf8Stream::default();
        let mut text = String::new();
        for (bytes, expected) in [
            (&b"a\xe4"[..], "a"),
            (b"\xbd", "a"),
            (b"\xa0b", "a你b"),
            (b"\xff", "a你b\u{fffd}"),
            (b"\xf0\x9f", "a你b\u{fffd}"),
            (b"c", "a你b\u{fffd}\u{fffd}c"),
            (b"\xed", "a你b\u{fffd}\u{fffd}c"),
            (b"\xa0\x80", "a你b\u{fffd}\u{fffd}c\u{fffd}\u{fffd}\u{fffd}"),
        ] {
            stream.push(bytes, &mut text);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn an_incomplete_end_is_one_replacement() {
        assert_eq!(streamed([&b"\xf0\x9f\x98"[..]]), "\u{fffd}");
        assert_eq!(streamed([]), "");
        let mut stream = Utf8Stream::default();
        let mut text = String::new();
        stream.push(b"\xf0\x9f", &mut text);
        stream.finish(&mut text);
        stream.push(b"\x98\x80", &mut text);
        assert_eq!(text, "\u{fffd}\u{fffd}\u{fffd}", "what was finished is over");
    }

    proptest! {
        #[test]
        fn the_text_does_not_depend_on_the_parts(
            // Lead bytes, continuation bytes and what can never be part of a character, with ASCII between.
            bytes in proptest::collection::vec(
                prop_oneof![0u8..0x80, 0x80u8..0xc0, 0xc0u8..=0xff, proptest::sample::select(&b"\xe4\xbd\xa0\xf0\x9f\x98\x80\xed\xa0\xf4\x90"[..])],
                0..40,
            ),
            cuts in proptest::collection::vec(0usize..40, 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]);
            let expected = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(streamed(parts), &*expected);
            prop_assert_eq!(streamed(bytes.chunks(1)), &*expected);
        }
    }
}
