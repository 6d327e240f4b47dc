//! How an answer is shown: to people, or line by line to programs.

use std::io::{self, Write, stdout};

use console::style;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kimi_text::chat::ChatEvent;
use serde_json::{Value, json};

/// Shows an answer while it comes.
pub(super) trait View: Send {
    /// A part of the turn.
    fn event(&mut self, event: &ChatEvent) -> io::Result<()>;

    /// `done` of `total` tokens of the prompt are read.
    fn prompt(&mut self, done: usize, total: usize) -> io::Result<()>;

    /// A layer of a pass is done.
    fn layer(&mut self, layer: usize, layers: usize);

    /// Nothing more comes.
    fn end(&mut self) -> io::Result<()>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Nothing,
    Reasoning,
    Answer,
}

/// Text on the standard output, reasoning dimmed on a terminal; a bar on the standard error until it comes.
#[derive(Debug)]
pub(super) struct TextView {
    /// What was printed last.
    shown: Shown,
    reasoning: bool,
    terminal: bool,
    bar: ProgressBar,
}

impl TextView {
    pub(super) fn new(reasoning: bool, terminal: bool, quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template("reading {msg}: layer {pos} of {len}, {elapsed} {wide_bar}");
        let style = style.expect("the template is well formed");
        let bar = ProgressBar::with_draw_target(Some(0), target).with_style(style).with_message("the prompt");
        Self { shown: Shown::Nothing, reasoning, terminal, bar }
    }

    fn show(&mut self, kind: Shown, text: &str) -> io::Result<()> {
        self.bar.finish_and_clear();
        if self.shown == Shown::Reasoning && kind == Shown::Answer {
            print("\n\n")?;
        }
        self.shown = kind;
        print(text)
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

impl View for TextView {
    fn event(&mut self, event: &ChatEvent) -> io::Result<()> {
        match event {
            ChatEvent::Reasoning(text) if self.reasoning => {
                let text = if self.terminal { style(text).dim().to_string() } else { text.clone() };
                self.show(Shown::Reasoning, &text)
            }
            ChatEvent::Answer(text) => self.show(Shown::Answer, text),
            ChatEvent::ToolCallBegin { name, .. } => {
                self.show(Shown::Answer, &format!("[calls {name} with "))
            }
            ChatEvent::ToolCallArguments { text, .. } => self.show(Shown::Answer, text),
            ChatEvent::ToolCallEnd { .. } => self.show(Shown::Answer, "]"),
            _ => Ok(()),
        }
    }

    fn prompt(&mut self, done: usize, total: usize) -> io::Result<()> {
        let left = match done {
            0 => String::new(),
            _ => {
                let pace = self.bar.elapsed().as_secs_f64() / done as f64;
                format!(", {:.0} s left", pace * (total - done) as f64)
            }
        };
        self.bar.set_message(format!("{done} of {total} tokens{left}"));
        Ok(())
    }

    fn layer(&mut self, layer: usize, layers: usize) {
        if self.shown == Shown::Nothing {
            self.bar.set_length(layers as u64);
            self.bar.set_position(layer as u64 + 1);
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.bar.finish_and_clear();
        match self.shown {
            Shown::Nothing => Ok(()),
            _ => print("\n"),
        }
    }
}

/// One JSON object per line.
#[derive(Debug, Default)]
pub(super) struct LineView;

/// Writes an object as a line.
pub(super) fn line(object: &Value) -> io::Result<()> {
    print(&format!("{object}\n"))
}

impl View for LineView {
    fn event(&mut self, event: &ChatEvent) -> io::Result<()> {
        line(&match event {
            ChatEvent::Reasoning(text) => json!({ "type": "reasoning", "text": text }),
            ChatEvent::Answer(text) => json!({ "type": "text", "text": text }),
            ChatEvent::ToolCallBegin { index, id, name } => {
                json!({ "type": "tool_call", "index": index, "id": id, "name": name })
            }
            ChatEvent::ToolCallArguments { index, text } => {
                json!({ "type": "tool_arguments", "index": index, "text": text })
            }
            ChatEvent::ToolCallEnd { index, valid } => {
                json!({ "type": "tool_call_end", "index": index, "valid": valid })
            }
            _ => return Ok(()),
        })
    }

    fn prompt(&mut self, done: usize, total: usize) -> io::Result<()> {
        line(&json!({ "type": "prompt", "done": done, "total": total }))
    }

    fn layer(&mut self, _layer: usize, _layers: usize) {}

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}
