//! A model behind a handle: folder, engine, tokenizer.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use kimi_kernels::Isa;
use kimi_model::config::AttentionKind;
use kimi_model::open::open;
use kimi_model::session::KV_BLOCK;
use kimi_model::{
    Arith, Config, Engine, Error as ModelError, GenerationConfig, KvFormat, Model, ModelFiles, Plan,
    ReadCounter,
};
use kimi_paging::{Backend, Budget, Error as PagingError, Executor, MmapSource, ReadStats, Source};
use kimi_text::Tokenizer;

use crate::conversation::Conversation;
use crate::error::Error;
use crate::handle::{Handled, Kind};
use crate::lock::{Held, Lock};
use crate::options::ModelOptions;

/// A model that is ready to run.
#[derive(Debug)]
pub(crate) struct LoadedModel {
    pub(crate) path: PathBuf,
    pub(crate) model: Arc<Model>,
    /// Tokens that end a generation: those of `generation_config.json`, or else of `config.json`.
    pub(crate) eos_token_ids: Vec<u32>,
    /// What never changes about the engine, readable while it runs.
    pub(crate) facts: Facts,
    pub(crate) work: Mutex<Work>,
    engine: Lock<Engine>,
    tokenizer: Option<Arc<Tokenizer>>,
    /// What `kimi_generate_next_token` goes on from.
    last: Lock<Conversation>,
}

impl Handled for LoadedModel {
    const KIND: Kind = Kind::Model;
}

impl Handled for Tokenizer {
    const KIND: Kind = Kind::Tokenizer;
}

/// How the engine was made.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) plan: Plan,
    pub(crate) budget: Budget,
    pub(crate) counter: ReadCounter,
    pub(crate) fallbacks: Vec<String>,
    pub(crate) backend: Backend,
    pub(crate) executor: Executor,
    pub(crate) threads: usize,
    pub(crate) isa: Isa,
    pub(crate) arith: Arith,
    pub(crate) kv: KvFormat,
}

/// What the engine has done up to the end of the last call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) passes: u64,
    /// Tokens that passes computed.
    pub(crate) tokens: u64,
    pub(crate) reads: ReadStats,
}

impl LoadedModel {
    pub(crate) fn open(path: PathBuf, options: &ModelOptions) -> Result<Self, Error> {
        let model = Arc::new(open(&path, options.io, options.ram_bytes, map)?);
        let files = ModelFiles::open(&path)?;
        // A model without a vocabulary takes ids.
        let tokenizer = files.tokenizer()?.map(Arc::new);
        let config = model.config();
        let maker = GenerationConfig::open(&files, config.vocab_size).map_err(ModelError::from)?;
        let eos_token_ids =
            if maker.eos_token_ids.is_empty() { config.eos_token_ids.clone() } else { maker.eos_token_ids };
        let positions = positions(model.config(), options)?;
        let engine = Engine::new(model.clone(), &options.engine(positions))?;
        let facts = Facts {
            plan: engine.plan().clone(),
            budget: engine.budget().clone(),
            counter: engine.read_counter(),
            fallbacks: engine.read_fallbacks(),
            backend: engine.backend(),
            executor: engine.read_settings().executor,
            threads: engine.threads(),
            isa: engine.isa(),
            arith: engine.arith(),
            kv: options.kv,
        };
        Ok(Self {
            path,
            model,
            eos_token_ids,
            facts,
            work: Mutex::default(),
            engine: Lock::new("model", engine),
            tokenizer,
            last: Lock::new("model", Conversation::rewinding()),
        })
    }

    /// The engine, once nobody else uses it.
    pub(crate) fn engine(&self) -> Result<Working<'_>, Error> {
        Ok(Working { engine: self.engine.lock()?, work: &self.work, passes: 0, tokens: 0 })
    }

    pub(crate) fn tokenizer(&self) -> Result<&Arc<Tokenizer>, Error> {
        self.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer { path: self.path.clone() })
    }

    pub(crate) fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// The token of the largest logit after `ids`. What an earlier call computed of them is not computed again.
    pub(crate) fn next_token(&self, ids: &[u32]) -> Result<u32, Error> {
        let mut last = self.last.lock()?;
        last.next_token(&mut self.engine()?, ids, &AtomicBool::new(false))
    }
}

/// An engine at work. What it did is noted when it is given back.
#[derive(Debug)]
pub(crate) struct Working<'a> {
    pub(crate) engine: Held<'a, Engine>,
    work: &'a Mutex<Work>,
    passes: u64,
    tokens: u64,
}

impl Working<'_> {
    pub(crate) fn count(&mut self, passes: usize, tokens: usize) {
        self.passes += passes as u64;
        self.tokens += tokens as u64;
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.passes += self.passes;
        work.tokens += self.tokens;
        work.reads = self.engine.read_stats();
    }
}

/// Opens the tokenizer of a model.
pub(crate) fn open_tokenizer(path: &Path) -> Result<Tokenizer, Error> {
    let tokenizer = ModelFiles::open(path)?.tokenizer()?;
    tokenizer.ok_or_else(|| Error::NoTokenizer { path: path.to_path_buf() })
}

/// Positions of a session: what was asked for, what the model knows, what the KV cache may hold.
fn positions(config: &Config, options: &ModelOptions) -> Result<usize, Error> {
    let positions = options.context.min(config.max_position_embeddings);
    let Some(bytes) = options.kv_bytes else { return Ok(positions) };
    let row_bytes = config.attention_layers(AttentionKind::Mla) * options.kv.row_bytes(config.mla.row());
    let block_bytes = (row_bytes * KV_BLOCK) as u64;
    match bytes.checked_div(block_bytes) {
        // No layer keeps a row for each position.
        None => Ok(positions),
        Some(0) => Err(Error::KvCache { bytes, block_bytes }),
        Some(blocks) => {
            let room = usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(KV_BLOCK);
            Ok(positions.min(room))
        }
    }
}

#[expect(unsafe_code, reason = "mapping is opted into by the caller with the option io=mmap")]
fn map(path: &Path) -> Result<Arc<dyn Source>, PagingError> {
    // SAFETY: the option is the caller's word that nobody changes the files while they are used; the header says so.
    Ok(Arc::new(unsafe { MmapSource::open(path)? }))
}
