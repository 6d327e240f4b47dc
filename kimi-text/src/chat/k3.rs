//! The format of Kimi K3: tags between four markers.
//!
//! An element is `<|open|>name key="value"<|sep|>` content `<|close|>name<|sep|>`; a message ends with
//! `<|end_of_msg|>` besides. The markers are special tokens. Each name, each side of an attribute and each part of a
//! content is text that is encoded by itself, in the segments of the released encoder; it differs from its later copy in
//! that arguments which are text are read and written again (`1e2` becomes `100.0`), blank reasoning is left out and
//! arguments that are JSON but no object are refused.

mod parser;
mod tag;

use std::borrow::Cow;
use std::collections::HashMap;

use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

pub(super) use parser::K3Parser;

use super::{
    ChatError, ChatFormat, ChatOptions, ChatPrompt, Continuation, Message, Opening, Part, ResponseFormat,
    Role, ToolCall, ToolChoice,
};
use crate::json::{Entries, Spacing, restyle};
use crate::vocabulary::excerpt;

pub(super) const OPEN: &str = "<|open|>";
pub(super) const CLOSE: &str = "<|close|>";
pub(super) const SEP: &str = "<|sep|>";
pub(super) const END_OF_MSG: &str = "<|end_of_msg|>";

/// Renders a conversation.
pub(super) fn render(
    messages: &[Message],
    tools: &[Value],
    options: &ChatOptions,
) -> Result<ChatPrompt, ChatError> {
    let mut renderer = Renderer { prompt: ChatPrompt::empty(), thinking: options.thinking };
    if !tools.is_empty() {
        renderer.declare_tools("# Tools\nHere are the available tools, described in JSONSchema.", tools);
    }
    if let Some(effort) = options.effort.filter(|_| options.thinking) {
        renderer.note(
            "thinking-effort",
            &format!(
                "`thinking_effort` guides on how much to think in your thinking channel (not including the \
                 response channel), supported values include `low`, `medium`, `high`, and `max`.\n\
                 Now the system is invoked with `thinking_effort={}`.",
                effort.name()
            ),
        );
    }
    renderer.conversation(messages)?;
    match options.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::Required => renderer.note(
            "tool-choice",
            "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
        ),
        ToolChoice::None => renderer.note(
            "tool-choice",
            "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
        ),
    }
    renderer.response_format(&options.response_format);
    renderer.continuation(&options.continuation)?;
    Ok(renderer.prompt)
}

struct Renderer {
    prompt: ChatPrompt,
    thinking: bool,
}

impl Renderer {
    fn open(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.prompt.push_marker(OPEN);
        self.prompt.push_text(name);
        for (key, value) in attributes {
            self.prompt.push_text(&format!(" {key}"));
            self.prompt.push_text("=\"");
            self.prompt.push_text(&escape(value));
            self.prompt.push_text("\"");
        }
        self.prompt.push_marker(SEP);
    }

    fn close(&mut self, name: &str) {
        self.prompt.push_marker(CLOSE);
        self.prompt.push_text(name);
        self.prompt.push_marker(SEP);
    }

    fn end_message(&mut self) {
        self.close("message");
        self.prompt.push_marker(END_OF_MSG);
    }

    fn element(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) {
        self.open(name, attributes);
        self.prompt.push_text(text);
        self.close(name);
    }

    /// A message from the program itself.
    fn note(&mut self, kind: &str, text: &str) {
        self.open("message", &[("role", "system"), ("type", kind)]);
        self.prompt.push_text(text);
        self.end_message();
    }

    fn declare_tools(&mut self, introduction: &str, tools: &[Value]) {
        self.note(
            "tool-declare",
            &format!("{introduction}\n\n```json\n{}\n```", sorted(&Value::from(tools))),
        );
    }

