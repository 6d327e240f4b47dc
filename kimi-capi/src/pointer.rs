//! The caller's memory: texts and numbers in, texts and numbers out. Everything that can be checked without trust is.
#![expect(unsafe_code, reason = "pointers that only the caller can vouch for")]

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;

use crate::error::Error;

/// A text that ends with NUL.
///
/// # Safety
/// `text` is null or points to bytes that end with NUL, and nobody writes them during the call.
pub(crate) unsafe fn text<'a>(what: &'static str, text: *const c_char) -> Result<&'a str, Error> {
    // SAFETY: as the caller promises.
    utf8(what, unsafe { c_str(what, text)? }.to_bytes())
}

/// A text of `len` bytes.
///
/// # Safety
/// `text` is null or points to `len` bytes, and nobody writes them during the call.
pub(crate) unsafe fn text_of_len<'a>(
    what: &'static str,
    text: *const c_char,
    len: usize,
) -> Result<&'a str, Error> {
    // SAFETY: as the caller promises; bytes have no alignment.
    utf8(what, unsafe { slice(what, text.cast::<u8>(), len)? })
}

/// The name of a file or folder: on Unix any bytes, elsewhere UTF-8.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path(what: &'static str, path: *const c_char) -> Result<PathBuf, Error> {
    // SAFETY: as the caller promises.
    let path = unsafe { c_str(what, path)? };
    if path.is_empty() {
        return Err(Error::argument(what, "is empty"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        Ok(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
    }
    #[cfg(not(unix))]
    {
        Ok(utf8(what, path.to_bytes())?.into())
    }
}

/// Token ids.
///
/// # Safety
/// `ids` is null or points to `n` numbers, and nobody writes them during the call.
pub(crate) unsafe fn ids(ids: *const c_int, n: c_int) -> Result<Vec<u32>, Error> {
    // SAFETY: as the caller promises.
    let ids = unsafe { slice("tokens", ids, len("n", n)?)? };
    let id = |(at, &id): (usize, &c_int)| {
        let negative = |_| Error::argument("tokens", format!("the one at place {at} is {id}, below 0"));
        u32::try_from(id).map_err(negative)
    };
    ids.iter().enumerate().map(id).collect()
}

/// A token id.
pub(crate) fn id(what: &'static str, id: c_int) -> Result<u32, Error> {
    u32::try_from(id).map_err(|_| Error::argument(what, format!("is {id}, below 0")))
}

/// `n` values.
///
/// # Safety
/// `values` is null or points to `n` values, and nobody writes them during the call.
pub(crate) unsafe fn slice<'a, T>(what: &'static str, values: *const T, n: usize) -> Result<&'a [T], Error> {
    if n == 0 {
        return Ok(&[]);
    }
    check(what, values)?;
    if n > isize::MAX as usize / size_of::<T>() {
        return Err(Error::argument(what, format!("there cannot be {n} of them")));
    }
    // SAFETY: not null and aligned (checked above), the size is in range, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(values, n) })
}

/// Writes values where there is room for `room` of them and returns how many there are. Without a place to write, that is
/// all it does; when there are too many, none is written.
///
/// # Safety
/// `to` is null or points to room for `room` values that nobody else uses during the call.
pub(crate) unsafe fn write<T: Copy>(
    what: &'static str,
    unit: &'static str,
    values: &[T],
    to: *mut T,
    room: c_int,
) -> Result<c_int, Error> {
    let room = len("the size of the buffer", room)?;
    let count = count(values.len(), unit)?;
    if to.is_null() && room == 0 {
        return Ok(count);
    }
    check(what, to)?;
    if values.len() > room {
        return Err(Error::BufferTooSmall { needed: values.len(), room, unit });
    }
    // SAFETY: not null and aligned (checked above), there is room for `values`, and the caller promises that it is not used,
    // so it cannot overlap `values`.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
    Ok(count)
}

/// Writes bytes and a NUL behind them, as [`write`] does, and returns the number of bytes without it. A buffer that is too
/// small becomes an empty text.
///
/// # Safety
/// As [`write`].
pub(crate) unsafe fn write_text(bytes: &[u8], to: *mut c_char, room: c_int) -> Result<c_int, Error> {
    let unit = "bytes";
    let free = len("the size of the buffer", room)?;
    let count = count(bytes.len(), unit)?;
    if to.is_null() && free == 0 {
        return Ok(count);
    }
    check("buf", to)?;
    let fits = bytes.len() < free;
    let written = if fits { bytes } else { &[] };
    if free > 0 {
        // SAFETY: not null (checked above), `written` and the NUL fit into `free` bytes, and the caller promises that nobody
        // uses them, so they cannot overlap `written`.
        unsafe {
            std::ptr::copy_nonoverlapping(written.as_ptr(), to.cast::<u8>(), written.len());
            to.add(written.len()).write(0);
        }
    }
    if !fits {
        return Err(Error::BufferTooSmall { needed: bytes.len().saturating_add(1), room: free, unit });
    }
    Ok(count)
}

/// Writes one value, unless there is no place for it.
///
/// # Safety
/// `to` is null or points to room for a value that nobody else uses during the call.
pub(crate) unsafe fn write_one(what: &'static str, value: c_int, to: *mut c_int) -> Result<(), Error> {
    if !to.is_null() {
        check(what, to)?;
        // SAFETY: not null and aligned (checked above); the caller promises the rest.
        unsafe { to.write(value) };
    }
    Ok(())
}

/// A length that C counts with a sign.
pub(crate) fn len(what: &'static str, n: c_int) -> Result<usize, Error> {
    usize::try_from(n).map_err(|_| Error::argument(what, format!("is {n}, below 0")))
}

fn count(len: usize, unit: &'static str) -> Result<c_int, Error> {
    c_int::try_from(len).map_err(|_| Error::argument(unit, format!("{len} are more than an int can count")))
}

fn check<T>(what: &'static str, pointer: *const T) -> Result<(), Error> {
    if pointer.is_null() {
        return Err(Error::Null { what });
    }
    if !pointer.is_aligned() {
        return Err(Error::argument(what, format!("is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// # Safety
/// As [`text`].
unsafe fn c_str<'a>(what: &'static str, text: *const c_char) -> Result<&'a CStr, Error> {
    check(what, text)?;
    // SAFETY: not null (checked above); the caller promises the NUL.
    Ok(unsafe { CStr::from_ptr(text) })
}

fn utf8<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes)
        .map_err(|error| Error::argument(what, format!("is not UTF-8 from byte {} on", error.valid_up_to())))
}
