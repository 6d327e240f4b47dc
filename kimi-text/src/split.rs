//! Splitting text into the pieces that are encoded one by one.

use crate::classes::{Classes, HAN, LETTER, LOWER, NEWLINE, NUMBER, SPACE, Set, UPPER};

/// The pattern of the released tokenizer: each match is a piece, and the matches leave nothing out.
///
/// In the syntax of the `fancy-regex` crate, or of Python's `tiktoken`. This crate does not run it: it has no
/// need of a regular expression engine and of its memory. The scanner that it runs instead is held against this
/// pattern by its tests.
pub const SPLIT_PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// The pieces of `text`, in order. Together they are the text; none is empty.
pub(crate) fn pieces(text: &str) -> Pieces<'_> {
    Pieces { scanner: Scanner { text, classes: Classes::table() }, start: 0 }
}

#[derive(Debug)]
pub(crate) struct Pieces<'t> {
    scanner: Scanner<'t>,
    start: usize,
}

impl<'t> Iterator for Pieces<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let start = self.start;
        if start == self.scanner.text.len() {
            return None;
        }
        self.start = self.scanner.piece(start);
        Some(&self.scanner.text[start..self.start])
    }
}

/// The alternatives of the pattern. Each method takes a position and returns the end of a match from there;
/// work is linear in what it looks at, and no text is looked at more than a fixed number of times.
#[derive(Debug)]
struct Scanner<'t> {
    text: &'t str,
    classes: &'static Classes,
}

impl Scanner<'_> {
    /// The end of the piece that begins at `start`, which is not the end of the text.
    fn piece(&self, start: usize) -> usize {
        let (first, after) = self.at(start).expect("a piece begins before the end of the text");
        if first & HAN != 0 {
            return self.run(after, HAN);
        }
        if let Some(end) = self.word(start, first, after) {
            return self.contraction(end).unwrap_or(end);
        }
        if first & NUMBER != 0 {
            return self.number(after);
        }
        if first & SPACE == 0 {
            return self.run(self.symbols(after), NEWLINE);
        }
        if self.text.as_bytes()[start] == b' ' {
            let end = self.symbols(after);
            if end > after {
                return self.run(end, NEWLINE);
            }
        }
        self.white_space(start)
    }

    /// A word of one of two shapes, `UPPER* LOWER+` or else `UPPER+ LOWER*`, with one character before it that
    /// is no letter, number or line end, or else without.
    fn word(&self, start: usize, first: Set, after: usize) -> Option<usize> {
        let prefix = first & (LETTER | NUMBER | NEWLINE) == 0;
        let bare = first & (UPPER | LOWER) != 0;
        // Letters cannot stand before a word, and of the rest only marks can begin one: mostly one try is made.
        let prefixed = if prefix { self.word_parts(after) } else { WordParts::default() };
        let bare = if bare { self.word_parts(start) } else { WordParts::default() };
        prefixed.lower.or(bare.lower).or(prefixed.upper).or(bare.upper)
    }

    fn word_parts(&self, start: usize) -> WordParts {
        let mut last_lower = None;
        let mut end = start;
        let mut next = self.at(end);
        while let Some((set, after)) = next
            && set & UPPER != 0
        {
            end = after;
            if set & LOWER != 0 {
                last_lower = Some(end);
            }
            next = self.at(end);
        }
        let upper = (end > start).then_some(end);
        let lower = match next {
            Some((set, after)) if set & LOWER != 0 => Some(self.run(after, LOWER)),
            // `UPPER*` gives back as much as it takes for one `LOWER` to follow: that is the last character
            // that is in both classes.
            _ => last_lower,
        };
        WordParts { lower, upper }
    }

    /// `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d`, in any case. The only character beyond ASCII that folds to
    /// one of these letters is the long s.
    fn contraction(&self, start: usize) -> Option<usize> {
        let rest = &self.text.as_bytes()[start..];
        let [b'\'', rest @ ..] = rest else { return None };
        let letters = match rest {
            [b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', ..] => 1,
            [b'r' | b'R' | b'v' | b'V', b'e' | b'E', ..] | [b'l' | b'L', b'l' | b'L', ..] => 2,
            _ if rest.starts_with("ſ".as_bytes()) => "ſ".len(),
            _ => return None,
        };
        Some(start + 1 + letters)
    }

    /// Up to two more digits.
    fn number(&self, mut end: usize) -> usize {
        for _ in 0..2 {
            match self.at(end) {
                Some((set, after)) if set & NUMBER != 0 => end = after,
                _ => break,
            }
        }
        end
    }

    /// A run of anything but white space, letters and numbers.
    fn symbols(&self, mut end: usize) -> usize {
        while let Some((set, after)) = self.at(end)
            && set & (SPACE | LETTER | NUMBER) == 0
        {
            end = after;
        }
        end
    }

    /// White space up to its last line end; where there is none, all of it at the end of the text, and all but
    /// the last character before anything else, which takes that one with it if it can.
    fn white_space(&self, start: usize) -> usize {
        let mut last_newline = None;
        let mut last = start;
        let mut end = start;
        while let Some((set, after)) = self.at(end)
            && set & SPACE != 0
        {
            last = end;
            end = after;
            if set & NEWLINE != 0 {
                last_newline = Some(end);
            }
        }
        match last_newline {
            Some(newline) => newline,
            None if end == self.text.len() || last == start => end,
            None => last,
        }
    }

    /// The end of the characters from `end` on that are in `set`.
    fn run(&self, mut end: usize, wanted: Set) -> usize {
        while let Some((set, after)) = self.at(end)
            && set & wanted != 0
        {
            end = after;
        }
        end
    }

    /// The classes of the character at `position` and the position after it; `None` at the end of the text.
    #[inline]
    fn at(&self, position: usize) -> Option<(Set, usize)> {
        self.classes.at(self.text, position)
    }
}

