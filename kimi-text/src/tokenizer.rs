//! Text to ids, and ids to bytes.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::cuts::{Caps, cut};
use crate::error::{LoadError, LoadErrorKind, UnknownToken};
use crate::merge::Merger;
use crate::specials::{CONFIG_FILE, MAX_CONFIG_BYTES, SpecialTokens};
use crate::split::pieces;
use crate::vocabulary::{MAX_VOCABULARY_BYTES, TokenId, VOCABULARY_FILE, Vocabulary};

/// What [`Tokenizer::encode`] makes of the names of special tokens in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a name is either text or a token")]
pub enum Specials {
    /// They are text like any other: no id of a special token can come out. For all that a user, a document or
    /// a tool has written.
    AsText,
    /// Each becomes its token: the leftmost name first, of names that begin there the longest. For the
    /// structure around such text, written by the program itself.
    Parse,
}

/// What decoding makes of special tokens that the configuration flags as `special`.
///
/// Others always show, under their names: those that the configuration does not flag (Kimi K3's `<|open|>`,
/// `<|close|>` and `<|sep|>` among them) and those that it leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a token shows or it does not")]
pub enum Flagged {
    /// They appear under their names.
    Show,
    /// They leave nothing.
    Hide,
}

/// A Kimi tokenizer: a [`Vocabulary`] of ordinary tokens and 256 special ones after it.
///
/// It keeps no state between calls and can be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    specials: SpecialTokens,
    caps: Caps,
}

impl Tokenizer {
    /// A tokenizer of `vocabulary`, with the special tokens that the bytes of a `tokenizer_config.json` name.
    ///
    /// There are always 256 special tokens, with the ids after the ranks. One that `added_tokens_decoder` does
    /// not name, or all of them without a configuration, is called `<|reserved_token_{id}|>`.
    ///
    /// # Errors
    /// [`LoadError`] when the configuration is larger than 4 MiB, is no UTF-8 or no JSON object with the fields
    /// of a tokenizer configuration, names a special token outside the 256 ids, names an id twice, gives two
    /// ids one name, has a name that is empty or longer than 256 bytes, or when its `bos_token` or `eos_token`
    /// is no special token.
    pub fn new(vocabulary: Vocabulary, config: Option<&[u8]>) -> Result<Self, LoadError> {
        Self::build(vocabulary, config).map_err(|kind| kind.at(CONFIG_FILE))
    }

    /// A tokenizer from the bytes of a `tiktoken.model` and, if there is one, of a `tokenizer_config.json`.
    ///
    /// # Errors
    /// As [`Vocabulary::from_tiktoken`] and [`Tokenizer::new`].
    pub fn from_bytes(tiktoken_model: &[u8], config: Option<&[u8]>) -> Result<Self, LoadError> {
        Self::new(Vocabulary::from_tiktoken(tiktoken_model)?, config)
    }

