//! The tokens of one sequence and the model's state after them.

use std::sync::atomic::AtomicBool;

use kimi_model::{
    Engine, Error as ModelError, GenerateOptions, Generation, Listener, Logits, Observer, PassOptions,
    Sampled, Sampler, SamplerOptions, Session, generate,
};
use kimi_text::Tokenizer;

use crate::error::Error;
use crate::model::Working;

/// Tokens between checkpoints that stay, about: one is taken after every pass, and the last gives way to the next that is nearer.
const SPACING: usize = 64;

/// Checkpoints of a conversation, at most.
const MOST: usize = 16;

/// Sessions that there must still be room for besides a checkpoint: this one until it is full, and another.
const SESSIONS_FIRST: u64 = 2;

/// A sequence that grows at its end.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// Made with the first tokens, so that an idle conversation takes no memory.
    session: Option<Session>,
    /// The tokens that the session has been through.
    computed: Vec<u32>,
    /// The last chosen token, computed with whatever follows it.
    pending: Option<u32>,
    /// Those after the last token, or nothing where they are not known.
    logits: Vec<f32>,
    /// Keep checkpoints where there is room for them.
    rewinds: bool,
}

impl Conversation {
    /// A sequence that can go back to what it had in common with another.
    pub(crate) fn rewinding() -> Self {
        Self { rewinds: true, ..Self::default() }
    }

    /// Tokens that have been computed.
    pub(crate) fn position(&self) -> usize {
        self.computed.len()
    }

    /// The logits after the last token.
    pub(crate) fn logits(&self) -> Result<&[f32], Error> {
        if self.logits.is_empty() { Err(Error::NoLogits) } else { Ok(&self.logits) }
    }

    /// Back to the beginning; the memory of the state is given back.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Appends tokens and computes the logits after the last one. The last chosen token goes before them.
    ///
    /// An error leaves the passes before it committed: [`position`](Self::position) tells how far it came.
    pub(crate) fn feed(
        &mut self,
        working: &mut Working<'_>,
        ids: &[u32],
        cancel: &AtomicBool,
    ) -> Result<(), Error> {
        let tokens: Vec<u32> = self.pending.into_iter().chain(ids.iter().copied()).collect();
        if tokens.is_empty() {
            return Err(ModelError::EmptyPrompt.into());
        }
        self.check(working, &tokens)?;
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(working.engine.session()?),
        };
        self.logits.clear();
        let mut done = 0;
        for chunk in tokens.chunks(working.engine.max_columns()) {
            let last = done + chunk.len() == tokens.len();
            let mut options = PassOptions::default();
            options.logits = if last { Logits::Last } else { Logits::None };
            options.more = !last;
            options.cancel = Some(cancel);
            let pass = working.engine.forward(session, chunk, options)?;
            if last {
                self.logits.extend_from_slice(pass.logits());
            }
            pass.commit(chunk.len())?;
            working.count(1, chunk.len());
            self.computed.extend_from_slice(chunk);
            self.pending = None;
            done += chunk.len();
            if self.rewinds {
                checkpoint(session, &working.engine);
            }
        }
        Ok(())
    }

    /// Goes back to where nothing but the first `common` tokens has been computed, as few of them as checkpoints ask for.
    fn rewind(&mut self, common: usize) {
        let position = self.session.as_mut().map_or(0, |session| session.rewind(common));
        if position < self.computed.len() {
            self.computed.truncate(position);
            self.logits.clear();
        }
    }

    /// Refuses tokens that cannot all be computed, before any of them is.
    fn check(&self, working: &Working<'_>, tokens: &[u32]) -> Result<(), Error> {
        let vocab_size = working.engine.model().config().vocab_size;
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(ModelError::Token { id, vocab_size }.into());
        }
        let (capacity, position) = (working.engine.plan().positions, self.position());
        if tokens.len() > capacity - position {
            return Err(ModelError::ContextFull { capacity, position, tokens: tokens.len() }.into());
        }
        Ok(())
    }

    /// Chooses the next token and appends it.
    pub(crate) fn choose(&mut self, sample: impl FnOnce(&[f32]) -> Result<u32, Error>) -> Result<u32, Error> {
        let id = sample(self.logits()?)?;
        self.pending = Some(id);
        Ok(id)
    }

    /// The token of the largest logit after exactly these tokens, computing only those behind the last checkpoint in what they
    /// have in common with those before.
    pub(crate) fn next_token(
        &mut self,
        working: &mut Working<'_>,
        ids: &[u32],
        cancel: &AtomicBool,
    ) -> Result<u32, Error> {
        if ids.is_empty() {
            return Err(ModelError::EmptyPrompt.into());
        }
        // Nothing that is wrong with the tokens may cost what has been computed.
        Self::default().check(working, ids)?;
        let common = ids.iter().zip(&self.computed).take_while(|(new, old)| new == old).count();
        if common < ids.len() {
            self.rewind(common);
        } else if common < self.position() || self.logits.is_empty() {
            // The last token is computed once more for its logits.
            self.rewind(common - 1);
        }
        let new = &ids[self.position()..];
        if !new.is_empty() {
            self.feed(working, new, cancel)?;
        }
        let logits = self.logits()?;
        let mut greedy = Sampler::new(&SamplerOptions::default(), logits.len()).map_err(ModelError::from)?;
        Ok(greedy.sample(logits).map_err(ModelError::from)?.id)
    }

    /// Generates after appending `ids`. All generated tokens are part of the conversation afterwards.
    pub(crate) fn generate(
        &mut self,
        working: &mut Working<'_>,
        ids: &[u32],
        options: &GenerateOptions,
        (tokenizer, cancel): (Option<&Tokenizer>, &AtomicBool),
        listener: &mut dyn Listener,
    ) -> Result<Generation, Error> {
        let mut tokens: Vec<u32> = self.pending.into_iter().chain(ids.iter().copied()).collect();
        self.check(working, &tokens)?;
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(working.engine.session()?),
        };
        self.logits.clear();
        let before = session.position();
        let prompt = tokens.len();
        let mut recorder = Recorder { listener, ids: Vec::new() };
        let means = (tokenizer, cancel);
        let generated = generate(&mut working.engine, session, &tokens, options, means, None, &mut recorder);
        tokens.append(&mut recorder.ids);
        let computed = session.position() - before;
        self.computed.extend_from_slice(&tokens[..computed]);
        if tokens.len() > prompt {
            // The last one has been chosen and not been computed.
            self.pending = tokens[computed..].last().copied();
        } else if computed > 0 {
            self.pending = None;
        }
        let passes = generated.as_ref().map_or(0, |generation| generation.passes);
        working.count(passes, computed);
        Ok(generated?)
    }
}

