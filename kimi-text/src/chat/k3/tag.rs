//! Tags that arrive in parts.

/// Names that tags have.
const NAMES: [&str; 7] = ["message", "think", "response", "tools", "call", "argument", "json"];

/// A tag between its marker and `<|sep|>`, as far as it has arrived.
#[derive(Debug, Clone)]
pub(super) struct Tag {
    pub(super) closing: bool,
    text: String,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Name,
    /// Between attributes.
    Gap,
    Key,
    /// Between `=` and the quote.
    Quote,
    Value,
}

impl Tag {
    pub(super) fn new(closing: bool) -> Self {
        Self { closing, text: String::new(), state: State::Name }
    }

    /// Takes what comes next. `Err` when this cannot be a tag: all its text and what is left of `text`, which was
    /// text then.
    pub(super) fn push(&mut self, text: &str) -> Result<(), String> {
        for (at, character) in text.char_indices() {
            let before = self.text.len();
            self.text.push(character);
            let next = match (self.state, character) {
                (State::Name, ' ') if !self.closing && NAMES.contains(&&self.text[..before]) => {
                    Some(State::Gap)
                }
                (State::Name, _) if NAMES.iter().any(|name| name.starts_with(&*self.text)) => {
                    Some(State::Name)
                }
                (State::Gap, ' ') => Some(State::Gap),
                (State::Gap | State::Key, 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-') => Some(State::Key),
                (State::Key, '=') => Some(State::Quote),
                (State::Quote, '"') => Some(State::Value),
                (State::Value, '"') => Some(State::Gap),
                (State::Value, _) => Some(State::Value),
                _ => None,
            };
            let Some(next) = next else {
                self.text.push_str(&text[at + character.len_utf8()..]);
                return Err(std::mem::take(&mut self.text));
            };
            self.state = next;
        }
        Ok(())
    }

    /// Ends the tag at `<|sep|>`. `Err` when it is none: its text.
    pub(super) fn end(self) -> Result<Whole, String> {
        let complete = match self.state {
            State::Name => NAMES.contains(&&*self.text),
            state => state == State::Gap,
        };
        if complete { Ok(Whole { text: self.text }) } else { Err(self.text) }
    }
}

/// A tag that has arrived.
#[derive(Debug)]
pub(super) struct Whole {
    text: String,
}

impl Whole {
    pub(super) fn name(&self) -> &str {
        self.text.split(' ').next().unwrap_or("")
    }

    /// The value of an attribute.
    pub(super) fn attribute(&self, key: &str) -> Option<String> {
        // Name, then key, value, key, value …: quotes within values are escaped.
        let mut parts = self.text.split('"');
        let mut head = parts.next()?;
        while let Some(value) = parts.next() {
            let found = head.trim_end_matches('=').rsplit(' ').next()?;
            if found == key {
                return Some(unescape(value));
            }
            head = parts.next()?;
        }
        None
    }
}

fn unescape(value: &str) -> String {
    // In this order `&amp;quot;` becomes `&quot;`, not a quote.
    value.replace("&quot;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read() {
        let mut tag = Tag::new(false);
        for part in ["ca", "ll tool=\"a&quot;b&amp;quot; =<\"", " index=\"1\""] {
            tag.push(part).unwrap();
        }
        let tag = tag.end().unwrap();
        assert_eq!(tag.name(), "call");
        assert_eq!(tag.attribute("tool").as_deref(), Some("a\"b&quot; =<"));
        assert_eq!(tag.attribute("index").as_deref(), Some("1"));
        assert_eq!(tag.attribute("key"), None);
    }

    #[test]
    fn what_is_no_tag_comes_back_as_text() {
        for (parts, expected) in [
            (&["thi", "nk about"][..], "think about"),
            (&["cal", "endar"], "calendar"),
            (&["call me"], "call me"),
            (&["call tool", "='x'"], "call tool='x'"),
            (&["respons"], "respons"),
            (&["call tool=\"x"], "call tool=\"x"),
            (&[""], ""),
        ] {
            let mut tag = Tag::new(false);
            let mut parts = parts.iter();
            let pushed = parts.try_for_each(|part| tag.push(part));
            let text = match pushed {
                Ok(()) => tag.end().unwrap_err(),
                Err(text) => text + &parts.copied().collect::<String>(),
            };
            assert_eq!(text, expected);
        }
        let mut closing = Tag::new(true);
        assert_eq!(closing.push("think x"), Err("think x".to_string()), "closing tags have no attributes");
    }
}