    fn response_format(&mut self, format: &ResponseFormat) {
        let raw = "Your response must be raw JSON data without markdown code blocks (```json) or any additional \
                   formatting.";
        let text = match format {
            ResponseFormat::Text => return,
            ResponseFormat::JsonObject => {
                format!("The system is invoked with `response_format=json_object`.\n{raw}")
            }
            ResponseFormat::JsonSchema(schema) => format!(
                "The system is invoked with `response_format=json_schema`.\n{raw}\n\
                 The JSON data must match the following schema:\n```json\n{}\n```",
                sorted(schema)
            ),
        };
        self.note("response-format", &text);
    }

    fn conversation(&mut self, messages: &[Message]) -> Result<(), ChatError> {
        let mut calls: &[ToolCall] = &[];
        // Results count from 1 after the turn that called for them.
        let mut results = 0;
        let mut at = 0;
        while let Some(message) = messages.get(at) {
            match message.role {
                Role::System if !message.tools.is_empty() => self.declare_tools(
                    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n\
                     You have access to all existing and extended tools.\nHere are the specs for the extended tools.",
                    &message.tools,
                ),
                Role::System | Role::User => {
                    let role = if message.role == Role::User { "user" } else { "system" };
                    self.open_turn(role, message.name.as_deref());
                    self.content(at, message)?;
                    self.end_message();
                }
                Role::Assistant => {
                    calls = &message.tool_calls;
                    results = 0;
                    self.assistant(at, message)?;
                }
                Role::Tool => {
                    let run = messages[at..].iter().take_while(|message| message.role == Role::Tool).count();
                    self.results(at, &messages[at..at + run], calls, &mut results)?;
                    at += run;
                    continue;
                }
            }
            at += 1;
        }
        Ok(())
    }

    fn open_turn(&mut self, role: &str, name: Option<&str>) {
        match name.filter(|name| !name.is_empty()) {
            Some(name) => self.open("message", &[("role", role), ("name", name)]),
            None => self.open("message", &[("role", role)]),
        }
    }

    fn content(&mut self, at: usize, message: &Message) -> Result<(), ChatError> {
        for text in texts(at, message) {
            self.prompt.push_text(text?);
        }
        Ok(())
    }

    fn assistant(&mut self, at: usize, message: &Message) -> Result<(), ChatError> {
        self.open_turn("assistant", message.name.as_deref());
        if self.thinking {
            let reasoning = message.reasoning.as_deref().filter(|text| !text.trim().is_empty());
            self.element("think", &[], reasoning.unwrap_or(""));
        }
        self.open("response", &[]);
        self.content(at, message)?;
        self.close("response");
        if !message.tool_calls.is_empty() {
            self.open("tools", &[]);
            for (index, call) in message.tool_calls.iter().enumerate() {
                self.open("call", &[("tool", &call.name), ("index", &(index + 1).to_string())]);
                self.arguments(&call.arguments).map_err(|found| ChatError::Arguments {
                    message: at,
                    call: index,
                    found,
                })?;
                self.close("call");
            }
            self.close("tools");
        }
        self.end_message();
        Ok(())
    }

    /// The arguments of a call; the error says how arguments begin that are no object.
    fn arguments(&mut self, json: &str) -> Result<(), String> {
        if json.trim().is_empty() {
            return Ok(());
        }
        match typed(json) {
            Some(arguments) => {
                for (key, kind, text) in &arguments {
                    self.element("argument", &[("key", key), ("type", kind)], text);
                }
            }
            None if serde_json::from_str::<IgnoredAny>(json).is_ok()
                && !json.trim_start().starts_with('{') =>
            {
                return Err(excerpt(json.trim_start().as_bytes()));
            }
            // A model wrote something that is no JSON: it is shown what it wrote.
            None => self.element("json", &[("type", "object")], json),
        }
        Ok(())
    }

