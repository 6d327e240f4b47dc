//! How a call ended: its return value, and what `kimi_last_status` and `kimi_last_error` say about it.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Error;

/// The values of `enum kimi_status` in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    EndOfSequence = 1,
    Stopped = 2,
    Failed = -1,
    InvalidArgument = -2,
    InvalidHandle = -3,
    Busy = -4,
    BufferTooSmall = -5,
    DoesNotFit = -6,
    Corrupt = -7,
    ContextFull = -8,
    Cancelled = -9,
    NoTokenizer = -10,
    Internal = -11,
}

/// What a successful call returns, with a status that can say more.
pub(crate) struct Done<T>(pub(crate) T, pub(crate) Status);

impl<T> From<T> for Done<T> {
    fn from(value: T) -> Self {
        Self(value, Status::Ok)
    }
}

/// What a function returns to C.
pub(crate) trait Returned {
    /// The value of a call that failed.
    fn failed(status: Status) -> Self;
}

impl Returned for c_int {
    fn failed(status: Status) -> Self {
        status as Self
    }
}

impl<T> Returned for *mut T {
    fn failed(_: Status) -> Self {
        std::ptr::null_mut()
    }
}

thread_local! {
    static LAST: RefCell<(Status, CString)> = RefCell::new((Status::Ok, CString::default()));
}

/// Runs the body of an exported function: no panic leaves it, and its outcome is noted for this thread.
pub(crate) fn call<T: Returned, D: Into<Done<T>>>(body: impl FnOnce() -> Result<D, Error>) -> T {
    match caught(body) {
        Ok(done) => {
            let Done(value, status) = done.into();
            note(status, String::new());
            value
        }
        Err(error) => {
            note(error.status(), error.message());
            T::failed(error.status())
        }
    }
}

/// Frees something. What the last call left stays unless this fails: programs tidy up before they report.
pub(crate) fn free(body: impl FnOnce() -> Result<(), Error>) {
    if let Err(error) = caught(body) {
        note(error.status(), error.message());
    }
}

fn caught<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // What a panic leaves half done stays behind a poisoned lock.
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|payload| Err(Error::Panic(panic_message(payload.as_ref()))))
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it left no message").to_owned()
}

fn note(status: Status, message: String) {
    // Names in files can hold anything.
    let message = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
    // A thread that is ending has no place left, and nobody to read it.
    let _ = LAST.try_with(|last| last.replace((status, message)));
}

/// The status of this thread's last call.
pub(crate) fn last_status() -> c_int {
    LAST.try_with(|last| last.borrow().0 as c_int).unwrap_or(Status::Internal as c_int)
}

/// The message of this thread's last call, empty if it succeeded. The pointer is good until this thread's next call.
pub(crate) fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status() {
        let value: c_int = call(|| -> Result<c_int, Error> { panic!("no {}", "way") });
        assert_eq!((value, last_status()), (Status::Internal as c_int, Status::Internal as c_int));
        let message = LAST.with(|last| last.borrow().1.clone());
        assert_eq!(message.to_str(), Ok("a fault of this library: no way"));
        let pointer: *mut u8 = call(|| -> Result<*mut u8, Error> { std::panic::panic_any(7) });
        assert!(pointer.is_null());
        let value: c_int = call(|| Ok(Done(5, Status::EndOfSequence)));
        assert_eq!((value, last_status()), (5, Status::EndOfSequence as c_int));
        assert!(LAST.with(|last| last.borrow().1.is_empty()), "success leaves no message");
        free(|| Ok(()));
        assert_eq!(last_status(), Status::EndOfSequence as c_int, "freeing leaves what was there");
        free(|| panic!("on the way out"));
        assert_eq!(last_status(), Status::Internal as c_int);
    }

    #[test]
    fn messages_hold_their_causes_and_no_nul() {
        let missing = std::io::Error::other("gone\0away");
        let error = kimi_model::Error::Config { path: "x/config.json".into(), source: missing };
        let _: c_int = call(|| -> Result<c_int, Error> { Err(error.into()) });
        let message = LAST.with(|last| last.borrow().1.clone()).into_string().unwrap();
        assert!(message.starts_with("x/config.json: cannot be read"), "{message}");
        assert!(message.ends_with(": gone\u{fffd}away"), "{message}");
    }
}
