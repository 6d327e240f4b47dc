//! The classes of characters that the split pattern tells apart.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// A set of the classes below: those that one character is in, or those that are looked for.
pub(crate) type Set = u8;

/// The Han script. It has letters, numbers and symbols.
pub(crate) const HAN: Set = 1 << 0;
/// What the first part of a word is made of: capitals, modifiers, letters without case, marks; not Han.
pub(crate) const UPPER: Set = 1 << 1;
/// What the second part of a word is made of: small letters, modifiers, letters without case, marks; not Han.
pub(crate) const LOWER: Set = 1 << 2;
/// Letters of any script, Han included.
pub(crate) const LETTER: Set = 1 << 3;
/// Numbers of any script.
pub(crate) const NUMBER: Set = 1 << 4;
/// White space, line ends included.
pub(crate) const SPACE: Set = 1 << 5;
/// Carriage return and line feed.
pub(crate) const NEWLINE: Set = 1 << 6;

/// In the table of first bytes: the character has more bytes, and these decide.
const WIDE: Set = 1 << 7;

/// Each class as the split pattern writes it.
const DEFINITIONS: [(Set, &str); 7] = [
    (HAN, r"[\p{Han}]"),
    (UPPER, r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"),
    (LOWER, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"),
    (LETTER, r"\p{L}"),
    (NUMBER, r"\p{N}"),
    (SPACE, r"\s"),
    (NEWLINE, r"[\r\n]"),
];

const BLOCK: usize = 256;

/// The classes of every character, in two steps: blocks of 256 characters, of which equal ones are stored once.
#[derive(Debug)]
pub(crate) struct Classes {
    /// By the first byte of a character in UTF-8: its classes, or [`WIDE`].
    first_bytes: [Set; 256],
    /// The block of each 256 characters.
    index: Box<[u8]>,
    blocks: Vec<[Set; BLOCK]>,
}

impl Classes {
    /// The table, made at the first call from the Unicode data of `regex-syntax` in about a millisecond.
    pub(crate) fn table() -> &'static Self {
        static TABLE: OnceLock<Classes> = OnceLock::new();
        TABLE.get_or_init(Self::build)
    }

    /// The classes of the character at `position` of `text` and the position after it; `None` at the end.
    #[inline]
    pub(crate) fn at(&self, text: &str, position: usize) -> Option<(Set, usize)> {
        let set = self.first_bytes[usize::from(*text.as_bytes().get(position)?)];
        if set & WIDE == 0 { Some((set, position + 1)) } else { self.wide_at(text, position) }
    }

    fn wide_at(&self, text: &str, position: usize) -> Option<(Set, usize)> {
        let character = text[position..].chars().next()?;
        let code = character as usize;
        let set = self.blocks[usize::from(self.index[code / BLOCK])][code % BLOCK];
        Some((set, position + character.len_utf8()))
    }

    fn build() -> Self {
        let mut sets = vec![0; char::MAX as usize + 1];
        for (set, definition) in DEFINITIONS {
            for (first, last) in ranges(definition) {
                for of in &mut sets[first as usize..=last as usize] {
                    *of |= set;
                }
            }
        }
        let mut blocks: Vec<[Set; BLOCK]> = Vec::new();
        let index = sets
            .as_chunks()
            .0
            .iter()
            .map(|block| {
                let known = blocks.iter().position(|other| other == block);
                let at = known.unwrap_or_else(|| {
                    blocks.push(*block);
                    blocks.len() - 1
                });
                u8::try_from(at).expect("Unicode's classes vary in fewer than 256 blocks of characters")
            })
            .collect();
        let first_bytes = std::array::from_fn(|byte| if byte < 0x80 { sets[byte] } else { WIDE });
        Self { first_bytes, index, blocks }
    }
}

/// The characters that a class of the pattern holds.
fn ranges(definition: &str) -> Vec<(char, char)> {
    let class = regex_syntax::parse(definition).expect("the classes are constants that parse");
    match class.into_kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().map(|range| (range.start(), range.end())).collect()
        }
        _ => unreachable!("a bracketed Unicode class is a class"),
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn every_character_has_the_classes_of_the_pattern() {
        let patterns = DEFINITIONS.map(|(set, definition)| (set, Regex::new(definition).unwrap()));
        let mut text = String::new();
        for character in '\0'..=char::MAX {
            text.clear();
            text.push(character);
            let expected = patterns.iter().filter(|(_, pattern)| pattern.is_match(&text));
            let expected = expected.fold(0, |sum, (set, _)| sum | set);
            assert_eq!(Classes::table().at(&text, 0), Some((expected, text.len())), "{character:?}");
        }
        assert_eq!(Classes::table().at(&text, text.len()), None);
    }

    #[test]
    fn the_pattern_is_made_of_these_classes() {
        for (set, definition) in DEFINITIONS {
            let inner = definition.trim_matches(['[', ']']);
            let negated = matches!(set, LETTER | NUMBER | SPACE | NEWLINE);
            assert!(crate::SPLIT_PATTERN.contains(if negated { inner } else { definition }), "{definition}");
        }
    }

    #[test]
    fn the_table_is_small() {
        let table = Classes::table();
        assert!(table.index.len() + table.blocks.len() * BLOCK < 64 << 10, "{} blocks", table.blocks.len());
    }
}
