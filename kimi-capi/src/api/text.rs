//! Text and ids.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

use ::kimi_model::Error as ModelError;
use ::kimi_text::{Flagged, Specials, StopMatcher, TextStream, TokenId, Tokenizer};

use crate::api::options::generate_options;
use crate::api::types::{kimi_options, kimi_text, kimi_tokenizer};
use crate::error::Error;
use crate::handle::{self, Handled, Kind};
use crate::model::{LoadedModel, open_tokenizer};
use crate::pointer;
use crate::status::{Done, Status, call, free};

/// The tokenizer behind a handle of a model or of a tokenizer.
pub(crate) fn tokenizer(handle: *const c_void) -> Result<Arc<Tokenizer>, Error> {
    match handle::claimed(handle) {
        Some(Kind::Tokenizer) => handle::get(handle),
        _ => Ok(handle::get::<LoadedModel, _>(handle)?.tokenizer()?.clone()),
    }
}

/// Opens the tokenizer of a model folder without the model. NULL is an error.
///
/// # Safety
/// `path` is null or points to a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_tokenizer_open(path: *const c_char) -> *mut kimi_tokenizer {
    call(|| {
        // SAFETY: as the caller promises.
        let path = unsafe { pointer::path("path", path)? };
        handle::insert(Arc::new(open_tokenizer(&path)?))
    })
}

/// Frees a tokenizer. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_tokenizer_free(tokenizer: *mut kimi_tokenizer) {
    free(|| handle::remove::<Tokenizer, _>(tokenizer));
}

/// The ids of `len` bytes of text. With `parse_special`, names of control tokens become these tokens.
///
/// # Safety
/// `text` is null or points to `len` bytes; `tokens` is null or has room for `max_tokens` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_encode(
    model_or_tokenizer: *const c_void,
    text: *const c_char,
    len: usize,
    parse_special: c_int,
    tokens: *mut c_int,
    max_tokens: c_int,
) -> c_int {
    call(|| {
        let tokenizer = tokenizer(model_or_tokenizer)?;
        // SAFETY: as the caller promises.
        let text = unsafe { pointer::text_of_len("text", text, len)? };
        let specials = if parse_special != 0 { Specials::Parse } else { Specials::AsText };
        let ids: Vec<c_int> =
            tokenizer.encode(text, specials).into_iter().map(|TokenId(id)| id.cast_signed()).collect();
        // SAFETY: as the caller promises.
        unsafe { pointer::write("tokens", "tokens", &ids, tokens, max_tokens) }
    })
}

/// The bytes of `n` tokens and a NUL. With `hide_special`, control tokens leave nothing.
///
/// # Safety
/// `tokens` is null or points to `n` numbers; `buf` is null or has room for `cap` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_decode(
    model_or_tokenizer: *const c_void,
    tokens: *const c_int,
    n: c_int,
    hide_special: c_int,
    buf: *mut c_char,
    cap: c_int,
) -> c_int {
    call(|| {
        let tokenizer = tokenizer(model_or_tokenizer)?;
        // SAFETY: as the caller promises.
        let ids: Vec<TokenId> = unsafe { pointer::ids(tokens, n)? }.into_iter().map(TokenId).collect();
        let flagged = if hide_special != 0 { Flagged::Hide } else { Flagged::Show };
        let bytes = tokenizer.decode_bytes(&ids, flagged)?;
        // SAFETY: as the caller promises.
        unsafe { pointer::write_text(&bytes, buf, cap) }
    })
}

/// The id of a control token, by its name. Below 0 is an error.
///
/// # Safety
/// `name` is null or points to a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_special_token(model_or_tokenizer: *const c_void, name: *const c_char) -> c_int {
    call(|| {
        let tokenizer = tokenizer(model_or_tokenizer)?;
        // SAFETY: as the caller promises.
        let name = unsafe { pointer::text("name", name)? };
        let id = tokenizer.special_id(name);
        let TokenId(id) =
            id.ok_or_else(|| Error::argument("name", format!("`{name}` is no control token")))?;
        Ok(id.cast_signed())
    })
}

/// Text on its way out: whole characters, free of stop texts.
#[derive(Debug)]
struct Text {
    stream: TextStream<Arc<Tokenizer>>,
    stops: StopMatcher,
    /// Text that has not been read yet.
    waiting: String,
}

impl Handled for Mutex<Text> {
    const KIND: Kind = Kind::Text;
}

/// A text stream at its beginning; the stop texts of `options`, which may be NULL, end it. NULL is an error.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_text_new(
    model_or_tokenizer: *const c_void,
    options: *const kimi_options,
) -> *mut kimi_text {
    call(|| {
        let stream = TextStream::new(tokenizer(model_or_tokenizer)?, Flagged::Hide);
        let stops = StopMatcher::new(generate_options(options)?.stop)
            .map_err(|_| ModelError::StopText { reason: "an empty one would stop at once" })?;
        handle::insert(Arc::new(Mutex::new(Text { stream, stops, waiting: String::new() })))
    })
}

/// Frees a text stream. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_text_free(text: *mut kimi_text) {
    free(|| handle::remove::<Mutex<Text>, _>(text));
}

/// Takes the next id and returns how many bytes of text are waiting to be read. The status tells when a stop text came up.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_text_push(text: *mut kimi_text, token: c_int) -> c_int {
    call(|| {
        let text = handle::get::<Mutex<Text>, _>(text)?;
        let Text { stream, stops, waiting } = &mut *lock(&text)?;
        let id = pointer::id("token", token)?;
        let passed = stops.push(stream.push(TokenId(id))?);
        waiting.push_str(passed.text);
        let status = if passed.stop.is_some() { Status::Stopped } else { Status::Ok };
        waiting_bytes(waiting, status)
    })
}

/// Ends the text and returns how many bytes of it are waiting to be read. The stream is then at its beginning.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_text_finish(text: *mut kimi_text) -> c_int {
    call(|| {
        let text = handle::get::<Mutex<Text>, _>(text)?;
        let Text { stream, stops, waiting } = &mut *lock(&text)?;
        waiting.push_str(stops.push(stream.finish()).text);
        waiting.push_str(stops.finish());
        waiting_bytes(waiting, Status::Ok)
    })
}

/// Reads all text that is waiting, and a NUL. Text that does not fit goes on waiting.
///
/// # Safety
/// `buf` is null or has room for `cap` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_text_read(text: *mut kimi_text, buf: *mut c_char, cap: c_int) -> c_int {
    call(|| {
        let text = handle::get::<Mutex<Text>, _>(text)?;
        let waiting = &mut lock(&text)?.waiting;
        // SAFETY: as the caller promises.
        let len = unsafe { pointer::write_text(waiting.as_bytes(), buf, cap)? };
        if !buf.is_null() {
            waiting.clear();
        }
        Ok(len)
    })
}

fn lock(text: &Mutex<Text>) -> Result<MutexGuard<'_, Text>, Error> {
    text.lock().map_err(|_| Error::Poisoned { what: Kind::Text.name() })
}

fn waiting_bytes(waiting: &str, status: Status) -> Result<Done<c_int>, Error> {
    let len = c_int::try_from(waiting.len());
    let len = len.map_err(|_| Error::argument("text", "more is waiting than an int can count"))?;
    Ok(Done(len, status))
}
