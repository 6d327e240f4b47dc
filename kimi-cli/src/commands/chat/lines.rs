//! Talking with a program: a JSON object per line, in and out.

use std::io::{BufRead, stdin};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Context, bail};
use kimi_model::FinishReason;
use kimi_text::chat::{Message, Role};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Chat;
use super::conversation::Conversation;
use super::view::{LineView, line};
use crate::exit::Exit;
use crate::interrupt;

/// Requests that wait while one is answered.
const WAITING: usize = 64;

/// The longest line; a longer one is refused without being held.
const MAX_LINE: usize = 64 << 20;

/// What a line may ask for; several at once are done in this order.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Request {
    /// Comes back with the `done` or `error` of this line.
    id: Option<Value>,
    /// Forgets the conversation.
    reset: bool,
    /// Begins anew with another system message; null with none.
    #[serde(deserialize_with = "given")]
    system: Option<Option<String>>,
    /// Declares tools in place of those so far.
    tools: Option<Vec<Value>>,
    /// Changes settings.
    set: Map<String, Value>,
    /// Writes the conversation to a file.
    save: Option<String>,
    /// Goes on with that of a file.
    load: Option<String>,
    /// What the user says.
    user: Option<String>,
    /// Messages of any role. They are answered unless the last is an assistant's.
    messages: Vec<Message>,
    /// Ends all answers that were asked for before.
    stop: bool,
}

/// Tells `null` from a field that is not there.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Answers lines until there are no more.
pub(super) fn talk(chat: &mut Chat<'_>, conversation: &mut Conversation) -> anyhow::Result<Exit> {
    let stopped = Arc::new(AtomicU64::new(0));
    let requests = listen(&stopped);
    let (_, capacity) = conversation.position();
    line(&json!({ "type": "ready", "format": conversation.format_name(), "capacity": capacity }))?;
    let mut number = 0;
    while let Ok(request) = requests.recv() {
        number += 1;
        let (request, id) = match request {
            Ok(mut request) => {
                let id = request.id.take();
                (Ok(request), id)
            }
            Err(error) => (Err(error), None),
        };
        let is_stopped = || stopped.load(Ordering::SeqCst) >= number;
        let done = request.and_then(|request| answer(chat, conversation, request, &is_stopped));
        let mut last = match done {
            Ok(done) => done,
            Err(error) if is_broken_pipe(&error) => return Err(error),
            Err(error) => json!({ "type": "error", "message": format!("{error:#}") }),
        };
        if let Some(id) = id {
            last["id"] = id;
        }
        line(&last)?;
    }
    Ok(Exit::Ok)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(kind))
}

/// Reads lines in a thread of its own, so that a stop is heard while an answer is under way.
fn listen(stopped: &Arc<AtomicU64>) -> Receiver<anyhow::Result<Request>> {
    let (send, requests) = sync_channel(WAITING);
    let stopped = Arc::clone(stopped);
    std::thread::spawn(move || {
        let mut input = stdin().lock();
        let (mut number, mut bytes) = (0, Vec::new());
        loop {
            bytes.clear();
            let request = match read_line(&mut input, &mut bytes) {
                Ok(false) => return,
                Ok(true) if bytes.trim_ascii().is_empty() => continue,
                Ok(true) => serde_json::from_slice::<Request>(&bytes).context("this line is no request"),
                Err(error) => Err(error),
            };
            number += 1;
            if matches!(&request, Ok(request) if request.stop) {
                // Everything up to the line before.
                stopped.store(number - 1, Ordering::SeqCst);
                interrupt::request();
            }
            // The other end goes away only when the program ends.
            if send.send(request).is_err() {
                return;
            }
        }
    });
    requests
}

/// A line without its end; false at the end of the input.
fn read_line(input: &mut impl BufRead, bytes: &mut Vec<u8>) -> anyhow::Result<bool> {
    loop {
        let part = input.fill_buf().context("the standard input cannot be read")?;
        let (end, used) = match part.iter().position(|&byte| byte == b'\n') {
            Some(at) => (true, at + 1),
            None => (part.is_empty(), part.len()),
        };
        let had = !bytes.is_empty() || used > 0;
        if bytes.len() <= MAX_LINE {
            bytes.extend_from_slice(&part[..used]);
        }
        input.consume(used);
        if end && bytes.len() > MAX_LINE {
            bail!("a line is longer than {MAX_LINE} bytes");
        }
        if end {
            return Ok(had);
        }
    }
}

fn answer(
    chat: &mut Chat<'_>,
    conversation: &mut Conversation,
    request: Request,
    is_stopped: &dyn Fn() -> bool,
) -> anyhow::Result<Value> {
    let Request { reset, system, tools, set, save, load, user, mut messages, .. } = request;
    if reset {
        conversation.reset(chat.engine)?;
    }
    if let Some(system) = system {
        conversation.set_system(system, chat.engine)?;
    }
    if let Some(tools) = tools {
        conversation.set_tools(tools)?;
    }
    let vocab_size = chat.engine.model().config().vocab_size;
    for (name, value) in &set {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        chat.settings.set(name, &value, vocab_size)?;
    }
    if let Some(file) = load {
        conversation.load(Path::new(&file), chat.engine)?;
    }
    messages.extend(user.map(Message::user));
    let generation = match messages.last().map(|message| message.role) {
        None => None,
        Some(Role::Assistant) => {
            conversation.add(messages);
            None
        }
        Some(_) => Some(chat.turn(conversation, messages, &mut LineView, is_stopped)?),
    };
    if let Some(file) = save {
        conversation.save(Path::new(&file))?;
    }
    let (position, capacity) = conversation.position();
    Ok(match generation {
        None => json!({ "type": "done", "position": position, "capacity": capacity }),
        Some(turn) => json!({
            "type": "done",
            "finish_reason": turn.finish.name(),
            "prompt_tokens": turn.prompt_tokens,
            "computed_tokens": turn.computed_tokens,
            "reused_tokens": turn.reused_tokens,
            "generated_tokens": turn.generated_tokens,
            "seconds_per_token": turn.seconds_per_token,
            "bytes_read": turn.bytes_read,
            "position": position,
            "capacity": capacity,
            "cancelled": turn.finish == FinishReason::Cancelled,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whole_whatever_their_ends() {
        let mut input = &b"one\n\ntwo"[..];
        let mut lines = Vec::new();
        let mut bytes = Vec::new();
        while read_line(&mut input, &mut bytes).unwrap() {
            lines.push(String::from_utf8(std::mem::take(&mut bytes)).unwrap());
        }
        assert_eq!(lines, ["one\n", "\n", "two"]);
    }

    #[test]
    fn a_line_without_end_is_refused_and_the_next_one_read() {
        let mut input = vec![b'x'; MAX_LINE + 10];
        input.extend_from_slice(b"\nnext\n");
        let (mut input, mut bytes) = (&input[..], Vec::new());
        let error = read_line(&mut input, &mut bytes).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
        bytes.clear();
        assert!(read_line(&mut input, &mut bytes).unwrap() && bytes == b"next\n");
    }

    #[test]
    fn null_is_told_from_nothing() {
        let system = |json: &str| serde_json::from_str::<Request>(json).unwrap().system;
        assert_eq!(system("{}"), None);
        assert_eq!(system(r#"{"system": null}"#), Some(None));
        assert_eq!(system(r#"{"system": "x"}"#), Some(Some("x".to_owned())));
        assert!(serde_json::from_str::<Request>(r#"{"sytem": "x"}"#).is_err());
    }
}
