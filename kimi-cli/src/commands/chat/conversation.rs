//! The messages so far, and the session that has read them.

use std::path::Path;

use anyhow::{Context, bail};
use kimi_model::{Engine, FinishReason, Generation, Session};
use kimi_text::chat::{
    ChatFormat, ChatOptions, ChatPrompt, Continuation, Message, Opening, Part, Role, ToolCall,
};
use kimi_text::{TokenId, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

/// A conversation with one model.
pub(super) struct Conversation {
    format: ChatFormat,
    tools: Vec<Value>,
    system: Option<String>,
    messages: Vec<Message>,
    session: Session,
    /// What the session has read.
    read: Vec<u32>,
    /// The last token of an answer that ended as it should: the session has read all before it.
    pending: Option<u32>,
}

/// What the model has to read next.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// The session is empty: `ids` are the whole conversation.
    pub(super) anew: bool,
    /// Where the system message and the tools end in a conversation that is read from its beginning; 0 where there are none.
    pub(super) preamble: usize,
    pub(super) opening: Opening,
    /// Tokens of the whole conversation; those beyond `ids` have been read before.
    pub(super) tokens: usize,
    /// Messages before those that were added for it.
    pub(super) before: usize,
}

impl Conversation {
    pub(super) fn new(format: ChatFormat, system: Option<String>, engine: &Engine) -> anyhow::Result<Self> {
        let session = engine.session()?;
        let (tools, messages, read) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { format, tools, system, messages, session, read, pending: None })
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

    /// What the session has read.
    pub(super) fn read(&self) -> &[u32] {
        &self.read
    }

