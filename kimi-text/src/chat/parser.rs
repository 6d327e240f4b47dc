//! Generated ids to events.

use std::borrow::Borrow;

use serde_json::Value;

use super::format::Family;
use super::k2::K2Parser;
use super::k3::K3Parser;
use super::schema::Schemas;
use super::{ChatEvent, ChatFormat, MissingMarker, Opening};
use crate::error::UnknownToken;
use crate::utf8::Utf8Stream;
use crate::{TokenId, Tokenizer};

/// Takes the ids of an assistant's turn as they are generated, and tells what they say.
///
/// Events do not depend on how the turn is parted. A special token is never shown: markers of the format structure the
/// turn, others are skipped. Text is held back only while it can be part of a tag, of a character, or of an argument
/// that has to be seen whole to know its type.
///
/// Models make mistakes. An element that is not closed ends where the next one begins; text outside any element is
/// answer; a tag that does not exist is text; a second turn is not read. Arguments are typed by the schema that the tool
/// declares, then by what the model says; a value that does not fit is a string. Nothing that arrives is an
/// error, except an id that does not exist.
///
/// `T` is how the parser has its tokenizer: `&Tokenizer`, `Arc<Tokenizer>` or the like.
#[derive(Debug, Clone)]
pub struct ChatParser<T> {
    tokenizer: T,
    /// The ids of the markers of the format.
    markers: Vec<(TokenId, &'static str)>,
    schemas: Schemas,
    turn: Turn,
    utf8: Utf8Stream,
    text: String,
    done: bool,
}

#[derive(Debug, Clone)]
enum Turn {
    K3(K3Parser),
    K2(K2Parser),
}

impl<T: Borrow<Tokenizer>> ChatParser<T> {
    /// A parser at the end of a prompt: `opening` is what [`ChatPrompt::opening`](super::ChatPrompt::opening) says.
    /// `tools` are all tools that the conversation declares.
    ///
    /// # Errors
    /// [`MissingMarker`] when the tokenizer is one for another format.
    pub fn new(
        format: ChatFormat,
        opening: Opening,
        tools: &[Value],
        tokenizer: T,
    ) -> Result<Self, MissingMarker> {
        let (needed, optional, turn) = match format.family() {
            Family::K3 => (K3Parser::MARKERS, &[][..], Turn::K3(K3Parser::new(opening))),
            Family::K2(_) => {
                (K2Parser::MARKERS, K2Parser::OPTIONAL_MARKERS, Turn::K2(K2Parser::new(opening)))
            }
        };
        let of = |name: &'static str| Some((tokenizer.borrow().special_id(name)?, name));
        let mut markers = Vec::with_capacity(needed.len() + optional.len());
        for &name in needed {
            markers.push(of(name).ok_or(MissingMarker { name })?);
        }
        markers.extend(optional.iter().copied().filter_map(of));
        let schemas = Schemas::new(tools);
        Ok(Self {
            tokenizer,
            markers,
            schemas,
            turn,
            utf8: Utf8Stream::default(),
            text: String::new(),
            done: false,
        })
    }

    /// Takes the next id and appends what it says to `events`. Text that continues the last event is joined to it, so a
    /// list that is emptied in between holds what is new, and one that is not holds the turn. Once the turn
    /// [is done](Self::is_done), ids are ignored.
    ///
    /// # Errors
    /// [`UnknownToken`] for an id that the tokenizer does not have. The parser is then as before.
    pub fn push(&mut self, id: TokenId, events: &mut Vec<ChatEvent>) -> Result<(), UnknownToken> {
        let tokenizer = self.tokenizer.borrow();
        let bytes = tokenizer.token_bytes(id)?;
        if self.done {
            return Ok(());
        }
        if tokenizer.special_name(id).is_none() {
            self.text.clear();
            self.utf8.push(bytes, &mut self.text);
            if !self.text.is_empty() {
                self.turn.text(&self.text, &self.schemas, events);
            }
            return Ok(());
        }
        // A character cannot go on after a special token.
        self.end_character(events);
        if let Some(&(_, name)) = self.markers.iter().find(|(marker, _)| *marker == id) {
            self.done = match &mut self.turn {
                Turn::K3(turn) => turn.marker(name, &self.schemas, events),
                Turn::K2(turn) => turn.marker(name, &self.schemas, events),
            };
        }
        Ok(())
    }

    /// Takes text that did not come as ids: from an engine that decodes by itself and gives ids for special tokens
    /// only. Names of markers in it are text.
    pub fn push_text(&mut self, text: &str, events: &mut Vec<ChatEvent>) {
        if !self.done && !text.is_empty() {
            self.end_character(events);
            self.turn.text(text, &self.schemas, events);
        }
    }

    /// Ends the turn, whether the model ended it or was stopped, and appends what was held back. A call that is open then
    /// is not valid. The parser ignores what comes after.
    pub fn finish(&mut self, events: &mut Vec<ChatEvent>) {
        if self.done {
            return;
        }
        self.end_character(events);
        match &mut self.turn {
            Turn::K3(turn) => turn.finish(events),
            Turn::K2(turn) => turn.finish(events),
        }
        self.done = true;
    }

    /// Whether the turn is over: the model ended it or began another one, or [`finish`](Self::finish) was called.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// In what the model is: its reasoning, or its answer and calls.
    pub fn is_reasoning(&self) -> bool {
        match &self.turn {
            Turn::K3(turn) => turn.is_reasoning(),
            Turn::K2(turn) => turn.is_reasoning(),
        }
    }

    fn end_character(&mut self, events: &mut Vec<ChatEvent>) {
        self.text.clear();
        self.utf8.finish(&mut self.text);
        if !self.text.is_empty() {
            self.turn.text(&self.text, &self.schemas, events);
        }
    }
}

impl Turn {
    fn text(&mut self, text: &str, schemas: &Schemas, events: &mut Vec<ChatEvent>) {
        match self {
            Self::K3(turn) => turn.text(text, events),
            Self::K2(turn) => turn.text(text, schemas, events),
        }
    }
}
