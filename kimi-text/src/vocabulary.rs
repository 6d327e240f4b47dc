//! The ordinary tokens: byte strings and their ranks.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use foldhash::fast::{FoldHasher, RandomState};

use crate::error::{LoadError, LoadErrorKind};

/// The name of the vocabulary file in a release.
pub(crate) const VOCABULARY_FILE: &str = "tiktoken.model";

/// The largest vocabulary that is accepted, in bytes: some twenty times the released file.
pub(crate) const MAX_VOCABULARY_BYTES: usize = 64 << 20;

/// The most tokens that are accepted: a slot of the table has 24 bits for a rank, and one value is for "empty".
const MAX_TOKENS: usize = RANK_MASK as usize;

/// The number by which a model knows a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct TokenId(pub u32);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The tokens that ordinary text is made of, ordered by rank. The rank of a token is its id.
///
/// All 256 single bytes are tokens, so every byte string can be encoded. The released vocabulary (163,584 tokens)
/// takes 2.8 MiB: a table to find tokens by content, and for each rank a cell that holds the token itself where it
/// is short, as most are.
pub struct Vocabulary {
    cells: Box<[Cell]>,
    /// The tokens that do not fit a cell, one after another.
    long: Box<[u8]>,
    /// Open addressing with linear probing: eight bits of the hash above the rank, or [`EMPTY`].
    slots: Box<[u32]>,
    /// Seeded at run time: a hostile file cannot be made of tokens that all fall into one place.
    hash_state: RandomState,
    /// The rank of each single byte.
    single_bytes: Box<[u32; 256]>,
    /// Bytes of the longest token.
    longest: usize,
}

/// A free slot; no rank is so high.
const EMPTY: u32 = u32::MAX;
/// The bits of a slot that are the rank.
const RANK_MASK: u32 = (1 << 24) - 1;

/// Eight bytes for a token: up to seven bytes of it, then zeros, then its length; or where it lies in `long`.
type Cell = [u8; 8];

/// Bytes of a token that fit a cell.
const SHORT: usize = 7;
/// In place of a short length: the cell says where the token lies.
const LONG: u8 = u8::MAX;
/// Bits of such a cell for the offset and for the length each; both are at most `MAX_VOCABULARY_BYTES`.
const PLACE_BITS: u32 = 28;

impl Vocabulary {
    /// The vocabulary whose token of rank `n` is the `n`-th of `tokens`.
    ///
    /// # Errors
    /// [`LoadError`] when a token is empty or comes twice, when a single byte is missing, or when there are more
    /// than 2^24 - 1 tokens or 64 MiB of them.
    pub fn from_tokens<T: AsRef<[u8]>>(tokens: impl IntoIterator<Item = T>) -> Result<Self, LoadError> {
        let mut builder = Builder::default();
        for token in tokens {
            builder.push(token.as_ref()).map_err(|kind| kind.at(VOCABULARY_FILE))?;
        }
        builder.build().map_err(|kind| kind.at(VOCABULARY_FILE))
    }

    /// Reads a vocabulary in the format of `tiktoken.model`: one token a line, in padded base64, then white
    /// space and its rank. Lines may come in any order; empty ones are skipped.
    ///
    /// # Errors
    /// [`LoadError`] when a line has another form, when ranks or tokens come twice, when ranks leave a gap,
    /// when a single byte is missing, or when the file is larger than 64 MiB.
    pub fn from_tiktoken(file: &[u8]) -> Result<Self, LoadError> {
        Self::parse(file).map_err(|kind| kind.at(VOCABULARY_FILE))
    }

    pub(crate) fn parse(file: &[u8]) -> Result<Self, LoadErrorKind> {
        struct Line {
            rank: u32,
            number: usize,
            start: usize,
            end: usize,
        }
        if file.len() > MAX_VOCABULARY_BYTES {
            return Err(LoadErrorKind::TooLarge { expected: MAX_VOCABULARY_BYTES, found: file.len() });
        }
        let mut decoded = Vec::with_capacity(file.len() / 2);
        let mut lines = Vec::new();
        for (index, line) in file.split(|&byte| byte == b'\n').enumerate() {
            let number = index + 1;
            let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
            let (token, rank) = match (fields.next(), fields.next(), fields.next()) {
                (None, ..) => continue,
                (Some(token), Some(rank), None) => (token, rank),
                _ => return Err(LoadErrorKind::Line { line: number, found: excerpt(line) }),
            };
            let start = decoded.len();
            STANDARD.decode_vec(token, &mut decoded).map_err(|source| LoadErrorKind::Base64 {
                line: number,
                found: excerpt(token),
                source: source.into(),
            })?;
            let rank =
                parse_rank(rank).ok_or_else(|| LoadErrorKind::Rank { line: number, found: excerpt(rank) })?;
            lines.push(Line { rank, number, start, end: decoded.len() });
        }

        // Stable, so that of two lines with one rank the earlier one comes first.
        lines.sort_by_key(|line| line.rank);
        let mut builder = Builder::default();
        for (index, line) in lines.iter().enumerate() {
            let expected = index as u32;
            if line.rank < expected {
                let first_line = lines[index - 1].number;
                return Err(LoadErrorKind::DuplicateRank { line: line.number, first_line, rank: line.rank });
            }
            if line.rank > expected {
                return Err(LoadErrorKind::MissingRank { line: line.number, expected, found: line.rank });
            }
            builder.push(&decoded[line.start..line.end])?;
        }
        builder.build()
    }

