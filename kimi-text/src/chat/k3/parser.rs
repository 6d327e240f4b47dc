//! A K3 turn, from markers and text.

use super::super::call::Call;
use super::super::events::push_text;
use super::super::schema::Schemas;
use super::super::{ChatEvent, Opening};
use super::tag::{Tag, Whole};
use super::{CLOSE, END_OF_MSG, OPEN, SEP};

/// The state of a turn.
#[derive(Debug, Clone)]
pub(in super::super) struct K3Parser {
    /// The element that text belongs to, as long as no call is open.
    place: Place,
    tag: Option<Tag>,
    call: Option<Call>,
    calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Reasoning,
    Answer,
    /// In none of these.
    Between,
}

impl K3Parser {
    pub(in super::super) const MARKERS: &'static [&'static str] = &[OPEN, CLOSE, SEP, END_OF_MSG];

    pub(in super::super) fn new(opening: Opening) -> Self {
        let place = match opening {
            Opening::Reasoning => Place::Reasoning,
            Opening::Answer => Place::Answer,
        };
        Self { place, tag: None, call: None, calls: 0 }
    }

    pub(in super::super) fn is_reasoning(&self) -> bool {
        self.place == Place::Reasoning
    }

    pub(in super::super) fn text(&mut self, text: &str, events: &mut Vec<ChatEvent>) {
        match &mut self.tag {
            None => self.content(text, events),
            Some(tag) => {
                if let Err(text) = tag.push(text) {
                    self.tag = None;
                    self.content(&text, events);
                }
            }
        }
    }

    /// Takes a marker; true when the turn is over with it.
    pub(in super::super) fn marker(
        &mut self,
        name: &str,
        schemas: &Schemas,
        events: &mut Vec<ChatEvent>,
    ) -> bool {
        // A tag that another marker interrupts was the beginning of one, or it would be text by now.
        let tag = self.tag.take();
        match name {
            OPEN | CLOSE => self.tag = Some(Tag::new(name == CLOSE)),
            SEP => {
                let Some(tag) = tag else { return false };
                let closing = tag.closing;
                match tag.end() {
                    Err(text) => self.content(&text, events),
                    Ok(tag) if closing => self.close(tag.name(), events),
                    Ok(tag) => return self.open(&tag, schemas, events),
                }
            }
            _ => {
                self.leave(Place::Between, events);
                return true;
            }
        }
        false
    }

    /// Generation stopped.
    pub(in super::super) fn finish(&mut self, events: &mut Vec<ChatEvent>) {
        if let Some(call) = self.call.take() {
            call.cut_off(events);
        }
    }

    fn content(&mut self, text: &str, events: &mut Vec<ChatEvent>) {
        if let Some(call) = &mut self.call {
            call.text(text, events);
            return;
        }
        match self.place {
            Place::Reasoning => push_text(events, ChatEvent::Reasoning, text),
            Place::Answer => push_text(events, ChatEvent::Answer, text),
            Place::Between => {
                let text = text.trim_start();
                if !text.is_empty() {
                    self.place = Place::Answer;
                    push_text(events, ChatEvent::Answer, text);
                }
            }
        }
    }

    /// Takes an opening tag; true when it begins the turn of somebody else.
    fn open(&mut self, tag: &Whole, schemas: &Schemas, events: &mut Vec<ChatEvent>) -> bool {
        match (tag.name(), &mut self.call) {
            ("think", _) => self.leave(Place::Reasoning, events),
            ("response", _) => self.leave(Place::Answer, events),
            ("tools", _) => self.leave(Place::Between, events),
            ("call", _) => {
                self.leave(Place::Between, events);
                let name = tag.attribute("tool").unwrap_or_default();
                self.call = Some(Call::begin(self.calls, None, name, events));
                self.calls += 1;
            }
            ("argument", Some(call)) => {
                let key = tag.attribute("key").unwrap_or_default();
                call.begin_argument(&key, tag.attribute("type").as_deref(), schemas, events);
            }
            // Before any argument, the text that follows is the object.
            ("json", Some(call)) if !call.is_empty() => {
                call.begin_argument("json", tag.attribute("type").as_deref(), schemas, events);
            }
            ("message", _) => {
                self.leave(Place::Between, events);
                return tag.attribute("role").is_none_or(|role| role != "assistant");
            }
            // Arguments of no call.
            _ => {}
        }
        false
    }

    fn close(&mut self, name: &str, events: &mut Vec<ChatEvent>) {
        match (name, &mut self.call) {
            ("argument" | "json", Some(call)) => call.end_argument(events),
            ("call" | "tools" | "message", Some(_)) => self.leave(Place::Between, events),
            ("message", None) => self.place = Place::Between,
            ("think", None) if self.place == Place::Reasoning => self.place = Place::Between,
            ("response", None) if self.place == Place::Answer => self.place = Place::Between,
            // What was not open.
            _ => {}
        }
    }

    /// Ends the call that is open, if one is, and goes to another place.
    fn leave(&mut self, place: Place, events: &mut Vec<ChatEvent>) {
        if let Some(call) = self.call.take() {
            call.end(events);
        }
        self.place = place;
    }
}
