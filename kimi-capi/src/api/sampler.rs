//! Choosing tokens.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard};

use ::kimi_model::{Error as ModelError, Sampler};

use crate::api::options::generate_options;
use crate::api::types::{kimi_model, kimi_options, kimi_sampler};
use crate::error::Error;
use crate::handle::{self, Handled, Kind};
use crate::model::LoadedModel;
use crate::pointer;
use crate::status::{call, free};

/// A sampler behind a handle.
#[derive(Debug)]
pub(crate) struct SharedSampler {
    vocab_size: usize,
    sampler: Mutex<Sampler>,
}

impl Handled for SharedSampler {
    const KIND: Kind = Kind::Sampler;
}

impl SharedSampler {
    /// Chooses a token.
    pub(crate) fn sample(&self, logits: &[f32]) -> Result<u32, Error> {
        if logits.len() != self.vocab_size {
            let reason = format!("are {}, the sampler is for {}", logits.len(), self.vocab_size);
            return Err(Error::argument("logits", reason));
        }
        let mut sampler = self.lock()?;
        Ok(sampler.sample(logits).map_err(ModelError::from)?.id)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Sampler>, Error> {
        self.sampler.lock().map_err(|_| Error::Poisoned { what: Kind::Sampler.name() })
    }
}

/// A sampler for a model, with the temperature, filters, penalties and seed of `options`; without them, which may be NULL, it is
/// greedy. NULL is an error.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_sampler_new(
    model: *const kimi_model,
    options: *const kimi_options,
) -> *mut kimi_sampler {
    call(|| {
        let vocab_size = handle::get::<LoadedModel, _>(model)?.model.config().vocab_size;
        let sampler = Sampler::new(&generate_options(options)?.sampler, vocab_size);
        let sampler = Mutex::new(sampler.map_err(ModelError::from)?);
        handle::insert(Arc::new(SharedSampler { vocab_size, sampler }))
    })
}

/// Frees a sampler. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_sampler_free(sampler: *mut kimi_sampler) {
    free(|| handle::remove::<SharedSampler, _>(sampler));
}

/// Tells of tokens that were given and not sampled, which the repetition penalty counts.
///
/// # Safety
/// `tokens` is null or points to `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_sampler_prompt(
    sampler: *mut kimi_sampler,
    tokens: *const c_int,
    n: c_int,
) -> c_int {
    call(|| {
        let sampler = handle::get::<SharedSampler, _>(sampler)?;
        // SAFETY: as the caller promises.
        let ids = unsafe { pointer::ids(tokens, n)? };
        let vocab_size = sampler.vocab_size;
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(ModelError::Token { id, vocab_size }.into());
        }
        sampler.lock()?.prompt(&ids);
        Ok(0)
    })
}

/// Chooses from `n` logits, one for each entry of the vocabulary. Below 0 is an error.
///
/// # Safety
/// `logits` is null or points to `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_sampler_sample(
    sampler: *mut kimi_sampler,
    logits: *const f32,
    n: c_int,
) -> c_int {
    call(|| {
        let sampler = handle::get::<SharedSampler, _>(sampler)?;
        // SAFETY: as the caller promises.
        let logits = unsafe { pointer::slice("logits", logits, pointer::len("n", n)?)? };
        Ok(sampler.sample(logits)?.cast_signed())
    })
}