    /// A tokenizer from the folder of a released model: its `tiktoken.model` and, where it exists, its
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::from_bytes`], and when a file cannot be read.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = folder.as_ref().join(VOCABULARY_FILE);
        let vocabulary = read(&path, MAX_VOCABULARY_BYTES)
            .and_then(|bytes| Vocabulary::parse(&bytes))
            .map_err(|kind| kind.at(path))?;
        let path = folder.as_ref().join(CONFIG_FILE);
        let config = match read(&path, MAX_CONFIG_BYTES) {
            Err(LoadErrorKind::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        };
        config.and_then(|config| Self::build(vocabulary, config.as_deref())).map_err(|kind| kind.at(path))
    }

    fn build(vocabulary: Vocabulary, config: Option<&[u8]>) -> Result<Self, LoadErrorKind> {
        let specials = SpecialTokens::new(vocabulary.len() as u32, config)?;
        Ok(Self { vocabulary, specials, caps: Caps::RELEASED })
    }

    /// The ids of `text`. Nothing is added: no begin-of-sequence token, no space.
    ///
    /// Text is first cut as the released tokenizer does (every 400,000 characters, and where a run of white
    /// space or of anything else exceeds 25,000 of them), then split by [`SPLIT_PATTERN`](crate::SPLIT_PATTERN);
    /// each piece is encoded by merging pairs of the lowest rank. Time is at most `n log n` in the length of
    /// the text, whatever it holds.
    ///
    /// Encoding is not additive: the ids of two texts are in general not those of the texts joined.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<TokenId> {
        let mut ids = Vec::with_capacity(text.len() / 4);
        self.encode_into(text, specials, &mut ids);
        ids
    }

    /// Appends the ids of `text` to `ids`; see [`encode`](Self::encode).
    pub fn encode_into(&self, text: &str, specials: Specials, ids: &mut Vec<TokenId>) {
        let mut merger = Merger::default();
        for part in cut(text, self.caps) {
            let mut rest = 0;
            if specials == Specials::Parse {
                for found in self.specials.find_iter(part) {
                    self.encode_ordinary(&part[rest..found.start], &mut merger, ids);
                    ids.push(found.id);
                    rest = found.end;
                }
            }
            self.encode_ordinary(&part[rest..], &mut merger, ids);
        }
    }

    fn encode_ordinary(&self, text: &str, merger: &mut Merger, ids: &mut Vec<TokenId>) {
        for piece in pieces(text) {
            merger.encode(&self.vocabulary, piece.as_bytes(), ids);
        }
    }

    /// The bytes of a token: what it stands for in text, or the name of a special token.
    ///
    /// # Errors
    /// [`UnknownToken`] for an id of [`vocab_size`](Self::vocab_size) or more.
    pub fn token_bytes(&self, id: TokenId) -> Result<&[u8], UnknownToken> {
        self.vocabulary
            .token(id)
            .or_else(|| self.specials.name(id).map(str::as_bytes))
            .ok_or(UnknownToken { found: id, vocab_size: self.vocab_size() })
    }

    /// The bytes of `ids`, one after another. They need not be UTF-8: a token may hold part of a character.
    ///
    /// # Errors
    /// [`UnknownToken`] for an id of [`vocab_size`](Self::vocab_size) or more.
    pub fn decode_bytes(&self, ids: &[TokenId], flagged: Flagged) -> Result<Vec<u8>, UnknownToken> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            bytes.extend_from_slice(self.shown_bytes(id, flagged)?);
        }
        Ok(bytes)
    }

    /// The text of `ids`: their bytes as [`String::from_utf8_lossy`] reads them.
    ///
    /// # Errors
    /// [`UnknownToken`] for an id of [`vocab_size`](Self::vocab_size) or more.
    pub fn decode_lossy(&self, ids: &[TokenId], flagged: Flagged) -> Result<String, UnknownToken> {
        let bytes = self.decode_bytes(ids, flagged)?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|invalid| String::from_utf8_lossy(invalid.as_bytes()).into_owned()))
    }

    /// What a token adds to decoded text: nothing when it is hidden.
    pub(crate) fn shown_bytes(&self, id: TokenId, flagged: Flagged) -> Result<&[u8], UnknownToken> {
        let bytes = self.token_bytes(id)?;
        let hidden = flagged == Flagged::Hide && self.specials.is_flagged(id);
        Ok(if hidden { &[] } else { bytes })
    }

    /// The ordinary tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Ids in use: ranks and special tokens. Every id is below.
    pub fn vocab_size(&self) -> u32 {
        self.specials.end()
    }

    /// The special token of this name, `<|reserved_token_{id}|>` for a slot without one.
    pub fn special_id(&self, name: &str) -> Option<TokenId> {
        self.specials.id(name)
    }

    /// The name of a special token; `None` for other ids.
    pub fn special_name(&self, id: TokenId) -> Option<&str> {
        self.specials.name(id)
    }

    /// Whether the configuration flags this token as `special`, so that [`Flagged::Hide`] hides it.
    pub fn is_flagged(&self, id: TokenId) -> bool {
        self.specials.is_flagged(id)
    }

    /// The configuration's `bos_token`. [`encode`](Self::encode) does not add it, and no released chat format
    /// uses it.
    pub fn bos_id(&self) -> Option<TokenId> {
        self.specials.bos()
    }

    /// The configuration's `eos_token`. Generation ends at the id that a model's own configuration names, and
    /// in released models that is another one.
    pub fn eos_id(&self) -> Option<TokenId> {
        self.specials.eos()
    }

    /// Bytes that the tokenizer holds on the heap.
    ///
    /// All tokenizers of a process share one table of characters besides, of some 30 KiB.
    pub fn heap_bytes(&self) -> usize {
        self.vocabulary.heap_bytes() + self.specials.heap_bytes()
    }
}

/// A file of at most `limit` bytes. It is read no further than that: a path may lead to something endless.
pub(crate) fn read(path: &Path, limit: usize) -> Result<Vec<u8>, LoadErrorKind> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(LoadErrorKind::Io)?;
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(LoadErrorKind::Io)?;
    if bytes.len() > limit {
        return Err(LoadErrorKind::TooLarge { expected: limit, found: bytes.len() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recorded cases are for small caps, which only the inside of the crate can set.
    #[test]
    fn recorded_cuts_have_their_ids() {
        let Some(model) = kimi_testing::shared_data("tokenizer/tiktoken.model") else { return };
        let Some(recorded) = kimi_testing::shared_data("tokenizer/goldens_bulk.json") else { return };
        let recorded: serde_json::Value = serde_json::from_slice(&std::fs::read(recorded).unwrap()).unwrap();
        let mut tokenizer = Tokenizer::from_bytes(&std::fs::read(model).unwrap(), None).unwrap();
        let cases = recorded["chunked_small"].as_array().unwrap();
        assert_eq!(cases.len(), 9);
        for case in cases {
            tokenizer.caps.run = case["max_run"].as_u64().unwrap() as usize;
            let ids = tokenizer.encode(case["text"].as_str().unwrap(), Specials::AsText);
            let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
            assert_eq!(serde_json::json!(ids), case["ids"], "{case}");
        }
    }

    #[test]
    fn cuts_come_before_special_tokens() {
        let bytes = (0..=u8::MAX).map(|byte| [byte]);
        let config = br#"{"added_tokens_decoder": {"256": {"content": "<|x|>"}}}"#;
        let mut tokenizer = Tokenizer::new(Vocabulary::from_tokens(bytes).unwrap(), Some(config)).unwrap();
        assert_eq!(tokenizer.encode("ab<|x|>", Specials::Parse).len(), 3);
        tokenizer.caps = Caps { slice: 4, run: 100 };
        assert_eq!(tokenizer.encode("ab<|x|>", Specials::Parse).len(), 7);
    }

    #[test]
    fn a_tokenizer_can_be_shared() {
        fn shared<T: Send + Sync>() {}
        shared::<Tokenizer>();
        shared::<LoadError>();
    }
}
