//! The types of the header.
#![expect(non_camel_case_types, reason = "they have the names of the header")]

use std::ffi::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name([u8; 0]);
    )*};
}

opaque! {
    /// A model, made by `kimi_load_model` or `kimi_model_open`.
    kimi_model
    /// A conversation with a model.
    kimi_session
    /// A tokenizer without a model.
    kimi_tokenizer
    /// Options of a model, or of generating.
    kimi_options
    /// Chooses tokens.
    kimi_sampler
    /// Turns ids into text as they come.
    kimi_text
}

/// Hears of a token: `user`, the id (-1 for text that follows the last one), the text that became certain with it, its
/// length in bytes. A result other than 0 stops the generation.
pub type kimi_token_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, token: c_int, text: *const c_char, len: usize) -> c_int>;
