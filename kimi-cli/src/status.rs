//! The generated text, and on a terminal a status line below it.

use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kimi_model::{Listener, Observer, ReadCounter};
use kimi_paging::current_rss_bytes;

/// How often the status line is drawn anew while nothing happens.
const TICK: Duration = Duration::from_secs(1);

/// Where the text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    Stderr,
    Nowhere,
}

/// Shows a generation while it runs.
#[derive(Debug)]
pub(crate) struct Status {
    screen: Arc<Mutex<Screen>>,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Status {
    /// Without a terminal, or with `plain`, there is no status line.
    pub(crate) fn new(output: Output, plain: bool, bytes_read: ReadCounter) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let line = match output {
            _ if plain || dumb || !stderr().is_terminal() => Line::None,
            Output::Stdout if !stdout().is_terminal() => Line::Alone,
            Output::Nowhere => Line::Alone,
            _ => Line::Below,
        };
        let screen = Arc::new(Mutex::new(Screen {
            output,
            line,
            drawn: false,
            failed: None,
            progress: Progress {
                start: Instant::now(),
                prompt: (0, 0),
                layer: (0, 0),
                tokens: 0,
                first: None,
            },
            bytes_read,
        }));
        let ticker = (line != Line::None).then(|| {
            let (stop, stopped) = mpsc::channel();
            let screen = Arc::clone(&screen);
            let tick = move || {
                while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    lock(&screen).draw();
                }
            };
            (stop, std::thread::spawn(tick))
        });
        Self { screen, ticker }
    }

    /// Prints text as if it had been generated.
    pub(crate) fn print(&self, text: &str) {
        lock(&self.screen).text(text);
    }

    /// Removes the status line and tells whether all text could be written.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.stop();
        let mut screen = lock(&self.screen);
        screen.failed.take().map_or(Ok(()), Err)
    }

    fn stop(&mut self) {
        if let Some((stop, thread)) = self.ticker.take() {
            drop(stop);
            // The thread only draws; there is nothing to learn from how it ended.
            let _ = thread.join();
        }
        lock(&self.screen).clear();
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Observer for Status {
    fn layer(&mut self, layer: usize, layers: usize, _sums: &[f32]) {
        lock(&self.screen).progress.layer = (layer + 1, layers);
    }
}

impl Listener for Status {
    fn prompt(&mut self, done: usize, total: usize) {
        lock(&self.screen).progress.prompt = (done, total);
    }

    fn token(&mut self, _id: u32, text: &str) {
        let mut screen = lock(&self.screen);
        screen.progress.tokens += 1;
        screen.progress.first.get_or_insert_with(Instant::now);
        screen.text(text);
    }

    fn rest(&mut self, text: &str) {
        lock(&self.screen).text(text);
    }
}

fn lock(screen: &Mutex<Screen>) -> MutexGuard<'_, Screen> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a status line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    None,
    /// On a terminal that shows nothing else.
    Alone,
    /// Below the line that the text has reached.
    Below,
}

#[derive(Debug)]
struct Screen {
    output: Output,
    line: Line,
    drawn: bool,
    failed: Option<io::Error>,
    progress: Progress,
    bytes_read: ReadCounter,
}

impl Screen {
    fn text(&mut self, text: &str) {
        self.clear();
        if !text.is_empty() {
            let written = match self.output {
                Output::Stdout => write_all(&mut stdout().lock(), text),
                Output::Stderr => write_all(&mut stderr().lock(), text),
                Output::Nowhere => Ok(()),
            };
            if let Err(error) = written {
                self.failed.get_or_insert(error);
            }
        }
        self.draw();
    }

    /// Draws the line. What cannot be drawn is not missed.
    fn draw(&mut self) {
        let width = console::Term::stderr().size().1.saturating_sub(1).max(10) as usize;
        let text = self.progress.line(self.bytes_read.bytes().total());
        let text = console::truncate_str(&text, width, "…");
        let drawn = match self.line {
            Line::None => return,
            Line::Alone => write_all(&mut stderr().lock(), &format!("\r\x1b[2K{text}")),
            // Index and back up, so that there is a line below; then there, and back to where the text stands.
            Line::Below => write_all(
                &mut stderr().lock(),
                &format!("\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K\x1b[2m{text}\x1b[0m\x1b8"),
            ),
        };
        self.drawn = drawn.is_ok();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let sequence = match self.line {
                Line::None => return,
                Line::Alone => "\r\x1b[2K",
                Line::Below => "\x1b7\x1b[B\r\x1b[2K\x1b8",
            };
            // As with drawing.
            let _ = write_all(&mut stderr().lock(), sequence);
        }
    }
}

fn write_all(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[derive(Debug)]
struct Progress {
    start: Instant,
    /// Prompt tokens read, of all.
    prompt: (usize, usize),
    /// Layers of the pass under way, of all.
    layer: (usize, usize),
    tokens: usize,
    /// When the first token came.
    first: Option<Instant>,
}

impl Progress {
    fn line(&self, bytes_read: u64) -> String {
        let mut parts = Vec::new();
        match self.first {
            None => {
                let (done, total) = self.prompt;
                parts.push(if total == 0 {
                    "prompt".to_owned()
                } else {
                    format!("prompt {done}/{total} tokens")
                });
                parts.push(format!("layer {}/{}", self.layer.0, self.layer.1));
                if done > 0 && done < total {
                    let left = self.start.elapsed().as_secs_f64() / done as f64 * (total - done) as f64;
                    parts.push(format!("{} left", duration(left)));
                }
            }
            Some(first) => {
                parts.push(format!("{} tokens", self.tokens));
                if self.tokens > 1 {
                    let seconds = first.elapsed().as_secs_f64() / (self.tokens - 1) as f64;
                    parts.push(format!("{seconds:.3} s/token"));
                }
            }
        }
        parts.push(format!("{} read", bytes(bytes_read)));
        if let Some(rss) = current_rss_bytes() {
            parts.push(format!("{} in memory", bytes(rss)));
        }
        parts.join(", ")
    }
}

/// A number of bytes for people, in powers of 1000.
pub(crate) fn bytes(count: u64) -> String {
    match count as f64 {
        count if count >= 1e12 => format!("{:.2} TB", count / 1e12),
        count if count >= 1e9 => format!("{:.2} GB", count / 1e9),
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count => format!("{:.1} KB", count / 1e3),
    }
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_readable() {
        assert_eq!((bytes(1_560_936_091_448).as_str(), bytes(900_000).as_str()), ("1.56 TB", "900.0 KB"));
        assert_eq!((duration(59.6).as_str(), duration(3723.0).as_str()), ("1:00", "1:02:03"));
    }

    #[test]
    fn the_line_tells_of_the_prompt_first_and_of_tokens_later() {
        let mut progress =
            Progress { start: Instant::now(), prompt: (3, 9), layer: (2, 93), tokens: 0, first: None };
        let line = progress.line(134_600_000_000);
        assert!(line.starts_with("prompt 3/9 tokens, layer 2/93, 0:00 left, 134.60 GB read"), "{line}");
        (progress.tokens, progress.first) = (2, Some(Instant::now()));
        assert!(progress.line(0).starts_with("2 tokens, 0.0"));
    }
}
