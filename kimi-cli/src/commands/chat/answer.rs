//! An answer while it comes.

use std::io;

use kimi_model::{Listener, Observer};
use kimi_text::chat::{ChatEvent, ChatParser, Message, Opening};
use kimi_text::{TokenId, Tokenizer};

use super::conversation::Conversation;
use super::view::View;

/// Shows what a model says and puts its turn together.
pub(super) struct Answer<'a> {
    parser: ChatParser<&'a Tokenizer>,
    /// All events so far.
    events: Vec<ChatEvent>,
    view: &'a mut dyn View,
    failed: Option<io::Error>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(
        conversation: &Conversation,
        opening: Opening,
        tokenizer: &'a Tokenizer,
        view: &'a mut dyn View,
    ) -> anyhow::Result<Self> {
        let parser = ChatParser::new(conversation.format(), opening, conversation.tools(), tokenizer)?;
        Ok(Self { parser, events: Vec::new(), view, failed: None })
    }

    /// The turn, once it has ended.
    pub(super) fn finish(mut self) -> anyhow::Result<Message> {
        let mut last = Vec::new();
        self.parser.finish(&mut last);
        self.take(last);
        let ended = self.view.end();
        self.note(ended);
        match self.failed {
            Some(error) => Err(error.into()),
            None => Ok(Message::from_events(&self.events)),
        }
    }

    fn take(&mut self, events: Vec<ChatEvent>) {
        for event in events {
            let shown = self.view.event(&event);
            self.note(shown);
            self.events.push(event);
        }
    }

    /// Keeps the first error for the end.
    fn note(&mut self, shown: io::Result<()>) {
        if let Err(error) = shown {
            self.failed.get_or_insert(error);
        }
    }
}

impl Observer for Answer<'_> {
    fn layer(&mut self, layer: usize, layers: usize, _sums: &[f32]) {
        self.view.layer(layer, layers);
    }
}

impl Listener for Answer<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        let shown = self.view.prompt(done, total);
        self.note(shown);
    }

    fn token(&mut self, id: u32, _text: &str) {
        let mut events = Vec::new();
        // Ids come from the model's own vocabulary; one without a text says nothing.
        if self.parser.push(TokenId(id), &mut events).is_ok() {
            self.take(events);
        }
    }
}
