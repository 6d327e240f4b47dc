//! Sessions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ::kimi_model::FinishReason;

use crate::api::options::generate_options;
use crate::api::sampler::SharedSampler;
use crate::api::types::{kimi_model, kimi_options, kimi_sampler, kimi_session, kimi_token_fn};
use crate::error::Error;
use crate::handle;
use crate::model::LoadedModel;
use crate::pointer;
use crate::session::LoadedSession;
use crate::status::{call, free};

/// An empty session, which keeps its model alive. NULL is an error.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_session_new(model: *mut kimi_model) -> *mut kimi_session {
    call(|| handle::insert(Arc::new(LoadedSession::new(handle::get::<LoadedModel, _>(model)?))))
}

/// Frees a session. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_session_free(session: *mut kimi_session) {
    free(|| handle::remove::<LoadedSession, _>(session));
}

/// Empties a session.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_session_reset(session: *mut kimi_session) -> c_int {
    call(|| {
        get(session)?.state.lock()?.restart();
        Ok(0)
    })
}

/// Tokens that have been computed: all but the last chosen one.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_session_position(session: *const kimi_session) -> c_int {
    call(|| count(get(session)?.state.lock()?.position()))
}

/// The most tokens that can be computed.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_session_capacity(session: *const kimi_session) -> c_int {
    call(|| count(get(session)?.model.facts.plan.positions))
}

/// Appends tokens, after the last chosen one, and computes the logits after them.
///
/// # Safety
/// `tokens` is null or points to `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_session_feed(
    session: *mut kimi_session,
    tokens: *const c_int,
    n: c_int,
) -> c_int {
    call(|| {
        let session = get(session)?;
        // SAFETY: as the caller promises.
        let ids = unsafe { pointer::ids(tokens, n)? };
        session.feed(&ids)?;
        Ok(0)
    })
}

/// The logits after the last fed token: as many as the vocabulary has entries.
///
/// # Safety
/// `logits` is null or has room for `cap` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_session_logits(
    session: *const kimi_session,
    logits: *mut f32,
    cap: c_int,
) -> c_int {
    call(|| {
        let session = get(session)?;
        let state = session.state.lock()?;
        // SAFETY: as the caller promises.
        unsafe { pointer::write("logits", "logits", state.logits()?, logits, cap) }
    })
}

/// Chooses the next token from the logits and appends it; the next feed computes it. Below 0 is an error.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_session_next(session: *mut kimi_session, sampler: *mut kimi_sampler) -> c_int {
    call(|| {
        let session = get(session)?;
        let sampler = handle::get::<SharedSampler, _>(sampler)?;
        let id = session.state.lock()?.choose(|logits| sampler.sample(logits))?;
        Ok(id.cast_signed())
    })
}

/// Appends tokens and generates; `callback`, which may be NULL, hears of every token. Returns the number of generated tokens;
/// below 0 is an error.
///
/// # Safety
/// `tokens` is null or points to `n` numbers; `callback` can be called with `user` as the header says; `finish` is null or has
/// room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_session_generate(
    session: *mut kimi_session,
    tokens: *const c_int,
    n: c_int,
    options: *const kimi_options,
    callback: kimi_token_fn,
    user: *mut c_void,
    finish: *mut c_int,
) -> c_int {
    call(|| {
        let session = get(session)?;
        // SAFETY: as the caller promises.
        let ids = unsafe { pointer::ids(tokens, n)? };
        let (generated, reason) = session.generate(&ids, &generate_options(options)?, callback, user)?;
        // SAFETY: as the caller promises.
        unsafe { pointer::write_one("finish", finish_code(reason), finish)? };
        count(generated)
    })
}

/// While on, calls that compute with this session end soon and later ones at once. May be called from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_session_cancel(session: *mut kimi_session, on: c_int) -> c_int {
    call(|| {
        get(session)?.cancel(on != 0);
        Ok(0)
    })
}

/// The values of `enum kimi_finish` in the header.
fn finish_code(reason: FinishReason) -> c_int {
    match reason {
        FinishReason::Eos => 1,
        FinishReason::Stop => 2,
        FinishReason::Length => 3,
        FinishReason::Context => 4,
        FinishReason::Cancelled => 5,
        _ => 0,
    }
}

fn get(session: *const kimi_session) -> Result<Arc<LoadedSession>, Error> {
    handle::get(session)
}

fn count(count: usize) -> Result<c_int, Error> {
    c_int::try_from(count)
        .map_err(|_| Error::argument("count", format!("{count} is more than an int can hold")))
}
