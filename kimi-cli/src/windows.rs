//! A text cut into windows, and the engines that read them.

use std::path::Path;

use kimi_model::{Engine, Model};
use kimi_text::{Specials, TokenId};

use crate::args::EngineArgs;
use crate::exit::Usage;
use crate::{source, text};

/// The tokens of a text, and its size.
pub(crate) struct Tokens {
    pub(crate) ids: Vec<u32>,
    pub(crate) text_bytes: usize,
}

impl Tokens {
    /// Reads a text with the tokenizer of a model.
    pub(crate) fn read(dir: Option<&Path>, file: &Path) -> anyhow::Result<Self> {
        let bytes = text::read(file, false)?;
        let tokenizer = source::require_tokenizer(dir)?;
        let ids: Vec<u32> =
            tokenizer.encode(&bytes, Specials::AsText).into_iter().map(|TokenId(id)| id).collect();
        if ids.is_empty() {
            return Err(Usage(format!("{} holds no text", file.display())).into());
        }
        Ok(Self { ids, text_bytes: bytes.len() })
    }

    /// The first `limit` windows of `window` tokens; the last may be shorter.
    pub(crate) fn windows(&self, window: usize, limit: Option<usize>) -> Vec<&[u32]> {
        self.ids.chunks(window).take(limit.unwrap_or(usize::MAX)).collect()
    }
}

/// An engine for windows of a text that gets `ram` bytes; `beside` of a model is what is left of them to the caller.
pub(crate) fn engine(
    dir: Option<&Path>,
    args: &EngineArgs,
    window: usize,
    ram: Option<u64>,
    beside: impl FnOnce(&Model) -> u64,
) -> anyhow::Result<Engine> {
    let model = source::model(dir, args.io, ram)?;
    let mut options = args.options();
    options.ram_bytes = ram;
    options.positions = window;
    options.columns = args.chunk.unwrap_or(window);
    options.read = source::read_settings(&model, args.io, ram)?;
    options.beside_bytes = beside(&model);
    Ok(Engine::new(model, &options)?)
}

/// The token that begins every window.
pub(crate) fn bos(engine: &Engine) -> anyhow::Result<u32> {
    let bos = engine.model().config().bos_token_id;
    Ok(bos.ok_or_else(|| Usage("the model names no beginning-of-sequence token".to_owned()))?)
}
