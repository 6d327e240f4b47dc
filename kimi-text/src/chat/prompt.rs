//! Rendered conversations: markup and text, apart.

use serde_json::Value;

use super::format::Family;
use super::{ChatError, ChatFormat, ChatOptions, Message, MissingMarker, k2, k3};
use crate::{Specials, TokenId, Tokenizer};

/// A conversation in the format of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    text: String,
    /// Where each segment of `text` ends, and what it is.
    ends: Vec<(usize, Kind)>,
    opening: Option<Opening>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Marker(&'static str),
    Text,
}

/// A part of a prompt that is encoded by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a segment is markup or it is not")]
pub enum Segment<'a> {
    /// One special token.
    Marker(&'a str),
    /// Ordinary text, also where it holds the name of a special token.
    Text(&'a str),
}

/// In what a model goes on at the end of a prompt: where a [`ChatParser`](super::ChatParser) begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a model thinks or speaks")]
pub enum Opening {
    /// Its reasoning.
    Reasoning,
    /// Its answer, which may still begin with the marker of reasoning (K2 Thinking).
    Answer,
}

impl ChatPrompt {
    /// Renders `messages` in `format`. `tools` are those available from the beginning, each an object with a
    /// `function` as chat APIs have it.
    ///
    /// # Errors
    /// [`ChatError`] naming the message that the format cannot say.
    pub fn new(
        format: ChatFormat,
        messages: &[Message],
        tools: &[Value],
        options: &ChatOptions,
    ) -> Result<Self, ChatError> {
        match format.family() {
            Family::K3 => k3::render(messages, tools, options),
            Family::K2(style) => k2::render(format, style, messages, tools, options),
        }
    }

    /// A prompt with nothing in it.
    pub(super) fn empty() -> Self {
        Self { text: String::new(), ends: Vec::new(), opening: None }
    }

    /// Appends a special token.
    pub(super) fn push_marker(&mut self, name: &'static str) {
        self.text.push_str(name);
        self.ends.push((self.text.len(), Kind::Marker(name)));
    }

    /// Appends text that is encoded by itself.
    pub(super) fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.text.push_str(text);
            self.ends.push((self.text.len(), Kind::Text));
        }
    }

    /// Appends text that is encoded together with the text before it.
    pub(super) fn join_text(&mut self, text: &str) {
        match self.ends.last_mut() {
            Some((end, Kind::Text)) => {
                self.text.push_str(text);
                *end = self.text.len();
            }
            _ => self.push_text(text),
        }
    }

    /// Says in what the model goes on.
    pub(super) fn open(&mut self, opening: Opening) {
        self.opening = Some(opening);
    }

    /// The prompt as one string. To be looked at, not to be encoded: markers and text that looks like them are the
    /// same here.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The parts of the prompt, each encoded by itself.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, kind)| {
            let text = &self.text[start..end];
            start = end;
            match kind {
                Kind::Marker(name) => Segment::Marker(name),
                Kind::Text => Segment::Text(text),
            }
        })
    }

    /// In what the model goes on; `None` when the prompt does not end in a turn of the assistant.
    pub fn opening(&self) -> Option<Opening> {
        self.opening
    }

    /// The ids of the prompt. Only a [`Segment::Marker`] becomes a special token.
    ///
    /// # Errors
    /// [`MissingMarker`] when the tokenizer is one for another format.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, MissingMarker> {
        let mut ids = Vec::with_capacity(self.text.len() / 3);
        let mut markers: Vec<(&str, TokenId)> = Vec::new();
        let mut start = 0;
        for &(end, kind) in &self.ends {
            match kind {
                Kind::Marker(name) => {
                    // A prompt has few different markers, and most of them often.
                    let known = markers.iter().find(|(known, _)| *known == name).map(|&(_, id)| id);
                    let id = known.or_else(|| tokenizer.special_id(name)).ok_or(MissingMarker { name })?;
                    if known.is_none() {
                        markers.push((name, id));
                    }
                    ids.push(id);
                }
                Kind::Text => tokenizer.encode_into(&self.text[start..end], Specials::AsText, &mut ids),
            }
            start = end;
        }
        Ok(ids)
    }
}
