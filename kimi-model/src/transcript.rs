//! The tokens of a session, and what else a generation needs to go on exactly where it stood.

use crate::error::Error;
use crate::sampler::RandomState;

/// The tokens that were given and generated, and where the random numbers of sampling stand.
///
/// The first [`Session::position`](crate::Session::position) tokens are those that the session has read. Those behind them are
/// *pending*: the last generated token, or the rest of a prompt that was interrupted. They are read first when a generation goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transcript {
    tokens: Vec<u32>,
    sampled: Vec<bool>,
    random: Option<RandomState>,
}

impl Transcript {
    /// That of an empty session.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn from_parts(tokens: Vec<u32>, sampled: Vec<bool>, random: Option<RandomState>) -> Self {
        assert_eq!(tokens.len(), sampled.len(), "one mark per token");
        Self { tokens, sampled, random }
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether each token was sampled (and not given), which the penalties tell apart.
    pub fn sampled(&self) -> &[bool] {
        &self.sampled
    }

    /// Where the random numbers stand; `None` before anything was generated.
    pub fn random(&self) -> Option<RandomState> {
        self.random
    }

    /// The tokens that a session at `position` has not read yet.
    ///
    /// # Errors
    /// [`Error::Transcript`] when the session has read more tokens than there are here.
    pub fn pending(&self, position: usize) -> Result<&[u32], Error> {
        self.tokens.get(position..).ok_or(Error::Transcript { tokens: self.tokens.len(), position })
    }

    /// Adds tokens that were given.
    pub fn give(&mut self, ids: &[u32]) {
        self.tokens.extend_from_slice(ids);
        self.sampled.resize(self.tokens.len(), false);
    }

    /// Adds a token that was sampled.
    pub(crate) fn sample(&mut self, id: u32) {
        self.tokens.push(id);
        self.sampled.push(true);
    }

    pub(crate) fn set_random(&mut self, random: RandomState) {
        self.random = Some(random);
    }
}
