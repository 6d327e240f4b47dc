//! The special tokens: the slots after the ranks, and their names.

use std::collections::HashMap;
use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;

use crate::error::LoadErrorKind;
use crate::json::{Entries, Object};
use crate::vocabulary::{TokenId, excerpt};

/// The name of the configuration file in a release.
pub(crate) const CONFIG_FILE: &str = "tokenizer_config.json";

/// The largest configuration that is accepted, in bytes; released ones have a few thousand.
pub(crate) const MAX_CONFIG_BYTES: usize = 4 << 20;

/// The longest name that is accepted, in bytes. The matcher takes memory in proportion.
const LONGEST_NAME: usize = 256;

/// Ids after the ranks that are reserved for special tokens, named or not.
pub(crate) const SLOTS: u32 = 256;

/// The special tokens of a tokenizer.
pub(crate) struct SpecialTokens {
    /// The id of the first slot: the number of ranks.
    first: u32,
    slots: Box<[Slot]>,
    /// Finds names in text; pattern `n` is slot `n`.
    matcher: AhoCorasick,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
}

#[derive(Debug)]
struct Slot {
    name: Box<str>,
    /// The flag `special` of the configuration.
    flagged: bool,
}

impl SpecialTokens {
    /// The slots after `first` ranks, named by the bytes of a `tokenizer_config.json`, if there is one.
    pub(crate) fn new(first: u32, config: Option<&[u8]>) -> Result<Self, LoadErrorKind> {
        let config = config.map_or_else(|| Ok(Config::default()), Config::parse)?;
        let named = config.named_slots(first)?;
        let slots: Box<[Slot]> = (first..)
            .zip(named)
            .map(|(id, token)| match token {
                Some(token) => Slot { name: token.content.as_str().into(), flagged: token.special },
                None => Slot { name: format!("<|reserved_token_{id}|>").into(), flagged: false },
            })
            .collect();

        let mut by_name = HashMap::new();
        for (id, slot) in (first..).zip(&slots) {
            if let Some(first) = by_name.insert(&*slot.name, id) {
                let name = slot.name.to_string();
                return Err(LoadErrorKind::DuplicateSpecialName { first, second: id, name });
            }
        }
        let lookup = |field, token: Option<Name>| match token.map(Name::into_content) {
            Some(name) => match by_name.get(&*name) {
                Some(&id) => Ok(Some(TokenId(id))),
                None => Err(LoadErrorKind::UnknownSpecial { field, found: excerpt(name.as_bytes()) }),
            },
            None => Ok(None),
        };
        let bos = lookup("bos_token", config.bos_token)?;
        let eos = lookup("eos_token", config.eos_token)?;

        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(slots.iter().map(|slot| slot.name.as_bytes()))
            .expect("256 names of at most 256 bytes are far within the limits of the matcher");
        Ok(Self { first, slots, matcher, bos, eos })
    }

    pub(crate) fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    pub(crate) fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The first id after the slots.
    pub(crate) fn end(&self) -> u32 {
        self.first + SLOTS
    }

    pub(crate) fn name(&self, id: TokenId) -> Option<&str> {
        Some(&*self.slot(id)?.name)
    }

    /// Whether the configuration flags the token as one that readers need not see.
    pub(crate) fn is_flagged(&self, id: TokenId) -> bool {
        self.slot(id).is_some_and(|slot| slot.flagged)
    }

    pub(crate) fn id(&self, name: &str) -> Option<TokenId> {
        let at = self.slots.iter().position(|slot| &*slot.name == name)?;
        Some(self.id_of_slot(at))
    }

    /// The special tokens in `text`, leftmost first and the longest of those, without overlap.
    pub(crate) fn find_iter<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Found> + 'a {
        self.matcher.find_iter(text).map(|found| Found {
            start: found.start(),
            end: found.end(),
            id: self.id_of_slot(found.pattern().as_usize()),
        })
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.slots)
            + self.slots.iter().map(|slot| slot.name.len()).sum::<usize>()
            + self.matcher.memory_usage()
    }

    fn slot(&self, id: TokenId) -> Option<&Slot> {
        self.slots.get(id.0.checked_sub(self.first)? as usize)
    }

    fn id_of_slot(&self, at: usize) -> TokenId {
        // Slots are `SLOTS` in number.
        TokenId(self.first + at as u32)
    }
}

impl fmt::Debug for SpecialTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the matcher, which would print all its states.
        f.debug_struct("SpecialTokens")
            .field("first", &self.first)
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

/// A special token in text, from byte `start` up to byte `end`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) id: TokenId,
}

/// The fields of a `tokenizer_config.json` that say something about ids.
#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    added_tokens_decoder: Option<Entries<Object<AddedToken>>>,
    #[serde(default)]
    bos_token: Option<Name>,
    #[serde(default)]
    eos_token: Option<Name>,
}

/// A special token, by its name or with its flags.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "the name of a token, or an object with its name as \"content\"")]
enum Name {
    Bare(String),
    Flagged(Object<AddedToken>),
}

#[derive(Debug, Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    special: bool,
}

impl Config {
    fn parse(json: &[u8]) -> Result<Self, LoadErrorKind> {
        if json.len() > MAX_CONFIG_BYTES {
            return Err(LoadErrorKind::TooLarge { expected: MAX_CONFIG_BYTES, found: json.len() });
        }
        let text = std::str::from_utf8(json).map_err(|error| {
            let offset = error.valid_up_to();
            LoadErrorKind::NotUtf8 { offset, found: json[offset] }
        })?;
        match serde_json::from_str(text) {
            Ok(Object(config)) => Ok(config),
            Err(source) => Err(LoadErrorKind::Json {
                line: source.line(),
                column: source.column(),
                source: source.into(),
            }),
        }
    }

    /// The token of each slot after `first` ranks.
    fn named_slots(&self, first: u32) -> Result<Vec<Option<&AddedToken>>, LoadErrorKind> {
        let mut slots = vec![None; SLOTS as usize];
        let added = self.added_tokens_decoder.iter().flat_map(|added| &added.0);
        for (key, Object(token)) in added {
            let key_error = || LoadErrorKind::SpecialKey { found: excerpt(key.as_bytes()) };
            let found: u64 = key.parse().map_err(|_| key_error())?;
            let name = || excerpt(token.content.as_bytes());
            let Some(at) = found.checked_sub(u64::from(first)) else {
                return Err(LoadErrorKind::SpecialIsRank { name: name(), expected: first, found });
            };
            let Some(slot) = usize::try_from(at).ok().and_then(|at| slots.get_mut(at)) else {
                let expected = first + SLOTS - 1;
                return Err(LoadErrorKind::SpecialOutOfRange { name: name(), expected, found });
            };
            // The slot exists, so the id is below `first + SLOTS`.
            let id = found as u32;
            let found = token.content.len();
            if found == 0 || found > LONGEST_NAME {
                return Err(LoadErrorKind::SpecialNameLength { id, longest: LONGEST_NAME, found });
            }
            if let Some(earlier) = slot.replace(token) {
                let first = excerpt(earlier.content.as_bytes());
                return Err(LoadErrorKind::DuplicateSpecialId { id, first, second: name() });
            }
        }
        Ok(slots)
    }
}

impl Name {
    fn into_content(self) -> String {
        match self {
            Self::Bare(content) | Self::Flagged(Object(AddedToken { content, .. })) => content,
        }
    }
}
