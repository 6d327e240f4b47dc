//! The messages so far, and the session that has read them.

use std::path::Path;

use anyhow::Context;
use kimi_model::{Engine, FinishReason, Generation, Session};
use kimi_text::chat::{ChatFormat, ChatOptions, ChatPrompt, Continuation, Message, Opening, Part, Role};
use kimi_text::{TokenId, Tokenizer};
use serde_json::{Value, json};

use crate::args::ChatArgs;

/// A conversation with one model.
pub(super) struct Conversation {
    format: ChatFormat,
    options: ChatOptions,
    system: Option<String>,
    messages: Vec<Message>,
    session: Session,
    /// The last token of an answer that ended as it should: the session has read all before it.
    pending: Option<u32>,
}

/// What the model has to read next.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    pub(super) opening: Opening,
    /// Tokens of the whole conversation; those beyond `ids` have been read before.
    pub(super) tokens: usize,
}

impl Conversation {
    pub(super) fn new(format: ChatFormat, engine: &Engine, args: &ChatArgs) -> anyhow::Result<Self> {
        let mut options = ChatOptions::default();
        options.thinking = !args.no_think;
        options.effort = args.effort.or_else(|| format.default_effort()).filter(|_| options.thinking);
        let (system, session) = (args.system.clone(), engine.session()?);
        Ok(Self { format, options, system, messages: Vec::new(), session, pending: None })
    }

    pub(super) fn format(&self) -> ChatFormat {
        self.format
    }

    pub(super) fn format_name(&self) -> &'static str {
        self.format.name()
    }

    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Tokens that the session holds, and how many it can hold.
    pub(super) fn position(&self) -> (usize, usize) {
        (self.session.position(), self.session.capacity())
    }

    /// Messages, the system's aside.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Forgets everything but the system message.
    pub(super) fn reset(&mut self, engine: &Engine) -> anyhow::Result<()> {
        self.messages.clear();
        self.forget(engine)
    }

    /// Begins anew with another system message.
    pub(super) fn set_system(&mut self, system: Option<String>, engine: &Engine) -> anyhow::Result<()> {
        self.system = system;
        self.reset(engine)
    }

    /// Empties the session; what is said next is read from the beginning.
    fn forget(&mut self, engine: &Engine) -> anyhow::Result<()> {
        self.pending = None;
        if self.session.position() > 0 {
            self.session = engine.session()?;
        }
        Ok(())
    }

    fn rendered(&self, messages: &[Message], continuation: Continuation) -> anyhow::Result<ChatPrompt> {
        let system = self.system.iter().map(Message::system);
        let all: Vec<Message> = system.chain(messages.iter().cloned()).collect();
        let mut options = self.options.clone();
        options.continuation = continuation;
        Ok(ChatPrompt::new(self.format, &all, &[], &options)?)
    }

    /// Adds what the user says. Only what is new is to be read where the session holds the rest: after an answer that ended
    /// as it should, in formats that show a model its own reasoning again.
    pub(super) fn ask(
        &mut self,
        message: &str,
        tokenizer: &Tokenizer,
        engine: &Engine,
    ) -> anyhow::Result<Prompt> {
        let before = self.messages.len();
        self.messages.push(Message::user(message));
        let asked = self.prompt(before, tokenizer);
        let (prompt, continues) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                self.messages.pop();
                return Err(error);
            }
        };
        if !continues {
            self.forget(engine)?;
        }
        self.pending = None;
        Ok(prompt)
    }

    fn prompt(&self, before: usize, tokenizer: &Tokenizer) -> anyhow::Result<(Prompt, bool)> {
        let rendered = self.rendered(&self.messages, Continuation::Assistant)?;
        let opening = rendered.opening().context("the format does not say how an answer begins")?;
        let ids = rendered.encode(tokenizer)?;
        let tokens = ids.len();
        let plain = |ids: &[TokenId]| ids.iter().map(|id| id.0).collect::<Vec<u32>>();
        let shown_again = self.format == ChatFormat::K3
            || self.messages[..before].last().is_some_and(|message| message.reasoning.is_none());
        if let Some(last) = self.pending.filter(|_| shown_again) {
            let read = self.rendered(&self.messages[..before], Continuation::None)?.encode(tokenizer)?;
            if let Some(new) = ids.strip_prefix(&*read) {
                let mut next = vec![last];
                next.extend(plain(new));
                return Ok((Prompt { ids: next, opening, tokens }, true));
            }
        }
        Ok((Prompt { ids: plain(&ids), opening, tokens }, false))
    }

    /// Adds the answer; without one the question is taken back.
    pub(super) fn answered(&mut self, generation: &Generation, turn: Message) {
        if turn.content.is_empty() && turn.reasoning.is_none() && turn.tool_calls.is_empty() {
            return self.withdraw();
        }
        self.messages.push(turn);
        let whole = generation.finish == FinishReason::Eos;
        self.pending = generation.ids.last().copied().filter(|_| whole);
    }

    /// Takes back a message that got no answer.
    pub(super) fn withdraw(&mut self) {
        self.messages.pop();
        // What of it was read stays in the session, which is therefore begun anew.
        self.pending = None;
    }

    /// Writes the messages, as chat APIs have them.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let system = self.system.iter().map(Message::system);
        let messages: Vec<Value> =
            system.chain(self.messages.iter().cloned()).map(|message| to_json(&message)).collect();
        let json = serde_json::to_vec_pretty(&json!({ "messages": messages }))?;
        std::fs::write(path, json).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Takes the messages of a file in place of those so far.
    pub(super) fn load(&mut self, path: &Path, engine: &Engine) -> anyhow::Result<()> {
        let json = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let wrong = || format!("{} holds no conversation", path.display());
        let mut file: Value = serde_json::from_slice(&json).with_context(wrong)?;
        let mut messages: Vec<Message> =
            serde_json::from_value(file["messages"].take()).with_context(wrong)?;
        let system = match messages.first() {
            Some(first) if first.role == Role::System => Some(text_of(&messages.remove(0))),
            _ => None,
        };
        (self.system, self.messages) = (system, messages);
        self.forget(engine)
    }
}

fn to_json(message: &Message) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        _ => "tool",
    };
    let mut json = json!({ "role": role, "content": text_of(message) });
    if let Some(reasoning) = &message.reasoning {
        json["reasoning_content"] = reasoning.as_str().into();
    }
    json
}

fn text_of(message: &Message) -> String {
    let texts = message.content.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}