    /// Adds tokens to what the session has read; it has not got to the last of them.
    pub(super) fn has_read(&mut self, ids: &[u32]) {
        self.read.extend_from_slice(ids);
        self.read.truncate(self.session.position());
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

    /// The tools that may be called.
    pub(super) fn tools(&self) -> &[Value] {
        &self.tools
    }

    /// Declares tools in place of those so far: objects with a `function` that has a name, as chat APIs have them.
    pub(super) fn set_tools(&mut self, tools: Vec<Value>) -> anyhow::Result<()> {
        for (i, tool) in tools.iter().enumerate() {
            if name_of(tool).is_none() {
                bail!("tool {i} is no object with a `function` that has a `name`");
            }
        }
        self.tools = tools;
        // The declarations stand at the beginning of the prompt.
        self.pending = None;
        Ok(())
    }

    /// Declares the tools of a file: a list, or an object with a list `tools`.
    pub(super) fn load_tools(&mut self, path: &Path) -> anyhow::Result<()> {
        let json = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let wrong = || format!("{} holds no list of tools", path.display());
        let tools = match serde_json::from_slice(&json).with_context(wrong)? {
            Value::Array(tools) => Some(tools),
            Value::Object(mut file) => match file.remove("tools") {
                Some(Value::Array(tools)) => Some(tools),
                _ => None,
            },
            _ => None,
        };
        self.set_tools(tools.with_context(wrong)?).with_context(|| path.display().to_string())
    }

    /// The call of the last answer that has no result yet.
    pub(super) fn open_call(&self) -> Option<&ToolCall> {
        let at = self.messages.iter().rposition(|message| message.role == Role::Assistant)?;
        self.messages[at].tool_calls.get(self.messages.len() - at - 1)
    }

    /// The message with a result of [`open_call`](Self::open_call), and whether no other call is open then.
    pub(super) fn result(&self, text: &str) -> anyhow::Result<(Message, bool)> {
        let call = self.open_call().context("no call waits for a result")?;
        let mut message = Message::tool_result(call.id.clone().unwrap_or_default(), text);
        if call.id.is_none() {
            message.tool_call_id = None;
        }
        message.name = Some(call.name.clone());
        let at = self.messages.iter().rposition(|message| message.role == Role::Assistant);
        let calls = at.map_or(0, |at| self.messages[at].tool_calls.len() + at + 1);
        Ok((message, self.messages.len() + 1 == calls))
    }

    /// Adds messages without an answer.
    pub(super) fn add(&mut self, messages: Vec<Message>) {
        self.messages.extend(messages);
        self.pending = None;
    }

    /// Empties the session; what is said next is read from the beginning.
    fn forget(&mut self, engine: &Engine) -> anyhow::Result<()> {
        self.pending = None;
        self.read.clear();
        if self.session.position() > 0 {
            self.session = engine.session()?;
        }
        Ok(())
    }

    fn rendered(
        &self,
        messages: &[Message],
        continuation: Continuation,
        options: &ChatOptions,
    ) -> anyhow::Result<ChatPrompt> {
        let system = self.system.iter().map(Message::system);
        let all: Vec<Message> = system.chain(messages.iter().cloned()).collect();
        let mut options = options.clone();
        options.continuation = continuation;
        Ok(ChatPrompt::new(self.format, &all, &self.tools, &options)?)
    }

    /// Adds what is said. Only what is new is to be read where the session holds the rest: after an answer that ended
    /// as it should, in formats that show a model its own reasoning again.
    pub(super) fn ask(
        &mut self,
        messages: Vec<Message>,
        options: &ChatOptions,
        tokenizer: &Tokenizer,
        engine: &Engine,
    ) -> anyhow::Result<Prompt> {
        let before = self.messages.len();
        self.messages.extend(messages);
        let asked = self.prompt(before, options, tokenizer);
        let prompt = match asked {
            Ok(asked) => asked,
            Err(error) => {
                self.messages.truncate(before);
                return Err(error);
            }
        };
        if prompt.anew {
            self.forget(engine)?;
        }
        self.pending = None;
        Ok(prompt)
    }

    fn prompt(&self, before: usize, options: &ChatOptions, tokenizer: &Tokenizer) -> anyhow::Result<Prompt> {
        let rendered = self.rendered(&self.messages, Continuation::Assistant, options)?;
        let opening = rendered.opening().context("the format does not say how an answer begins")?;
        let ids = rendered.encode(tokenizer)?;
        let tokens = ids.len();
        let plain = |ids: &[TokenId]| ids.iter().map(|id| id.0).collect::<Vec<u32>>();
        let shown_again = self.format == ChatFormat::K3
            || self.messages[..before].last().is_some_and(|message| message.reasoning.is_none());
        if let Some(last) = self.pending.filter(|_| shown_again) {
            let read = self.rendered(&self.messages[..before], Continuation::None, options)?;
            if let Some(new) = ids.strip_prefix(&*read.encode(tokenizer)?) {
                let mut next = vec![last];
                next.extend(plain(new));
                return Ok(Prompt { ids: next, anew: false, preamble: 0, opening, tokens, before });
            }
        }
        let preamble = self.preamble(&ids, options, tokenizer);
        Ok(Prompt { ids: plain(&ids), anew: true, preamble, opening, tokens, before })
    }

    /// How many of the first tokens are the system message and the tools, which other conversations may begin with too.
    fn preamble(&self, ids: &[TokenId], options: &ChatOptions, tokenizer: &Tokenizer) -> usize {
        if self.system.is_none() && self.tools.is_empty() {
            return 0;
        }
        // A format that cannot end there has no such place.
        let rendered = self.rendered(&[], Continuation::None, options);
        let first = rendered.and_then(|rendered| Ok(rendered.encode(tokenizer)?));
        first.ok().filter(|first| ids.starts_with(first)).map_or(0, |first| first.len())
    }

    /// Adds the answer; without one the question is taken back.
    pub(super) fn answered(&mut self, before: usize, generation: &Generation, turn: Message) {
        if turn.content.is_empty() && turn.reasoning.is_none() && turn.tool_calls.is_empty() {
            return self.withdraw(before);
        }
        self.messages.push(turn);
        let whole = generation.finish == FinishReason::Eos;
        self.pending = generation.ids.last().copied().filter(|_| whole);
    }

    /// Takes back messages that got no answer.
    pub(super) fn withdraw(&mut self, before: usize) {
        self.messages.truncate(before);
        // What of it was read stays in the session, which is therefore begun anew.
        self.pending = None;
    }

    /// Writes messages and tools, as chat APIs have them.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let system = self.system.iter().map(Message::system);
        let messages: Vec<Value> =
            system.chain(self.messages.iter().cloned()).map(|message| to_json(&message)).collect();
        let json = serde_json::to_vec_pretty(&json!({ "messages": messages, "tools": self.tools }))?;
        std::fs::write(path, json).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Takes the messages and tools of a file in place of those so far; nothing changes when it holds none.
    pub(super) fn load(&mut self, path: &Path, engine: &Engine) -> anyhow::Result<()> {
        let json = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let wrong = || format!("{} holds no conversation", path.display());
        let file: File = serde_json::from_slice(&json).with_context(wrong)?;
        let mut messages = file.messages;
        let system = match messages.first() {
            Some(first) if first.role == Role::System && first.tools.is_empty() => {
                Some(text_of(&messages.remove(0)))
            }
            _ => None,
        };
        self.set_tools(file.tools).with_context(wrong)?;
        (self.system, self.messages) = (system, messages);
        self.forget(engine)
    }
}

/// A conversation that was saved.
#[derive(Debug, Deserialize)]
struct File {
    messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<Value>,
}

/// The name of a declared tool.
pub(super) fn name_of(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

fn to_json(message: &Message) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut json = json!({ "role": role, "content": text_of(message) });
    let texts = [
        ("reasoning_content", &message.reasoning),
        ("name", &message.name),
        ("tool_call_id", &message.tool_call_id),
    ];
    for (field, text) in texts {
        if let Some(text) = text {
            json[field] = text.as_str().into();
        }
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &ToolCall| {
            json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        };
        json["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    if !message.tools.is_empty() {
        json["tools"] = message.tools.clone().into();
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
