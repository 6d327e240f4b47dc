//! A prompt in, tokens out: prefill in wide passes, then one token at a time.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kimi_text::{Flagged, StopMatcher, TextStream, TokenId, Tokenizer};

use crate::dump::LogitDump;
use crate::engine::Engine;
use crate::error::Error;
use crate::pass::{Logits, Observer, PassOptions};
use crate::sampler::{Logprobs, Sampled, Sampler, SamplerOptions};
use crate::session::Session;
use crate::transcript::Transcript;

/// What to generate and when to stop.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Texts that end the generation and are not part of it. They need a tokenizer.
    pub stop: Vec<String>,
    /// Tokens that end the generation; `None` takes those of `config.json`.
    pub eos_token_ids: Option<Vec<u32>>,
    /// Go on after an end token.
    pub ignore_eos: bool,
    /// The most tokens of a pass over the prompt; 0 takes as many as the engine allows.
    pub chunk: usize,
    /// Positions of the session, within the prompt, at which a pass ends and [`Listener::checkpoint`] is called. At the end of the prompt
    /// it always is.
    pub checkpoints: Vec<usize>,
    /// The same at every multiple of this number of positions; 0 at none.
    pub checkpoint_every: usize,
}

impl GenerateOptions {
    /// The first checkpoint behind a position.
    fn checkpoint_behind(&self, position: usize) -> usize {
        let every = position
            .checked_div(self.checkpoint_every)
            .map(|count| (count + 1).saturating_mul(self.checkpoint_every));
        let listed = self.checkpoints.iter().copied().filter(|&at| at > position).min();
        every.unwrap_or(usize::MAX).min(listed.unwrap_or(usize::MAX))
    }
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampler: SamplerOptions::default(),
            stop: Vec::new(),
            eos_token_ids: None,
            ignore_eos: false,
            chunk: 0,
            checkpoints: Vec::new(),
            checkpoint_every: 0,
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose one of its end tokens.
    Eos,
    /// A stop text came up.
    Stop,
    /// All tokens that were asked for are there.
    Length,
    /// The context is full.
    Context,
    /// Somebody asked for the end.
    Cancelled,
}

impl FinishReason {
    /// The name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Hears of a generation while it runs.
pub trait Listener: Observer {
    /// `done` of `total` prompt tokens have been read.
    fn prompt(&mut self, done: usize, total: usize) {
        let _ = (done, total);
    }

    /// The session stands at a checkpoint ([`GenerateOptions::checkpoints`]) or at the end of the prompt. `read` are the tokens that this
    /// generation has read so far.
    fn checkpoint(&mut self, engine: &Engine, session: &Session, read: &[u32]) {
        let _ = (engine, session, read);
    }

    /// A token was chosen; [`token`](Self::token) follows.
    fn sampled(&mut self, sampled: &Sampled<'_>) {
        let _ = sampled;
    }

    /// A token was chosen. `text` is what became certain with it: whole characters that are not part of a stop text.
    fn token(&mut self, id: u32, text: &str) {
        let _ = (id, text);
    }

    /// The last of the text, once it is certain that nothing follows.
    fn rest(&mut self, text: &str) {
        let _ = text;
    }
}

impl Listener for () {}

/// A finished generation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Generation {
    /// The generated ids, an end token included.
    pub ids: Vec<u32>,
    /// Their log-probabilities, when [`SamplerOptions::logprobs`] asks for them.
    pub logprobs: Option<Logprobs>,
    /// Their text, without stop text; empty without a tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// Time for the prompt.
    pub prefill: Duration,
    /// Time for everything after it.
    pub decode: Duration,
    /// Passes over the model.
    pub passes: usize,
}

impl Generation {
    /// Seconds for each token after the first, which the prompt's last pass gave; `None` when there is only that one.
    pub fn decode_seconds_per_token(&self) -> Option<f64> {
        let after_first = self.ids.len().checked_sub(1).filter(|&count| count > 0)?;
        Some(self.decode.as_secs_f64() / after_first as f64)
    }
}

/// Generates from a prompt. The session goes on from where it stands and holds the prompt and all generated tokens but the
/// last afterwards.
///
/// # Errors
/// [`Error::EmptyPrompt`], [`Error::StopText`], [`Error::Sampler`], and whatever a pass can fail with, but cancellation: that is a
/// [`FinishReason`].
pub fn generate(
    engine: &mut Engine,
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
    means: (Option<&Tokenizer>, &AtomicBool),
    dump: Option<&mut LogitDump>,
    listener: &mut dyn Listener,
) -> Result<Generation, Error> {
    // What the session has read before is not known here, and stays out of the transcript.
    let mut transcript = Transcript::new();
    go_on(engine, (session, &mut transcript, 0), prompt, options, means, dump, listener)
}

