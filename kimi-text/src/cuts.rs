//! The cuts that the released tokenizer makes before anything else.
//!
//! They exist to bound the work on hostile input, and they show in the ids of long runs: a cut ends a piece.

/// Where text is cut, in characters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    /// Text is cut each time this many characters have passed.
    pub(crate) slice: usize,
    /// Inside such a slice, a run of white space or of anything else is cut when it gets longer than this.
    pub(crate) run: usize,
}

impl Caps {
    /// The values of the released tokenizer class.
    pub(crate) const RELEASED: Self = Self { slice: 400_000, run: 25_000 };
}

/// The parts of `text` between the cuts, in order. None is empty.
pub(crate) fn cut(text: &str, caps: Caps) -> Cuts<'_> {
    debug_assert!(caps.slice > 0 && caps.run > 0);
    Cuts { slice: "", rest: text, caps }
}

#[derive(Debug)]
pub(crate) struct Cuts<'t> {
    /// What is left of the current slice.
    slice: &'t str,
    /// The text after that slice.
    rest: &'t str,
    caps: Caps,
}

impl<'t> Iterator for Cuts<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        if self.slice.is_empty() {
            (self.slice, self.rest) = self.rest.split_at(end_of_slice(self.rest, self.caps.slice));
        }
        let part;
        (part, self.slice) = self.slice.split_at(end_of_runs(self.slice, self.caps.run));
        (!part.is_empty()).then_some(part)
    }
}

/// Where the first `cap` characters end.
fn end_of_slice(text: &str, cap: usize) -> usize {
    if text.len() <= cap {
        return text.len();
    }
    let mut characters = text.chars();
    match characters.nth(cap - 1) {
        Some(_) => text.len() - characters.as_str().len(),
        None => text.len(),
    }
}

/// Where the first run that is longer than `cap` reaches `cap` characters.
fn end_of_runs(text: &str, cap: usize) -> usize {
    if !may_have_long_run(text, cap) {
        return text.len();
    }
    let mut run = 0;
    let mut run_is_space = false;
    for (at, character) in text.char_indices() {
        let space = is_space(character);
        run = if space == run_is_space { run + 1 } else { 1 };
        run_is_space = space;
        if run > cap {
            return at;
        }
    }
    text.len()
}

/// Whether a run may be longer than `cap`. Such a run has more than `cap` bytes, so it covers one of every `cap`
/// bytes: it is enough to look at the runs around those. In ordinary text that is next to nothing.
fn may_have_long_run(text: &str, cap: usize) -> bool {
    (cap..text.len()).step_by(cap).any(|at| {
        let (before, after) = text.split_at(text.floor_char_boundary(at));
        let is_space_there = after.chars().next().is_some_and(is_space);
        let in_run = |character: &char| is_space(*character) == is_space_there;
        let ahead = after.chars().take(cap + 1).take_while(in_run).count();
        ahead + before.chars().rev().take(cap + 1).take_while(in_run).count() > cap
    })
}

/// White space as Python's `str.isspace` has it: Unicode's `White_Space` and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: one pass over the characters of each slice.
    fn by_definition(text: &str, caps: Caps) -> Vec<String> {
        let characters: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for slice in characters.chunks(caps.slice) {
            let mut part = String::new();
            let mut run = 0;
            for (at, &character) in slice.iter().enumerate() {
                let same = at > 0 && is_space(slice[at - 1]) == is_space(character);
                run = if same { run + 1 } else { 1 };
                if run > caps.run {
                    parts.push(std::mem::take(&mut part));
                    run = 1;
                }
                part.push(character);
            }
            parts.push(part);
        }
        parts
    }

    #[test]
    fn white_space_is_that_of_python() {
        // `[c for c in map(chr, range(0x110000)) if c.isspace()]`, Python 3.12.
        let expected = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \u{85}\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\
                        \u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}";
        assert!(('\0'..=char::MAX).filter(|&character| is_space(character)).eq(expected.chars()));
    }

    #[test]
    fn runs_and_slices_are_cut_where_they_exceed_the_cap() {
        let parts = |text, slice, run| cut(text, Caps { slice, run }).collect::<Vec<_>>();
        assert_eq!(parts("", 4, 4), [""; 0]);
        assert_eq!(parts("abcdefghij", 100, 4), ["abcd", "efgh", "ij"]);
        assert_eq!(parts("abcd    efgh", 100, 4), ["abcd    efgh"]);
        assert_eq!(parts("ab     c", 100, 4), ["ab    ", " c"]);
        assert_eq!(parts("ab cd ef", 3, 100), ["ab ", "cd ", "ef"]);
        // A slice begins a new run.
        assert_eq!(parts("abcdefgh", 5, 4), ["abcd", "e", "fgh"]);
        assert_eq!(parts("中文中文中", 100, 2), ["中文", "中文", "中"]);
        assert_eq!(parts("a\u{1c}\u{1d}b", 100, 1), ["a\u{1c}", "\u{1d}b"]);
    }

    proptest! {
        #[test]
        fn the_cuts_are_the_definition(text in "[a中😀 \u{3000}\u{1c}]{0,60}", slice in 1usize..30, run in 1usize..12) {
            let caps = Caps { slice, run };
            prop_assert_eq!(cut(&text, caps).collect::<Vec<_>>(), by_definition(&text, caps));
        }
    }
}
