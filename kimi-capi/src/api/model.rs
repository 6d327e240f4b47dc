//! Models.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use serde_json::Value;

use crate::api::options::model_options;
use crate::api::types::{kimi_model, kimi_options};
use crate::handle;
use crate::model::LoadedModel;
use crate::pointer;
use crate::report;
use crate::status::call;

/// Opens the model in a folder; `options` may be NULL. NULL is an error.
///
/// # Safety
/// `path` is null or points to a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_model_open(
    path: *const c_char,
    options: *const kimi_options,
) -> *mut kimi_model {
    call(|| {
        // SAFETY: as the caller promises.
        let path = unsafe { pointer::path("path", path)? };
        handle::insert(Arc::new(LoadedModel::open(path, &model_options(options)?)?))
    })
}

/// What the model is, as JSON.
///
/// # Safety
/// `buf` is null or has room for `cap` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_model_info_json(
    model: *const kimi_model,
    buf: *mut c_char,
    cap: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { json(model, report::info, buf, cap) }
}

/// How the memory is split, as JSON.
///
/// # Safety
/// `buf` is null or has room for `cap` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_model_plan_json(
    model: *const kimi_model,
    buf: *mut c_char,
    cap: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { json(model, report::plan, buf, cap) }
}

/// What the model has done so far, as JSON.
///
/// # Safety
/// `buf` is null or has room for `cap` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kimi_model_stats_json(
    model: *const kimi_model,
    buf: *mut c_char,
    cap: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { json(model, report::stats, buf, cap) }
}

/// # Safety
/// `buf` is null or has room for `cap` bytes.
unsafe fn json(
    model: *const kimi_model,
    report: fn(&LoadedModel) -> Value,
    buf: *mut c_char,
    cap: c_int,
) -> c_int {
    call(|| {
        let model = handle::get::<LoadedModel, _>(model)?;
        // SAFETY: as the caller promises.
        unsafe { pointer::write_text(report(&model).to_string().as_bytes(), buf, cap) }
    })
}