/// Generates as [`generate`] does, with a transcript: first what is pending in it is read, then the prompt, which may be empty if
/// anything is pending. The transcript has all tokens afterwards, also after an error.
///
/// Penalties count the tokens of the transcript, and random numbers go on where it says if the seed is the same. So a generation in
/// parts gives the tokens of one that was never interrupted.
///
/// # Errors
/// As [`generate`], and [`Error::Transcript`] when the session has read more tokens than the transcript has.
pub fn resume(
    engine: &mut Engine,
    (session, transcript): (&mut Session, &mut Transcript),
    prompt: &[u32],
    options: &GenerateOptions,
    means: (Option<&Tokenizer>, &AtomicBool),
    dump: Option<&mut LogitDump>,
    listener: &mut dyn Listener,
) -> Result<Generation, Error> {
    let read = session.position();
    transcript.pending(read)?;
    go_on(engine, (session, transcript, read), prompt, options, means, dump, listener)
}

/// Generates after the first `read` tokens of a transcript.
fn go_on(
    engine: &mut Engine,
    (session, transcript, read): (&mut Session, &mut Transcript, usize),
    prompt: &[u32],
    options: &GenerateOptions,
    (tokenizer, cancel): (Option<&Tokenizer>, &AtomicBool),
    mut dump: Option<&mut LogitDump>,
    listener: &mut dyn Listener,
) -> Result<Generation, Error> {
    let unread = transcript.tokens().len() - read + prompt.len();
    if unread == 0 {
        return Err(Error::EmptyPrompt);
    }
    let (capacity, position) = (session.capacity(), session.position());
    if unread > capacity - position {
        return Err(Error::ContextFull { capacity, position, tokens: unread });
    }
    let mut text = Text::new(tokenizer, &options.stop)?;
    let mut sampler = Sampler::new(&options.sampler, engine.model().config().vocab_size)?;
    if let Some(random) = transcript.random() {
        sampler.continue_random(random);
    }
    transcript.give(prompt);
    sampler.history(transcript.tokens().iter().copied().zip(transcript.sampled().iter().copied()));
    let prompt = transcript.tokens()[read..].to_vec();
    let mut run = Run { engine, session, cancel, logits: Vec::new(), passes: 0 };
    let start = Instant::now();
    let prefilled = run.prompt(&prompt, options, dump.as_deref_mut(), listener);
    let prefill = start.elapsed();
    let (mut chosen, start) = (Chosen::new(options), Instant::now());
    let finish =
        prefilled.and_then(|()| run.tokens(options, &mut sampler, &mut text, dump, listener, &mut chosen));
    chosen.ids.iter().for_each(|&id| transcript.sample(id));
    transcript.set_random(sampler.random());
    let finish = match finish {
        Ok(finish) => finish,
        Err(Error::Cancelled) => FinishReason::Cancelled,
        Err(error) => return Err(error),
    };
    listener.rest(text.finish());
    let (passes, Chosen { ids, logprobs }) = (run.passes, chosen);
    Ok(Generation { ids, logprobs, text: text.all, finish, prefill, decode: start.elapsed(), passes })
}

/// The tokens so far.
struct Chosen {
    ids: Vec<u32>,
    logprobs: Option<Logprobs>,
}

impl Chosen {
    fn new(options: &GenerateOptions) -> Self {
        Self { ids: Vec::new(), logprobs: options.sampler.logprobs.map(|_| Logprobs::default()) }
    }

    fn push(&mut self, sampled: &Sampled<'_>) {
        self.ids.push(sampled.id);
        if let (Some(logprobs), Some(logprob)) = (&mut self.logprobs, sampled.logprob) {
            logprobs.push(logprob, sampled.top);
        }
    }
}

/// A generation under way.
struct Run<'a> {
    engine: &'a mut Engine,
    session: &'a mut Session,
    cancel: &'a AtomicBool,
    /// Those that choose the next token.
    logits: Vec<f32>,
    passes: usize,
}

