//! Stop strings in text that arrives in parts.

use crate::error::EmptyStop;

/// Passes text through up to the first of several stop strings.
///
/// The definition, on the text as a whole: of all occurrences of all stop strings, the one that *ends* first is
/// the match; of several that end at one place, the longest, and of equal strings the first in the list. What lies
/// before the match is passed on, the match and all after it are not. That is the only choice that does not depend
/// on how the text is parted and never waits for text after a match.
///
/// A part of the text is held back only as long as a stop string could begin in it.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text that was not passed on yet: after each call, the longest end of the text that begins a stop string.
    held: String,
    /// What the last call passed on.
    passed: String,
    matched: Option<usize>,
}

/// What [`StopMatcher::push`] says about a part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed<'a> {
    /// Text that cannot be part of a match any more, following on from what earlier calls returned.
    pub text: &'a str,
    /// The stop string that ended the text, as a place in the list, from 0.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these strings, at the beginning of a text. Without strings, all text is passed on at once.
    ///
    /// # Errors
    /// [`EmptyStop`] when one of the strings is empty.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Self, EmptyStop> {
        let stops = stops
            .into_iter()
            .enumerate()
            .map(|(index, stop)| Stop::new(stop.into().into_bytes()).ok_or(EmptyStop { index }))
            .collect::<Result<_, _>>()?;
        Ok(Self { stops, held: String::new(), passed: String::new(), matched: None })
    }

    /// Takes the next part of the text. After a match, parts are ignored and the match is reported again.
    pub fn push(&mut self, part: &str) -> Passed<'_> {
        self.passed.clear();
        if self.matched.is_none() {
            let before = self.held.len();
            self.held.push_str(part);
            let mut pass = None;
            for (end, &byte) in (before + 1..).zip(part.as_bytes()) {
                if let Some((stop, len)) = self.advance(byte) {
                    self.matched = Some(stop);
                    pass = Some(end - len);
                    break;
                }
            }
            let pass = pass.unwrap_or_else(|| {
                self.held.len() - self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0)
            });
            // A stop string is UTF-8, so where it begins, a character of the text begins.
            self.passed.push_str(&self.held[..pass]);
            if self.matched.is_some() {
                self.held.clear();
            } else {
                self.held.drain(..pass);
            }
        }
        Passed { text: &self.passed, stop: self.matched }
    }

    /// Ends the text and returns what was held back: no stop string comes any more. The matcher is then at the
    /// beginning of another text.
    pub fn finish(&mut self) -> &str {
        self.matched = None;
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        self.passed.clear();
        std::mem::swap(&mut self.passed, &mut self.held);
        &self.passed
    }

    /// The stop string that ended the text, as a place in the list.
    pub fn stop(&self) -> Option<usize> {
        self.matched
    }

    /// The longest stop string that ends with `byte`, and its length.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut longest: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            let len = stop.bytes.len();
            if stop.advance(byte) && longest.is_none_or(|(_, other)| len > other) {
                longest = Some((index, len));
            }
        }
        longest
    }
}

/// One stop string, and how much of it the end of the text matches (Knuth, Morris and Pratt, *Fast Pattern Matching
/// in Strings*, 1977).
#[derive(Debug, Clone)]
struct Stop {
    bytes: Box<[u8]>,
    /// For each length of a matched beginning, the next shorter beginning that matches as well.
    shorter: Box<[usize]>,
    /// Bytes at the end of the text that begin the stop string: the most, but never all of it.
    matched: usize,
}