/// Where a word ends, in its two shapes; `None` where it does not have the shape.
#[derive(Debug, Default)]
struct WordParts {
    lower: Option<usize>,
    upper: Option<usize>,
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    /// The pieces as the pattern itself has them. The `regex` crate cannot look ahead, so that one alternative is
    /// left out and done by hand: of white space before something else, the last character is given back.
    fn by_pattern(text: &str) -> Vec<&str> {
        static PATTERN: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(&SPLIT_PATTERN.replace(r"|\s+(?!\S)", "")).unwrap());
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < text.len() {
            let found = PATTERN.find_at(text, start).unwrap();
            assert_eq!(found.start(), start, "the matches leave nothing out");
            let last = found.as_str().chars().next_back().unwrap();
            let mut end = found.end();
            if end < text.len() && last.is_whitespace() && !matches!(last, '\r' | '\n') {
                end -= last.len_utf8();
            }
            // White space of one character cannot give it back.
            start = if end == start { found.end() } else { end };
            pieces.push(&text[found.start()..start]);
        }
        pieces
    }

    #[test]
    fn examples() {
        for (text, expected) in [
            ("", &[][..]),
            ("don't we'LL I'ſ 'tis", &["don't", " we'LL", " I'ſ", " '", "tis"]),
            ("CamelCase HTTPServer2Go", &["Camel", "Case", " HTTPServer", "2", "Go"]),
            ("1234567½", &["123", "456", "7½"]),
            ("  a   b\t\tc  ", &[" ", " a", "  ", " b", "\t", "\tc", "  "]),
            ("a \n \r\n  b", &["a", " \n \r\n", " ", " b"]),
            ("a\u{1c}\u{85} b", &["a", "\u{1c}", "\u{85}", " b"]),
            ("(x); !\n\ny", &["(x", ");", " !\n\n", "y"]),
            ("中文'S 々〇 日本語です", &["中文", "'S", " ", "々〇", " ", "日本語", "です"]),
            // A mark is both parts of a word, and so is a letter without case.
            ("あB\u{301}C", &["あB\u{301}", "C"]),
            ("\u{301}A \u{301}", &["\u{301}", "A", " \u{301}"]),
        ] {
            assert_eq!(pieces(text).collect::<Vec<_>>(), expected, "{text:?}");
            assert_eq!(by_pattern(text), expected, "{text:?}");
        }
    }

    /// Characters and groups of them at which the alternatives of the pattern part ways.
    pub(crate) const PARTS: &[&str] = &[
        "a",
        "B",
        "é",
        "É",
        "ǅ",
        "ʰ",
        "\u{301}",
        "あ",
        "ア",
        "가",
        "ا",
        "क",
        "\u{93f}",
        "中",
        "々",
        "〇",
        "⼀",
        "\u{16ff0}",
        "𠀀",
        "1",
        "٣",
        "½",
        "Ⅷ",
        "'s",
        "'S",
        "'ſ",
        "'t",
        "'re",
        "'Ve",
        "'m",
        "'ll",
        "'l",
        "'D",
        "'",
        "!",
        "-",
        "_",
        "<|",
        "😀",
        "\u{200d}",
        "\0",
        "\u{1c}",
        "\u{7f}",
        " ",
        "  ",
        "\t",
        "\u{85}",
        "\u{a0}",
        "\u{3000}",
        "\n",
        "\r",
        "\r\n",
        "\u{2028}",
        "\u{fffd}",
        "K",
        "\u{e000}",
    ];

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            proptest::collection::vec(proptest::sample::select(PARTS), 0..24)
                .prop_map(|parts| parts.concat()),
            proptest::collection::vec(any::<char>(), 0..24).prop_map(String::from_iter),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn the_scanner_is_the_pattern(text in text()) {
            prop_assert_eq!(pieces(&text).collect::<Vec<_>>(), by_pattern(&text));
        }
    }

    #[test]
    fn all_triples_of_parts() {
        let mut text = String::new();
        for a in PARTS {
            for b in PARTS {
                for c in PARTS {
                    text.clear();
                    text.extend([*a, *b, *c]);
                    assert!(pieces(&text).eq(by_pattern(&text)), "{text:?}");
                }
            }
        }
    }
}
