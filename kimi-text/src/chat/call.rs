//! A call of a tool that is being told.

use super::ChatEvent;
use super::events::push_arguments;
use super::schema::{Schemas, Types};
use crate::json::{push_escaped, push_string};

/// A call whose arguments arrive.
#[derive(Debug, Clone)]
pub(super) struct Call {
    index: usize,
    tool: String,
    arguments: Arguments,
}

/// How far the object of the arguments has been told.
#[derive(Debug, Clone)]
enum Arguments {
    /// Not at all.
    Empty,
    /// One argument or more, of which the last may be open.
    Typed(Option<Argument>),
    /// The model writes the object itself; this is what it wrote.
    Raw(String),
}

/// An argument whose text arrives.
#[derive(Debug, Clone)]
enum Argument {
    /// A string, told as it arrives.
    String,
    /// One that has to be seen whole: whether it is JSON decides what it is.
    Whole { declared: Types, given: Option<Types>, text: String },
}

impl Call {
    /// Begins the call at `index`.
    pub(super) fn begin(index: usize, id: Option<String>, name: String, events: &mut Vec<ChatEvent>) -> Self {
        events.push(ChatEvent::ToolCallBegin { index, id, name: name.clone() });
        Self { index, tool: name, arguments: Arguments::Empty }
    }

    fn push(&self, text: &str, events: &mut Vec<ChatEvent>) {
        push_arguments(events, self.index, text);
    }

    /// Begins an argument, after closing one that is open. `given` is the type that the model says.
    pub(super) fn begin_argument(
        &mut self,
        key: &str,
        given: Option<&str>,
        schemas: &Schemas,
        events: &mut Vec<ChatEvent>,
    ) {
        self.end_argument(events);
        let mut head = String::from(match self.arguments {
            Arguments::Empty => "{",
            Arguments::Typed(_) => ", ",
            // The object is told already.
            Arguments::Raw(_) => return,
        });
        push_string(key, &mut head);
        head.push_str(": ");
        let declared = schemas.types(&self.tool, key);
        let given = given.map(Types::named);
        let argument = if declared.is_string(given) {
            head.push('"');
            Argument::String
        } else {
            Argument::Whole { declared, given, text: String::new() }
        };
        self.push(&head, events);
        self.arguments = Arguments::Typed(Some(argument));
    }

    /// Takes text in an argument, or the object itself where none has begun.
    pub(super) fn text(&mut self, text: &str, events: &mut Vec<ChatEvent>) {
        match &mut self.arguments {
            Arguments::Empty => {
                let text = text.trim_start();
                if !text.is_empty() {
                    self.arguments = Arguments::Raw(text.to_string());
                    self.push(text, events);
                }
            }
            Arguments::Typed(Some(Argument::String)) => {
                let mut escaped = String::with_capacity(text.len());
                push_escaped(text, &mut escaped);
                self.push(&escaped, events);
            }
            Arguments::Typed(Some(Argument::Whole { text: whole, .. })) => whole.push_str(text),
            // Between arguments there is nothing to say.
            Arguments::Typed(None) => {}
            Arguments::Raw(object) => {
                object.push_str(text);
                self.push(text, events);
            }
        }
    }

    /// Whether nothing of the arguments has been told.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self.arguments, Arguments::Empty)
    }

    /// Closes the argument that is open, if one is.
    pub(super) fn end_argument(&mut self, events: &mut Vec<ChatEvent>) {
        let Arguments::Typed(open) = &mut self.arguments else { return };
        match open.take() {
            None => {}
            Some(Argument::String) => self.push("\"", events),
            Some(Argument::Whole { declared, given, text }) if declared.is_json(given, &text) => {
                self.push(text.trim(), events);
            }
            Some(Argument::Whole { text, .. }) => {
                let mut literal = String::with_capacity(text.len() + 2);
                push_string(&text, &mut literal);
                self.push(&literal, events);
            }
        }
    }

    /// Ends the call: all that is open is closed.
    pub(super) fn end(mut self, events: &mut Vec<ChatEvent>) {
        self.end_argument(events);
        let valid = match &self.arguments {
            Arguments::Empty => {
                self.push("{}", events);
                true
            }
            Arguments::Typed(_) => {
                self.push("}", events);
                true
            }
            Arguments::Raw(object) => is_object(object),
        };
        events.push(ChatEvent::ToolCallEnd { index: self.index, valid });
    }

    /// Generation stopped within the call. What is open stays so: a value that is cut off must not pass for a whole one.
    pub(super) fn cut_off(self, events: &mut Vec<ChatEvent>) {
        let valid = match &self.arguments {
            Arguments::Raw(object) => is_object(object),
            Arguments::Typed(Some(Argument::Whole { text, .. })) => {
                self.push(text, events);
                false
            }
            _ => false,
        };
        events.push(ChatEvent::ToolCallEnd { index: self.index, valid });
    }
}

fn is_object(json: &str) -> bool {
    json.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok()
}
