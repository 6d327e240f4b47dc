//! A turn of the K2 family, from markers and text.

use super::super::call::Call;
use super::super::events::push_text;
use super::super::schema::Schemas;
use super::super::{ChatEvent, Opening};
use super::{
    ARGUMENT_BEGIN, CALL_BEGIN, CALL_END, IM_ASSISTANT, IM_END, IM_SYSTEM, IM_USER, SECTION_BEGIN,
    SECTION_END, THINK, THINK_END,
};

/// The other token that ends a turn: what the configurations of the family name.
const EOS: &str = "[EOS]";

/// The state of a turn.
#[derive(Debug, Clone)]
pub(in super::super) struct K2Parser {
    place: Place,
    calls: usize,
}

#[derive(Debug, Clone)]
enum Place {
    Reasoning,
    Answer,
    /// Among calls.
    Section,
    /// In the id of a call.
    Id(String),
    /// In the arguments of a call.
    Call(Call),
}

impl K2Parser {
    pub(in super::super) const MARKERS: &'static [&'static str] = &[IM_END, IM_USER, IM_ASSISTANT, IM_SYSTEM];

    /// Markers that not all tokenizers of the family have.
    pub(in super::super) const OPTIONAL_MARKERS: &'static [&'static str] =
        &[SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENT_BEGIN, CALL_END, THINK, THINK_END, EOS];

    pub(in super::super) fn new(opening: Opening) -> Self {
        let place = match opening {
            Opening::Reasoning => Place::Reasoning,
            Opening::Answer => Place::Answer,
        };
        Self { place, calls: 0 }
    }

    pub(in super::super) fn is_reasoning(&self) -> bool {
        matches!(self.place, Place::Reasoning)
    }

    pub(in super::super) fn text(&mut self, text: &str, schemas: &Schemas, events: &mut Vec<ChatEvent>) {
        match &mut self.place {
            Place::Reasoning => push_text(events, ChatEvent::Reasoning, text),
            Place::Answer => push_text(events, ChatEvent::Answer, text),
            Place::Section => {
                let text = text.trim_start();
                if !text.is_empty() {
                    self.place = Place::Answer;
                    push_text(events, ChatEvent::Answer, text);
                }
            }
            Place::Id(id) => match text.find('{') {
                None => id.push_str(text),
                // The marker between id and arguments is missing.
                Some(at) => {
                    id.push_str(&text[..at]);
                    let id = std::mem::take(id);
                    self.begin_call(&id, schemas, events).text(&text[at..], events);
                }
            },
            Place::Call(call) => call.text(text, events),
        }
    }

    /// Takes a marker; true when the turn is over with it.
    pub(in super::super) fn marker(
        &mut self,
        name: &str,
        schemas: &Schemas,
        events: &mut Vec<ChatEvent>,
    ) -> bool {
        match name {
            THINK => self.leave(Place::Reasoning, schemas, events),
            THINK_END if self.is_reasoning() => self.place = Place::Answer,
            THINK_END => {}
            SECTION_BEGIN | CALL_END => self.leave(Place::Section, schemas, events),
            SECTION_END => self.leave(Place::Answer, schemas, events),
            CALL_BEGIN => self.leave(Place::Id(String::new()), schemas, events),
            ARGUMENT_BEGIN => {
                if let Place::Id(id) = &mut self.place {
                    let id = std::mem::take(id);
                    self.begin_call(&id, schemas, events);
                }
            }
            _ => {
                self.leave(Place::Answer, schemas, events);
                return true;
            }
        }
        false
    }

    /// Generation stopped. A call of which only a part of the id has arrived is none.
    pub(in super::super) fn finish(&mut self, events: &mut Vec<ChatEvent>) {
        if let Place::Call(call) = std::mem::replace(&mut self.place, Place::Answer) {
            call.cut_off(events);
        }
    }

    fn begin_call(&mut self, id: &str, schemas: &Schemas, events: &mut Vec<ChatEvent>) -> &mut Call {
        let id = id.trim();
        let (name, known) = (name_of(id, schemas).to_string(), !id.is_empty());
        let call = Call::begin(self.calls, known.then(|| id.to_string()), name, events);
        self.calls += 1;
        self.place = Place::Call(call);
        match &mut self.place {
            Place::Call(call) => call,
            _ => unreachable!("the place was set above"),
        }
    }

    /// Ends the call that is open, if one is, and goes to another place.
    fn leave(&mut self, place: Place, schemas: &Schemas, events: &mut Vec<ChatEvent>) {
        // A call without arguments may lack the marker before them too.
        if let Place::Id(id) = &self.place
            && !id.trim().is_empty()
        {
            let id = id.clone();
            self.begin_call(&id, schemas, events);
        }
        if let Place::Call(call) = std::mem::replace(&mut self.place, place) {
            call.end(events);
        }
    }
}

/// The tool in an id like `functions.get_weather:0`. Of an id without number or prefix, it is the rest.
fn name_of<'a>(id: &'a str, schemas: &Schemas) -> &'a str {
    if schemas.declares(id) {
        return id;
    }
    let name = id.strip_prefix("functions.").unwrap_or(id);
    match name.rsplit_once(':') {
        Some((name, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            name
        }
        _ => name,
    }
}