impl Run<'_> {
    fn prompt(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        mut dump: Option<&mut LogitDump>,
        listener: &mut dyn Listener,
    ) -> Result<(), Error> {
        let chunk = match options.chunk {
            0 => self.engine.max_columns(),
            chunk => chunk.min(self.engine.max_columns()),
        };
        let (mut done, start) = (0, self.session.position());
        while done < prompt.len() {
            let checkpoint = options.checkpoint_behind(start + done);
            let width = chunk.min(prompt.len() - done).min(checkpoint - start - done);
            let tokens = &prompt[done..done + width];
            done += width;
            let last = done == prompt.len();
            let more = !last || options.max_tokens > 1;
            let logits = match &mut dump {
                Some(dump) => {
                    dump.expect(tokens.len());
                    Logits::Each(*dump)
                }
                None if last => Logits::Last,
                None => Logits::None,
            };
            self.pass(tokens, logits, more, listener)?;
            if let Some(dump) = &mut dump {
                self.logits.clear();
                self.logits.extend_from_slice(dump.last_column());
            }
            listener.prompt(done, prompt.len());
            if last || start + done == checkpoint {
                listener.checkpoint(self.engine, self.session, &prompt[..done]);
            }
        }
        Ok(())
    }

    fn tokens(
        &mut self,
        options: &GenerateOptions,
        sampler: &mut Sampler,
        text: &mut Text<'_>,
        mut dump: Option<&mut LogitDump>,
        listener: &mut dyn Listener,
        chosen: &mut Chosen,
    ) -> Result<FinishReason, Error> {
        let eos = match &options.eos_token_ids {
            Some(ids) => ids.clone(),
            None => self.engine.model().config().eos_token_ids.clone(),
        };
        while chosen.ids.len() < options.max_tokens {
            let sampled = sampler.sample(&self.logits)?;
            if let Some(dump) = &mut dump {
                dump.generated(&self.logits).map_err(Error::Sink)?;
            }
            chosen.push(&sampled);
            listener.sampled(&sampled);
            let id = sampled.id;
            if !options.ignore_eos && eos.contains(&id) {
                listener.token(id, "");
                return Ok(FinishReason::Eos);
            }
            let (certain, stopped) = text.push(id)?;
            listener.token(id, certain);
            if stopped {
                return Ok(FinishReason::Stop);
            }
            if chosen.ids.len() == options.max_tokens {
                break;
            }
            if self.session.position() == self.session.capacity() {
                return Ok(FinishReason::Context);
            }
            let more = chosen.ids.len() + 1 < options.max_tokens;
            self.pass(&[id], Logits::Last, more, listener)?;
        }
        Ok(FinishReason::Length)
    }

    /// Computes and commits one pass and keeps its logits.
    fn pass(
        &mut self,
        tokens: &[u32],
        logits: Logits<'_>,
        more: bool,
        listener: &mut dyn Listener,
    ) -> Result<(), Error> {
        let last = matches!(logits, Logits::Last);
        let mut watch = Watch(listener);
        #[expect(clippy::needless_match, reason = "the sink's borrow becomes as short as the observer's")]
        let logits = match logits {
            Logits::Each(sink) => Logits::Each(sink),
            Logits::Last => Logits::Last,
            Logits::None => Logits::None,
        };
        let options = PassOptions { logits, more, cancel: Some(self.cancel), observer: Some(&mut watch) };
        let pass = self.engine.forward(self.session, tokens, options)?;
        self.passes += 1;
        if last {
            self.logits.clear();
            self.logits.extend_from_slice(pass.logits());
        }
        pass.commit(tokens.len())
    }
}

/// Passes what an observer sees on to a listener.
struct Watch<'a>(&'a mut dyn Listener);

impl Observer for Watch<'_> {
    fn layer(&mut self, layer: usize, layers: usize, sums: &[f32]) {
        self.0.layer(layer, layers, sums);
    }

    fn experts(&mut self, layer: usize, ids: &[u32], weights: &[f32]) {
        self.0.experts(layer, ids, weights);
    }
}

/// The text of the generated ids, free of stop texts.
struct Text<'a> {
    stream: Option<(TextStream<&'a Tokenizer>, StopMatcher)>,
    all: String,
}

impl<'a> Text<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>, stop: &[String]) -> Result<Self, Error> {
        if tokenizer.is_none() && !stop.is_empty() {
            return Err(Error::StopText { reason: "they need a tokenizer, and the model folder has none" });
        }
        let matcher = StopMatcher::new(stop.iter().cloned())
            .map_err(|_| Error::StopText { reason: "an empty one would stop at once" })?;
        let stream = tokenizer.map(|tokenizer| (TextStream::new(tokenizer, Flagged::Hide), matcher));
        Ok(Self { stream, all: String::new() })
    }

    /// The text that a token makes certain, and whether a stop text ended it.
    fn push(&mut self, id: u32) -> Result<(&str, bool), Error> {
        let start = self.all.len();
        let mut stopped = false;
        if let Some((stream, matcher)) = &mut self.stream {
            let passed = matcher.push(stream.push(TokenId(id))?);
            self.all.push_str(passed.text);
            stopped = passed.stop.is_some();
        }
        Ok((&self.all[start..], stopped))
    }

    /// Whatever was held back.
    fn finish(&mut self) -> &str {
        let start = self.all.len();
        if let Some((stream, matcher)) = &mut self.stream {
            self.all.push_str(matcher.push(stream.finish()).text);
            self.all.push_str(matcher.finish());
        }
        &self.all[start..]
    }
}
