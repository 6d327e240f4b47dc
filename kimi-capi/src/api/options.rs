//! Options.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use ::kimi_model::GenerateOptions;

use crate::api::types::kimi_options;
use crate::error::Error;
use crate::handle;
use crate::options::{ModelOptions, Options};
use crate::pointer;
use crate::status::{call, free};

/// Options for a model. NULL is an error.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_model_options_new() -> *mut kimi_options {
    call(|| handle::insert(Arc::new(Mutex::new(Options::Model(ModelOptions::default())))))
}

/// Options for generating. NULL is an error.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_generate_options_new() -> *mut kimi_options {
    call(|| handle::insert(Arc::new(Mutex::new(Options::Generate(GenerateOptions::default())))))
}

/// Frees options. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_options_free(options: *mut kimi_options) {
    free(|| handle::remove::<Mutex<Options>, _>(options));
}

/// Sets a whole number.
///
/// # Safety
/// `name` is null or points to a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_options_set_int(
    options: *mut kimi_options,
    name: *const c_char,
    value: i64,
) -> c_int {
    // SAFETY: as the caller promises.
    set(options, unsafe { pointer::text("name", name) }, |options, name| options.set_int(name, value))
}

/// Sets a number.
///
/// # Safety
/// `name` is null or points to a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_options_set_float(
    options: *mut kimi_options,
    name: *const c_char,
    value: f64,
) -> c_int {
    // SAFETY: as the caller promises.
    set(options, unsafe { pointer::text("name", name) }, |options, name| options.set_float(name, value))
}

/// Sets a text.
///
/// # Safety
/// `name` and `value` are null or point to texts that end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_options_set_text(
    options: *mut kimi_options,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    let (name, value) = unsafe { (pointer::text("name", name), pointer::text("value", value)) };
    set(options, name, |options, name| options.set_text(name, value?))
}

/// Adds a number to the logits of a token.
#[unsafe(no_mangle)]
pub extern "C" fn kimi_options_add_logit_bias(options: *mut kimi_options, token: c_int, bias: f64) -> c_int {
    call(|| {
        let options = handle::get::<Mutex<Options>, _>(options)?;
        let token = pointer::id("token", token)?;
        options.lock().unwrap_or_else(PoisonError::into_inner).add_logit_bias(token, bias)?;
        Ok(0)
    })
}

fn set(
    options: *mut kimi_options,
    name: Result<&str, Error>,
    set: impl FnOnce(&mut Options, &str) -> Result<(), Error>,
) -> c_int {
    call(|| {
        let options = handle::get::<Mutex<Options>, _>(options)?;
        set(&mut options.lock().unwrap_or_else(PoisonError::into_inner), name?)?;
        Ok(0)
    })
}

/// Those of a handle, or the defaults where there is none.
pub(crate) fn model_options(options: *const kimi_options) -> Result<ModelOptions, Error> {
    if options.is_null() {
        return Ok(ModelOptions::default());
    }
    handle::get::<Mutex<Options>, _>(options)?.lock().unwrap_or_else(PoisonError::into_inner).model()
}

/// Those of a handle, or the defaults where there is none.
pub(crate) fn generate_options(options: *const kimi_options) -> Result<GenerateOptions, Error> {
    if options.is_null() {
        return Ok(GenerateOptions::default());
    }
    handle::get::<Mutex<Options>, _>(options)?.lock().unwrap_or_else(PoisonError::into_inner).generate()
}
