//! An answer while it comes.

use std::io::{self, Write, stdout};

use console::style;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kimi_model::{Listener, Observer};
use kimi_text::chat::{ChatEvent, ChatParser, Message, Opening};
use kimi_text::{TokenId, Tokenizer};

use super::conversation::Conversation;

/// Prints what a model says and puts its turn together.
pub(super) struct Answer<'a> {
    parser: ChatParser<&'a Tokenizer>,
    /// All events so far, neighbours joined.
    events: Vec<ChatEvent>,
    /// What was printed last.
    shown: Shown,
    reasoning: bool,
    terminal: bool,
    bar: ProgressBar,
    failed: Option<io::Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Nothing,
    Reasoning,
    Answer,
}

impl<'a> Answer<'a> {
    pub(super) fn new(
        conversation: &Conversation,
        opening: Opening,
        tokenizer: &'a Tokenizer,
        reasoning: bool,
        terminal: bool,
        quiet: bool,
    ) -> anyhow::Result<Self> {
        let parser = ChatParser::new(conversation.format(), opening, &[], tokenizer)?;
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template("reading {msg}: layer {pos} of {len} {wide_bar}")?;
        let bar = ProgressBar::with_draw_target(Some(0), target).with_style(style);
        let (events, shown) = (Vec::new(), Shown::Nothing);
        Ok(Self { parser, events, shown, reasoning, terminal, bar, failed: None })
    }

    /// The turn, once it has ended.
    pub(super) fn finish(mut self) -> anyhow::Result<Message> {
        self.bar.finish_and_clear();
        let mut last = Vec::new();
        self.parser.finish(&mut last);
        self.take(last);
        if self.shown != Shown::Nothing {
            self.print("\n");
        }
        match self.failed {
            Some(error) => Err(error.into()),
            None => Ok(Message::from_events(&self.events)),
        }
    }

    fn take(&mut self, events: Vec<ChatEvent>) {
        for event in events {
            match &event {
                ChatEvent::Reasoning(text) if self.reasoning => {
                    let text = if self.terminal { style(text).dim().to_string() } else { text.clone() };
                    self.show(Shown::Reasoning, &text);
                }
                ChatEvent::Answer(text) => {
                    let text = text.clone();
                    self.show(Shown::Answer, &text);
                }
                ChatEvent::ToolCallBegin { name, .. } => {
                    self.show(Shown::Answer, &format!("[calls {name} with "))
                }
                ChatEvent::ToolCallArguments { text, .. } => {
                    let text = text.clone();
                    self.show(Shown::Answer, &text);
                }
                ChatEvent::ToolCallEnd { .. } => self.show(Shown::Answer, "]"),
                _ => {}
            }
            self.events.push(event);
        }
    }

    fn show(&mut self, kind: Shown, text: &str) {
        if self.shown == Shown::Reasoning && kind == Shown::Answer {
            self.print("\n\n");
        }
        self.shown = kind;
        self.print(text);
    }

    fn print(&mut self, text: &str) {
        let mut out = stdout().lock();
        let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        if let Err(error) = printed {
            self.failed.get_or_insert(error);
        }
    }
}

impl Observer for Answer<'_> {
    fn layer(&mut self, layer: usize, layers: usize, _sums: &[f32]) {
        if self.shown == Shown::Nothing {
            self.bar.set_length(layers as u64);
            self.bar.set_position(layer as u64 + 1);
        }
    }
}

impl Listener for Answer<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        self.bar.set_message(format!("{done} of {total} tokens"));
    }

    fn token(&mut self, id: u32, _text: &str) {
        self.bar.finish_and_clear();
        let mut events = Vec::new();
        // Ids come from the model's own vocabulary; one without a text says nothing.
        if self.parser.push(TokenId(id), &mut events).is_ok() {
            self.take(events);
        }
    }
}