    /// Tokens in the vocabulary; ranks, and ids, run from 0 up to this.
    #[expect(clippy::len_without_is_empty, reason = "a vocabulary has at least the 256 bytes")]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// The bytes of a token. They need not be UTF-8.
    pub fn token(&self, id: TokenId) -> Option<&[u8]> {
        let cell = self.cells.get(id.0 as usize)?;
        Some(match cell[SHORT] {
            LONG => self.long_token(*cell),
            len => &cell[..usize::from(len)],
        })
    }

    /// The token that has exactly these bytes.
    pub fn id(&self, token: &[u8]) -> Option<TokenId> {
        if token.len() > self.longest {
            return None;
        }
        self.locate(token).1.ok().map(TokenId)
    }

    /// The token of one byte.
    pub(crate) fn single_byte(&self, byte: u8) -> TokenId {
        TokenId(self.single_bytes[usize::from(byte)])
    }

    /// Bytes that the vocabulary holds on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.cells)
            + self.long.len()
            + size_of_val(&*self.slots)
            + size_of_val(&*self.single_bytes)
    }

    /// The hash of a token, and its rank or else the free slot where it would be.
    #[inline]
    fn locate(&self, token: &[u8]) -> (u64, Result<u32, usize>) {
        if let Some(wanted) = short_cell(token) {
            let hash = self.hash(|hasher| hasher.write_u64(u64::from_le_bytes(wanted)));
            (hash, self.probe(hash, |cell| cell == wanted))
        } else {
            let hash = self.hash(|hasher| hasher.write(token));
            (hash, self.probe(hash, |cell| cell[SHORT] == LONG && self.long_token(cell) == token))
        }
    }

    #[inline]
    fn probe(&self, hash: u64, is_wanted: impl Fn(Cell) -> bool) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == EMPTY {
                return Err(at);
            }
            let rank = slot & RANK_MASK;
            if slot & !RANK_MASK == tag(hash) && is_wanted(self.cells[rank as usize]) {
                return Ok(rank);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn hash(&self, write: impl FnOnce(&mut FoldHasher<'_>)) -> u64 {
        let mut hasher = self.hash_state.build_hasher();
        write(&mut hasher);
        hasher.finish()
    }

    fn long_token(&self, cell: Cell) -> &[u8] {
        let place = u64::from_le_bytes(cell);
        let mask = (1 << PLACE_BITS) - 1;
        let offset = (place & mask) as usize;
        &self.long[offset..offset + (place >> PLACE_BITS & mask) as usize]
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary")
            .field("tokens", &self.len())
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

/// Collects tokens in the order of their ranks.
#[derive(Default)]
struct Builder {
    cells: Vec<Cell>,
    long: Vec<u8>,
    bytes: usize,
    longest: usize,
}

impl Builder {
    fn push(&mut self, token: &[u8]) -> Result<(), LoadErrorKind> {
        self.bytes += token.len();
        self.longest = self.longest.max(token.len());
        if self.bytes > MAX_VOCABULARY_BYTES {
            return Err(LoadErrorKind::TooLarge { expected: MAX_VOCABULARY_BYTES, found: self.bytes });
        }
        if self.cells.len() == MAX_TOKENS {
            return Err(LoadErrorKind::TooManyTokens { expected: MAX_TOKENS });
        }
        if token.is_empty() {
            return Err(LoadErrorKind::EmptyToken { rank: self.cells.len() as u32 });
        }
        let cell = short_cell(token).unwrap_or_else(|| {
            let mut cell = (self.long.len() as u64 | (token.len() as u64) << PLACE_BITS).to_le_bytes();
            cell[SHORT] = LONG;
            self.long.extend_from_slice(token);
            cell
        });
        self.cells.push(cell);
        Ok(())
    }

    fn build(self) -> Result<Vocabulary, LoadErrorKind> {
        // At most three slots in four are taken, so that probing finds a free one soon.
        let slots = (self.cells.len() * 4 / 3 + 1).next_power_of_two();
        let mut vocabulary = Vocabulary {
            cells: self.cells.into_boxed_slice(),
            long: self.long.into_boxed_slice(),
            slots: vec![EMPTY; slots].into_boxed_slice(),
            hash_state: RandomState::default(),
            single_bytes: Box::new([0; 256]),
            longest: self.longest,
        };
        for rank in 0..vocabulary.len() as u32 {
            let token = vocabulary.token(TokenId(rank)).expect("ranks are below the number of tokens");
            match vocabulary.locate(token) {
                (_, Ok(first)) => return Err(LoadErrorKind::DuplicateToken { first, second: rank }),
                (hash, Err(free)) => vocabulary.slots[free] = tag(hash) | rank,
            }
        }
        for byte in 0..=u8::MAX {
            let rank = vocabulary.id(&[byte]).ok_or(LoadErrorKind::MissingByte { byte })?;
            vocabulary.single_bytes[usize::from(byte)] = rank.0;
        }
        Ok(vocabulary)
    }
}

/// The bits of the hash that a slot has above its rank; the place of the slot comes from the lowest bits.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32 & !RANK_MASK
}

/// The cell of a token that fits one.
#[inline]
fn short_cell(token: &[u8]) -> Option<Cell> {
    let len = token.len();
    // Two loads that may overlap: cheaper than copying a number of bytes that is known only at run time.
    let bytes = if let (Some(&first), Some(&last)) = (token.first_chunk(), token.last_chunk()) {
        if len > SHORT {
            return None;
        }
        u64::from(u32::from_le_bytes(first)) | u64::from(u32::from_le_bytes(last)) << (8 * (len - 4))
    } else if let (Some(&first), Some(&last)) = (token.first_chunk(), token.last_chunk()) {
        u64::from(u16::from_le_bytes(first)) | u64::from(u16::from_le_bytes(last)) << (8 * (len - 2))
    } else {
        u64::from(*token.first()?)
    };
    Some((bytes | (len as u64) << 56).to_le_bytes())
}

/// Digits only: the standard parser would take a sign.
fn parse_rank(field: &[u8]) -> Option<u32> {
    if !field.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The beginning of something malformed, short enough for a message.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned();
    if bytes.len() > SHOWN {
        text.push('…');
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The 256 bytes, then `more`.
    pub(crate) fn bytes_and<T: AsRef<[u8]>>(more: impl IntoIterator<Item = T>) -> Vocabulary {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        let more = more.into_iter().map(|token| token.as_ref().to_vec());
        Vocabulary::from_tokens(bytes.chain(more)).unwrap()
    }

    #[test]
    fn tokens_of_every_length_are_found() {
        let tokens: Vec<Vec<u8>> = (2..300).map(|len| (0..len).map(|at| (at * 7) as u8).collect()).collect();
        let vocabulary = bytes_and(&tokens);
        assert_eq!(vocabulary.len(), 256 + tokens.len());
        for (rank, token) in (256..).zip(&tokens) {
            assert_eq!(vocabulary.id(token), Some(TokenId(rank)));
            assert_eq!(vocabulary.token(TokenId(rank)), Some(&token[..]));
            let mut other = token.clone();
            *other.last_mut().unwrap() ^= 0x80;
            assert_eq!(vocabulary.id(&other), None, "{} bytes", token.len());
        }
        assert_eq!(vocabulary.token(TokenId(256 + tokens.len() as u32)), None);
        assert_eq!(vocabulary.token(TokenId(u32::MAX)), None);
        assert_eq!(vocabulary.id(&[0; 300]), None);
        assert_eq!(vocabulary.id(&[]), None);
    }

    #[test]
    fn zeros_count() {
        let zeros: Vec<Vec<u8>> = (2..12).map(|len| vec![0; len]).collect();
        let vocabulary = bytes_and(&zeros);
        for (rank, token) in (256..).zip(&zeros) {
            assert_eq!(vocabulary.id(token), Some(TokenId(rank)));
        }
        assert_eq!(vocabulary.single_byte(0), TokenId(0));
    }

    #[test]
    fn lines_may_come_in_any_order_and_form() {
        let line = |rank: u32, token: &[u8]| format!("{} {rank}", STANDARD.encode(token));
        let mut lines: Vec<String> = (0..256).map(|rank| line(rank, &[255 - rank as u8])).collect();
        lines.push(line(256, b"two words"));
        lines.reverse();
        let file = lines.join("\r\n \n\n");
        let vocabulary = Vocabulary::from_tiktoken(file.as_bytes()).unwrap();
        assert_eq!(vocabulary.id(b"two words"), Some(TokenId(256)));
        assert_eq!(vocabulary.token(TokenId(1)), Some(&[254][..]));
        assert_eq!(vocabulary.single_byte(b'a'), TokenId(255 - u32::from(b'a')));
    }
}