/// Takes a checkpoint if there is room for it.
fn checkpoint(session: &mut Session, engine: &Engine) {
    let mut kept: Vec<usize> = session.checkpoints().collect();
    if let Some(last) = kept.pop() {
        if last < kept.last().copied().unwrap_or(0) + SPACING {
            session.forget(last);
        } else {
            kept.push(last);
        }
    }
    if kept.len() >= MOST
        && let Some([_, between, _]) = kept.array_windows().min_by_key(|[before, _, after]| after - before)
    {
        session.forget(*between);
    }
    let wanted =
        session.checkpoint_bytes().saturating_add(SESSIONS_FIRST.saturating_mul(engine.session_bytes()));
    if engine.budget().available_bytes() >= wanted {
        // Somebody else may have taken the room, and this is a convenience.
        let _ = session.checkpoint();
    }
}

/// Passes everything on and keeps the ids, which an error would lose.
struct Recorder<'a> {
    listener: &'a mut dyn Listener,
    ids: Vec<u32>,
}

impl Observer for Recorder<'_> {
    fn layer(&mut self, layer: usize, layers: usize, sums: &[f32]) {
        self.listener.layer(layer, layers, sums);
    }

    fn experts(&mut self, layer: usize, ids: &[u32], weights: &[f32]) {
        self.listener.experts(layer, ids, weights);
    }
}

impl Listener for Recorder<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        self.listener.prompt(done, total);
    }

    fn sampled(&mut self, sampled: &Sampled<'_>) {
        self.listener.sampled(sampled);
    }

    fn token(&mut self, id: u32, text: &str) {
        self.ids.push(id);
        self.listener.token(id, text);
    }

    fn rest(&mut self, text: &str) {
        self.listener.rest(text);
    }
}
