//! Five functions that do for a program which keeps its own tokens, and what says how a call ended.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use ::kimi_text::{Specials, TokenId};

use crate::api::text::tokenizer;
use crate::error::Error;
use crate::handle;
use crate::model::LoadedModel;
use crate::options::ModelOptions;
use crate::pointer;
use crate::status::{Done, Status, call, free, last_error, last_status};

/// Loads the model in a folder. NULL is an error.
///
/// # Safety
/// `path` is null or points to a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_load_model(
    path: *const c_char,
    max_seq_len: c_int,
    kv_cache_gb: f32,
    n_threads: c_int,
) -> *mut c_void {
    call(|| {
        // SAFETY: as the caller promises.
        let path = unsafe { pointer::path("path", path)? };
        let options = load_options(max_seq_len, kv_cache_gb, n_threads)?;
        handle::erased(Arc::new(LoadedModel::open(path, &options)?))
    })
}

/// What the numbers of `kimi_load_model` mean: 0 and below is the default.
fn load_options(max_seq_len: c_int, kv_cache_gb: f32, n_threads: c_int) -> Result<ModelOptions, Error> {
    let mut options = ModelOptions::default();
    let positive = |number: c_int| usize::try_from(number).ok().filter(|&number| number > 0);
    options.context = positive(max_seq_len).unwrap_or(options.context);
    options.threads = positive(n_threads);
    if kv_cache_gb.is_nan() {
        return Err(Error::argument("kv_cache_gb", "is not a number"));
    }
    // A number too large for the type becomes the largest, which is no bound.
    options.kv_bytes = (kv_cache_gb > 0.0).then(|| (f64::from(kv_cache_gb) * 1e9) as u64);
    Ok(options)
}

/// Frees a model, however it was opened. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_free_model(model: *mut c_void) {
    free(|| handle::remove::<LoadedModel, _>(model));
}

/// The ids of a text. 0 and below is an error, or the empty text.
///
/// # Safety
/// `text` is null or points to a text that ends with NUL; `tokens` is null or has room for `max_tokens` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_tokenize(
    model: *mut c_void,
    text: *const c_char,
    tokens: *mut c_int,
    max_tokens: c_int,
) -> c_int {
    call(|| {
        let tokenizer = tokenizer(model)?;
        // SAFETY: as the caller promises.
        let text = unsafe { pointer::text("text", text)? };
        let ids = tokenizer.encode(text, Specials::AsText);
        let ids: Vec<c_int> = ids.into_iter().map(|TokenId(id)| id.cast_signed()).collect();
        // SAFETY: as the caller promises.
        unsafe { pointer::write("tokens", "tokens", &ids, tokens, max_tokens) }
    })
}

/// The most probable token after all of `tokens`. 0 is an end token when the status says so; errors are below 0.
///
/// # Safety
/// `tokens` is null or points to `n` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_generate_next_token(
    model: *mut c_void,
    tokens: *const c_int,
    n: c_int,
) -> c_int {
    call(|| {
        let model = handle::get::<LoadedModel, _>(model)?;
        // SAFETY: as the caller promises.
        let ids = unsafe { pointer::ids(tokens, n)? };
        let id = model.next_token(&ids)?;
        Ok(if model.eos_token_ids.contains(&id) {
            Done(0, Status::EndOfSequence)
        } else {
            Done(id.cast_signed(), Status::Ok)
        })
    })
}

/// The bytes of a token and a NUL. 0 and below is an error.
///
/// # Safety
/// `buf` is null or has room for `cap` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_detokenize(
    model: *mut c_void,
    token: c_int,
    buf: *mut c_char,
    cap: c_int,
) -> c_int {
    call(|| {
        let tokenizer = tokenizer(model)?;
        let id = pointer::id("token", token)?;
        let bytes = tokenizer.token_bytes(TokenId(id))?;
        // SAFETY: as the caller promises.
        unsafe { pointer::write_text(bytes, buf, cap) }
    })
}

/// How this thread's last call ended: a value of `enum kimi_status`.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_last_status() -> c_int {
    last_status()
}

/// What was wrong with this thread's last call; empty if nothing was. Good until its next call.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_last_error() -> *const c_char {
    last_error()
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
