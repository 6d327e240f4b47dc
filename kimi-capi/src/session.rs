//! A session behind a handle.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use kimi_model::{FinishReason, GenerateOptions, Listener, Observer};

use crate::api::types::kimi_token_fn;
use crate::conversation::Conversation;
use crate::error::Error;
use crate::handle::{Handled, Kind};
use crate::lock::Lock;
use crate::model::LoadedModel;

/// One conversation with a model. It keeps the model alive.
#[derive(Debug)]
pub(crate) struct LoadedSession {
    pub(crate) model: Arc<LoadedModel>,
    pub(crate) state: Lock<Conversation>,
    cancel: Cancel,
}

impl Handled for LoadedSession {
    const KIND: Kind = Kind::Session;
}

impl LoadedSession {
    pub(crate) fn new(model: Arc<LoadedModel>) -> Self {
        let state = Lock::new("session", Conversation::default());
        Self { model, state, cancel: Cancel::default() }
    }

    /// Stops what runs, and refuses what would run, until it is taken back.
    pub(crate) fn cancel(&self, on: bool) {
        self.cancel.wanted.store(on, Ordering::SeqCst);
        if on {
            self.cancel.now.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn feed(&self, ids: &[u32]) -> Result<(), Error> {
        let mut state = self.state.lock()?;
        let mut working = self.model.engine()?;
        state.feed(&mut working, ids, self.cancel.begin())
    }

    /// Generates; `callback` hears of every token.
    pub(crate) fn generate(
        &self,
        ids: &[u32],
        options: &GenerateOptions,
        callback: kimi_token_fn,
        user: *mut c_void,
    ) -> Result<(usize, FinishReason), Error> {
        let mut state = self.state.lock()?;
        let mut working = self.model.engine()?;
        let cancel = self.cancel.begin();
        let mut options = options.clone();
        options.eos_token_ids = Some(self.model.eos_token_ids.clone());
        let tokenizer = self.model.tokenizer().ok().map(Arc::as_ref);
        let mut listener = Callback { callback, user: AtomicPtr::new(user), stop: cancel, text: Vec::new() };
        let generation = state.generate(&mut working, ids, &options, (tokenizer, cancel), &mut listener)?;
        Ok((generation.ids.len(), generation.finish))
    }
}

/// Two flags: what the user wants, and what the call under way shall do. A callback that stops its generation sets the
/// second only.
#[derive(Debug, Default)]
struct Cancel {
    wanted: AtomicBool,
    now: AtomicBool,
}

impl Cancel {
    /// The flag of a call that begins.
    fn begin(&self) -> &AtomicBool {
        // In this order: a wish that comes between the two lines is seen by the second one, a later one sets `now` itself.
        self.now.store(false, Ordering::SeqCst);
        if self.wanted.load(Ordering::SeqCst) {
            self.now.store(true, Ordering::SeqCst);
        }
        &self.now
    }
}

/// Hands tokens to C.
struct Callback<'a> {
    callback: kimi_token_fn,
    /// A pointer that is only passed on.
    user: AtomicPtr<c_void>,
    stop: &'a AtomicBool,
    /// The text with a NUL behind it.
    text: Vec<u8>,
}

impl Callback<'_> {
    #[expect(unsafe_code, reason = "calls the function that the caller gave")]
    fn call(&mut self, id: c_int, text: &str) {
        let Some(callback) = self.callback else { return };
        self.text.clear();
        self.text.extend_from_slice(text.as_bytes());
        self.text.push(0);
        let user = self.user.load(Ordering::Relaxed);
        // SAFETY: the function and what it does with `user` are the caller's word; the text ends with NUL, is `text.len()`
        // bytes long before it, and outlives the call.
        let stop = unsafe { callback(user, id, self.text.as_ptr().cast::<c_char>(), text.len()) };
        if stop != 0 {
            self.stop.store(true, Ordering::SeqCst);
        }
    }
}

impl Observer for Callback<'_> {}

impl Listener for Callback<'_> {
    fn token(&mut self, id: u32, text: &str) {
        // Ids are below the size of the vocabulary, which is far below the largest int.
        self.call(c_int::try_from(id).unwrap_or(c_int::MAX), text);
    }

    fn rest(&mut self, text: &str) {
        if !text.is_empty() {
            self.call(-1, text);
        }
    }
}