impl Stop {
    fn new(bytes: Vec<u8>) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        let mut shorter = vec![0; bytes.len()];
        let mut matched = 0;
        for at in 1..bytes.len() {
            // `shorter[n]` is filled for all `n` that are followed here, since `matched < at`.
            shorter[at] = matched;
            while matched > 0 && bytes[at] != bytes[matched] {
                matched = shorter[matched];
            }
            matched += usize::from(bytes[at] == bytes[matched]);
        }
        Some(Self { bytes: bytes.into(), shorter: shorter.into(), matched: 0 })
    }

    /// Takes the next byte of the text; true when the stop string ends with it.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.shorter[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        let complete = self.matched == self.bytes.len();
        if complete {
            // The matcher stops here; 0 keeps the state within bounds whatever is called next.
            self.matched = 0;
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, on the whole text: what is passed on, and which stop string ended it.
    fn by_definition<'t>(stops: &[String], text: &'t str) -> (&'t str, Option<usize>) {
        for end in 0..=text.len() {
            let ending = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            // Of equal lengths `max_by_key` takes the last one, which reversing makes the first.
            if let Some((index, stop)) = ending.rev().max_by_key(|(_, stop)| stop.len()) {
                return (&text[..end - stop.len()], Some(index));
            }
        }
        (text, None)
    }

    fn parted<'t>(text: &'t str, cuts: &[usize]) -> Vec<&'t str> {
        let mut cuts: Vec<usize> = cuts.iter().map(|&cut| text.floor_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
    }

    #[test]
    fn a_stop_string_across_parts_is_cut_and_no_part_of_it_gets_out() {
        let mut matcher = StopMatcher::new(["own fox"]).unwrap();
        for (part, text, stop) in [
            ("The quick br", "The quick br", None),
            ("o", "", None),
            ("wn", "", None),
            (" f", "", None),
            ("ox jumps", "", Some(0)),
            (" over", "", Some(0)),
        ] {
            assert_eq!(matcher.push(part), Passed { text, stop }, "{part:?}");
        }
        assert_eq!(matcher.stop(), Some(0));
        assert_eq!(matcher.finish(), "");
        assert_eq!(matcher.push("own fork").text, "own fork", "a new text");
    }

    #[test]
    fn what_only_begins_like_a_stop_string_is_passed_on() {
        let mut matcher = StopMatcher::new(["own fox"]).unwrap();
        assert_eq!(matcher.push("the own o").text, "the own ");
        assert_eq!(matcher.push("wn fo").text, "");
        assert_eq!(matcher.finish(), "own fo");
        assert_eq!(matcher.stop(), None);
        let mut matcher = StopMatcher::new([""; 0]).unwrap();
        assert_eq!(matcher.push("anything").text, "anything");
    }

    #[test]
    fn the_match_that_ends_first_wins_and_then_the_longest() {
        for (stops, text, expected) in [
            (&["abcd", "bc"][..], "xabcd", ("xa", Some(1))),
            (&["c", "abc", "bc"], "xabcx", ("x", Some(1))),
            (&["bc", "bc"], "abc", ("a", Some(0))),
            (&["aab"], "aaab", ("a", Some(0))),
            (&["文字"], "汉文文字", ("汉文", Some(0))),
        ] {
            let mut matcher = StopMatcher::new(stops.iter().copied()).unwrap();
            let passed = matcher.push(text);
            assert_eq!((passed.text, passed.stop), expected, "{stops:?}");
        }
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert_eq!(StopMatcher::new(["a", ""]).unwrap_err(), EmptyStop { index: 1 });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn parts_do_not_matter(
            stops in proptest::collection::vec("[abé文]{1,4}", 0..4),
            text in "[abé文]{0,40}",
            cuts in proptest::collection::vec(0usize..80, 0..20),
        ) {
            let (expected, stop) = by_definition(&stops, &text);
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let mut passed = String::new();
            let mut seen = String::new();
            for part in parted(&text, &cuts) {
                seen.push_str(part);
                passed.push_str(matcher.push(part).text);
                prop_assert!(expected.starts_with(&passed), "nothing gets out that is cut later");
                // And nothing is held back that cannot begin a stop string.
                if matcher.stop().is_none() {
                    let held = &seen[passed.len()..];
                    prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)), "{}", held);
                }
            }
            prop_assert_eq!(matcher.stop(), stop);
            passed.push_str(matcher.finish());
            prop_assert_eq!(passed, expected);
        }
    }
}
