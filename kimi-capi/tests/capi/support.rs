//! Short words for long calls, and the folders and files that tests need.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ::kimi_model::{Engine, EngineOptions, GenerateOptions, Generation, Model, SamplerOptions, generate};
use ::kimi_text::{Specials, TokenId, Tokenizer};
use kimi_k3_inference::*;
use kimi_paging::{FileSource, Source};

pub(crate) const OK: c_int = 0;
pub(crate) const END_OF_SEQUENCE: c_int = 1;
pub(crate) const STOPPED: c_int = 2;
pub(crate) const INVALID_ARGUMENT: c_int = -2;
pub(crate) const INVALID_HANDLE: c_int = -3;
pub(crate) const BUSY: c_int = -4;
pub(crate) const BUFFER_TOO_SMALL: c_int = -5;
pub(crate) const DOES_NOT_FIT: c_int = -6;
pub(crate) const CORRUPT: c_int = -7;
pub(crate) const CONTEXT_FULL: c_int = -8;
pub(crate) const CANCELLED: c_int = -9;
pub(crate) const NO_TOKENIZER: c_int = -10;

pub(crate) fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

pub(crate) fn c_path(path: &Path) -> CString {
    c(path.to_str().unwrap())
}

pub(crate) fn last_error() -> String {
    // SAFETY: a text that lives until this thread's next call.
    unsafe { CStr::from_ptr(kimi_last_error()) }.to_str().unwrap().to_owned()
}

/// How the last call ended, in one value to compare.
pub(crate) fn last() -> (c_int, String) {
    (kimi_last_status(), last_error())
}

/// Loads a model with two threads.
pub(crate) fn load(path: &Path, max_seq_len: c_int) -> *mut c_void {
    // SAFETY: a text that ends with NUL.
    let model = unsafe { kimi_load_model(c_path(path).as_ptr(), max_seq_len, 0.0, 2) };
    assert!(!model.is_null(), "{}", last_error());
    assert_eq!(last(), (OK, String::new()));
    model
}

pub(crate) fn tokenize(model: *mut c_void, text: &str) -> Vec<c_int> {
    let mut tokens = vec![0; text.len() + 1];
    let room = tokens.len() as c_int;
    // SAFETY: the buffer has this room.
    let count = unsafe { kimi_tokenize(model, c(text).as_ptr(), tokens.as_mut_ptr(), room) };
    assert!(count >= 0, "{}", last_error());
    tokens.truncate(count as usize);
    tokens
}

pub(crate) fn next_token(model: *mut c_void, tokens: &[c_int]) -> c_int {
    // SAFETY: so many numbers.
    unsafe { kimi_generate_next_token(model, tokens.as_ptr(), tokens.len() as c_int) }
}

/// Appends so many tokens by asking for one at a time.
pub(crate) fn extend(model: *mut c_void, tokens: &mut Vec<c_int>, count: usize) {
    for _ in 0..count {
        let token = next_token(model, tokens);
        assert_eq!(last(), (OK, String::new()));
        tokens.push(token);
    }
}

pub(crate) fn feed(session: *mut kimi_session, tokens: &[c_int]) -> c_int {
    // SAFETY: so many numbers.
    unsafe { kimi_session_feed(session, tokens.as_ptr(), tokens.len() as c_int) }
}

pub(crate) fn logits(session: *mut kimi_session) -> Vec<f32> {
    // SAFETY: a buffer of size 0 is only asked for.
    let count = unsafe { kimi_session_logits(session, std::ptr::null_mut(), 0) };
    assert!(count > 0, "{}", last_error());
    let mut logits = vec![f32::NAN; count as usize];
    // SAFETY: the buffer has this room.
    assert_eq!(unsafe { kimi_session_logits(session, logits.as_mut_ptr(), count) }, count);
    logits
}

pub(crate) fn set_int(options: *mut kimi_options, name: &str, value: i64) -> c_int {
    // SAFETY: a text that ends with NUL.
    unsafe { kimi_options_set_int(options, c(name).as_ptr(), value) }
}

pub(crate) fn set_float(options: *mut kimi_options, name: &str, value: f64) -> c_int {
    // SAFETY: a text that ends with NUL.
    unsafe { kimi_options_set_float(options, c(name).as_ptr(), value) }
}

pub(crate) fn set_text(options: *mut kimi_options, name: &str, value: &str) -> c_int {
    // SAFETY: texts that end with NUL.
    unsafe { kimi_options_set_text(options, c(name).as_ptr(), c(value).as_ptr()) }
}

/// The text that a function writes into a buffer.
pub(crate) fn text(write: impl Fn(*mut c_char, c_int) -> c_int) -> String {
    let len = write(std::ptr::null_mut(), 0);
    assert!(len >= 0, "{}", last_error());
    let mut buffer = vec![b'x'; len as usize + 1];
    assert_eq!(write(buffer.as_mut_ptr().cast(), len + 1), len);
    assert_eq!(buffer.pop(), Some(0), "a NUL ends it");
    String::from_utf8(buffer).unwrap()
}

/// What `kimi-model` generates by itself: the numbers that this interface must give too.
pub(crate) fn expected(folder: &Path, prompt: &str, count: usize, sampler: SamplerOptions) -> Generation {
    let tokenizer = Tokenizer::from_dir(folder).unwrap();
    let ids: Vec<u32> =
        tokenizer.encode(prompt, Specials::AsText).into_iter().map(|TokenId(id)| id).collect();
    let mut open = |path: &Path| Ok(Arc::new(FileSource::open(path)?) as Arc<dyn Source>);
    let model = Arc::new(Model::open(folder, &mut open).unwrap());
    let mut options = EngineOptions::default();
    options.positions = 512;
    options.threads = Some(1);
    let mut engine = Engine::new(model, &options).unwrap();
    let mut session = engine.session().unwrap();
    let mut wanted = GenerateOptions::default();
    wanted.max_tokens = count;
    wanted.sampler = sampler;
    let means = (Some(&tokenizer), &AtomicBool::new(false));
    generate(&mut engine, &mut session, &ids, &wanted, means, None, &mut ()).unwrap()
}

pub(crate) fn ids(tokens: &[c_int]) -> Vec<u32> {
    tokens.iter().map(|&token| u32::try_from(token).unwrap()).collect()
}

/// A folder of this package.
pub(crate) fn package(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Where cargo puts the libraries that belong to this test.
pub(crate) fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

/// A C or C++ compiler, or `None` with a printed line where there is none.
pub(crate) fn compiler(name: &str) -> Option<Command> {
    if Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Some(Command::new(name));
    }
    eprintln!("skipped: there is no {name}");
    None
}

/// Runs a command that must succeed without a word on the standard error, and returns what it prints.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