    /// A run of results: in the order of the calls when each answers one of them, else as they are.
    fn results(
        &mut self,
        first: usize,
        run: &[Message],
        calls: &[ToolCall],
        index: &mut usize,
    ) -> Result<(), ChatError> {
        // Of calls with one id, the first.
        let places: HashMap<&str, usize> =
            calls.iter().enumerate().rev().filter_map(|(at, call)| Some((call.id.as_deref()?, at))).collect();
        let call_of = |message: &Message| places.get(message.tool_call_id.as_deref()?).copied();
        let mut ordered: Vec<_> =
            run.iter().enumerate().map(|(at, message)| (call_of(message), at, message)).collect();
        let all_known = ordered.iter().all(|(call, ..)| call.is_some());
        if all_known {
            ordered.sort_by_key(|&(call, at, _)| (call, at));
        }
        for (call, at, message) in ordered {
            *index += 1;
            let own = message.name.as_deref();
            let name = match call.filter(|_| all_known) {
                Some(call) => Some(&*calls[call].name),
                None => own.or_else(|| calls.get(*index - 1).map(|call| &*call.name)),
            };
            let name = name.ok_or(ChatError::ToolName { message: first + at })?;
            self.open("message", &[("role", "tool"), ("tool", name), ("index", &index.to_string())]);
            self.content(first + at, message)?;
            self.end_message();
        }
        Ok(())
    }

    fn continuation(&mut self, continuation: &Continuation) -> Result<(), ChatError> {
        let (reasoning, answer) = match continuation {
            Continuation::None => return Ok(()),
            Continuation::Assistant => (None, None),
            Continuation::Prefill { reasoning, answer } => (reasoning.as_deref(), answer.as_deref()),
        };
        self.open_turn("assistant", None);
        let opening = if self.thinking {
            self.open("think", &[]);
            self.prompt.push_text(reasoning.unwrap_or(""));
            if answer.is_some() {
                self.close("think");
                self.open("response", &[]);
            }
            if answer.is_some() { Opening::Answer } else { Opening::Reasoning }
        } else {
            if reasoning.is_some() {
                return Err(ChatError::NoReasoning { format: ChatFormat::K3 });
            }
            self.open("response", &[]);
            Opening::Answer
        };
        self.prompt.push_text(answer.unwrap_or(""));
        self.prompt.open(opening);
        Ok(())
    }
}

/// The texts of a message.
pub(super) fn texts(at: usize, message: &Message) -> impl Iterator<Item = Result<&str, ChatError>> {
    message.content.iter().map(move |part| match part {
        Part::Text(text) => Ok(&**text),
        Part::Image => Err(ChatError::Image { message: at }),
        Part::Other(found) => Err(ChatError::Part { message: at, found: found.clone() }),
    })
}

fn escape(value: &str) -> Cow<'_, str> {
    if value.contains(['&', '"']) {
        value.replace('&', "&amp;").replace('"', "&quot;").into()
    } else {
        value.into()
    }
}

/// JSON without spaces, its keys sorted at every level.
fn sorted(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    restyle(&value.to_string(), Spacing::Compact)
}

/// Key, type and text of each argument; `None` when `json` is no object. Of equal keys the last value counts, at the
/// place of the first.
fn typed(json: &str) -> Option<Vec<(String, &'static str, Cow<'_, str>)>> {
    let Entries(entries) = serde_json::from_str::<Entries<&RawValue>>(json).ok()?;
    let mut arguments: Vec<(String, &'static str, Cow<'_, str>)> = Vec::with_capacity(entries.len());
    let mut places = HashMap::new();
    for (key, value) in entries {
        let raw = value.get();
        let kind = match raw.as_bytes()[0] {
            b'"' => "string",
            b'{' => "object",
            b'[' => "array",
            b't' | b'f' => "boolean",
            b'n' => "null",
            _ => "number",
        };
        let text = match kind {
            "string" => serde_json::from_str::<String>(raw).ok()?.into(),
            "boolean" | "null" => raw.into(),
            _ => restyle(raw, Spacing::Spaced).into(),
        };
        match places.get(&key) {
            Some(&place) => {
                let earlier: &mut (_, _, _) = &mut arguments[place];
                (earlier.1, earlier.2) = (kind, text);
            }
            None => {
                places.insert(key.clone(), arguments.len());
                arguments.push((key, kind, text));
            }
        }
    }
    Some(arguments)
}
