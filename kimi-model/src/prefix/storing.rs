//! Storing prefixes while a prompt is read.

use super::PrefixCache;
use crate::engine::Engine;
use crate::error::Error;
use crate::generate::Listener;
use crate::pass::Observer;
use crate::sampler::Sampled;
use crate::session::Session;

/// A listener that stores the session at every checkpoint and passes all it hears on to another one.
///
/// A session that cannot be stored does not end the generation; [`finish`](Self::finish) tells.
pub struct Storing<'a> {
    listener: &'a mut dyn Listener,
    cache: Option<&'a PrefixCache>,
    /// What the session had read before this generation.
    before: Vec<u32>,
    problem: Option<Error>,
}

impl<'a> Storing<'a> {
    /// Stores into a cache, if there is one. `before` are the tokens that the session has read when the generation begins.
    pub fn new(listener: &'a mut dyn Listener, cache: Option<&'a PrefixCache>, before: &[u32]) -> Self {
        Self { listener, cache, before: before.to_vec(), problem: None }
    }

    /// The first thing that kept a session from being stored.
    pub fn finish(self) -> Option<Error> {
        self.problem
    }
}

impl std::fmt::Debug for Storing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storing")
            .field("cache", &self.cache)
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

impl Observer for Storing<'_> {
    fn layer(&mut self, layer: usize, layers: usize, sums: &[f32]) {
        self.listener.layer(layer, layers, sums);
    }

    fn experts(&mut self, layer: usize, ids: &[u32], weights: &[f32]) {
        self.listener.experts(layer, ids, weights);
    }
}

impl Listener for Storing<'_> {
    fn prompt(&mut self, done: usize, total: usize) {
        self.listener.prompt(done, total);
    }

    fn checkpoint(&mut self, engine: &Engine, session: &Session, read: &[u32]) {
        if let Some(cache) = self.cache {
            let tokens = [&self.before, read].concat();
            if let Err(error) = cache.store(engine, session, &tokens) {
                self.problem.get_or_insert(error);
            }
        }
        self.listener.checkpoint(engine, session, read);
    }

    fn sampled(&mut self, sampled: &Sampled<'_>) {
        self.listener.sampled(sampled);
    }

    fn token(&mut self, id: u32, text: &str) {
        self.listener.token(id, text);
    }

    fn rest(&mut self, text: &str) {
        self.listener.rest(text);
    }
}
