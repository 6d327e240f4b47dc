//! Ids to text, one at a time.

use std::borrow::Borrow;

use crate::error::UnknownToken;
use crate::tokenizer::{Flagged, Tokenizer};
use crate::utf8::Utf8Stream;
use crate::vocabulary::TokenId;

/// Decodes ids as they are generated.
///
/// The parts that it returns, joined, are what [`Tokenizer::decode_lossy`] makes of all the ids: a character that
/// is spread over several tokens comes out once it is whole. After the first few tokens it allocates nothing.
///
/// `T` is how the stream has its tokenizer: `&Tokenizer`, `Arc<Tokenizer>` or the like.
#[derive(Debug, Clone)]
pub struct TextStream<T> {
    tokenizer: T,
    flagged: Flagged,
    utf8: Utf8Stream,
    text: String,
}

impl<T: Borrow<Tokenizer>> TextStream<T> {
    /// A stream at the beginning of a text.
    pub fn new(tokenizer: T, flagged: Flagged) -> Self {
        Self { tokenizer, flagged, utf8: Utf8Stream::default(), text: String::new() }
    }

    /// Takes the next id and returns the text that became complete with it, which may be empty.
    ///
    /// # Errors
    /// [`UnknownToken`] for an id that the tokenizer does not have. The stream is then as before.
    pub fn push(&mut self, id: TokenId) -> Result<&str, UnknownToken> {
        let bytes = self.tokenizer.borrow().shown_bytes(id, self.flagged)?;
        self.text.clear();
        self.utf8.push(bytes, &mut self.text);
        Ok(&self.text)
    }

    /// Ends the text and returns what was held back: U+FFFD for a character that is still incomplete, else
    /// nothing. The stream is then at the beginning of another text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.utf8.finish(&mut self.text);
        &self.text
    }
}
