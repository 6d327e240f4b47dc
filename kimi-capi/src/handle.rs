//! Handles: what C holds in place of a pointer.
//!
//! A handle is a number in the clothes of a pointer and is never followed, only looked up. So a handle that was freed
//! already, one of another kind and a pointer that was never a handle are all told from a good one, whatever memory holds.
//! Numbers are not given out twice.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Error;

/// The upper half of every handle, "K3", where pointers have an upper half. The whole stays below 2^47, as scripting
/// languages keep pointers in the mantissa of a double.
const MAGIC: usize = (0x4b33u64 << 32) as usize;
const MAGIC_MASK: usize = (0xffff_ffffu64 << 32) as usize;

/// Bits at the bottom for the kind. No kind is 0, so that no aligned pointer looks like a handle.
const KIND_BITS: u32 = 3;
const MAX_SERIAL: usize = (1 << (32 - KIND_BITS)) - 1;

/// Something that C can have a handle of.
pub(crate) trait Handled: Any + Send + Sync {
    const KIND: Kind;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Model = 1,
    Session,
    Tokenizer,
    Options,
    Sampler,
    Text,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Model, Self::Session, Self::Tokenizer, Self::Options, Self::Sampler, Self::Text];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Session => "session",
            Self::Tokenizer => "tokenizer",
            Self::Options => "set of options",
            Self::Sampler => "sampler",
            Self::Text => "text stream",
        }
    }
}

type Table = BTreeMap<usize, Arc<dyn Any + Send + Sync>>;

static LIVE: RwLock<Table> = RwLock::new(BTreeMap::new());
static NEXT_SERIAL: AtomicUsize = AtomicUsize::new(1);

/// Gives out a handle.
pub(crate) fn insert<T: Handled, H>(object: Arc<T>) -> Result<*mut H, Error> {
    let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
    if serial > MAX_SERIAL {
        NEXT_SERIAL.store(MAX_SERIAL + 1, Ordering::Relaxed);
        return Err(Error::NoHandles);
    }
    let handle = MAGIC | serial << KIND_BITS | T::KIND as usize;
    LIVE.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    Ok(std::ptr::without_provenance_mut(handle))
}

/// What a handle stands for. It stays alive while it is used, even if the handle is freed meanwhile.
pub(crate) fn get<T: Handled, H>(handle: *const H) -> Result<Arc<T>, Error> {
    let kind = kind::<T, H>(handle)?;
    let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
    let object = live.get(&handle.addr()).cloned().ok_or(freed(kind))?;
    object.downcast().map_err(|_| unknown(T::KIND))
}

/// Takes a handle back. Freeing nothing is fine, freeing twice is not.
pub(crate) fn remove<T: Handled, H>(handle: *const H) -> Result<(), Error> {
    if handle.is_null() {
        return Ok(());
    }
    let kind = kind::<T, H>(handle)?;
    // The table is free again before the object goes, which can take a while.
    let object = LIVE.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    object.map(drop).ok_or(freed(kind))
}

/// The kind that a handle claims to be of.
pub(crate) fn claimed<H>(handle: *const H) -> Option<Kind> {
    let bits = handle.addr();
    if bits & MAGIC_MASK != MAGIC {
        return None;
    }
    let serial = (bits & !MAGIC_MASK) >> KIND_BITS;
    let given_out = 1..NEXT_SERIAL.load(Ordering::Relaxed);
    let kind = Kind::ALL.into_iter().find(|&kind| kind as usize == bits & ((1 << KIND_BITS) - 1));
    kind.filter(|_| given_out.contains(&serial))
}

fn kind<T: Handled, H>(handle: *const H) -> Result<Kind, Error> {
    if handle.is_null() {
        return Err(Error::Handle { expected: T::KIND.name(), found: "this is a null pointer" });
    }
    match claimed(handle) {
        Some(kind) if kind == T::KIND => Ok(kind),
        Some(_) => Err(Error::Handle { expected: T::KIND.name(), found: "this is a handle of another kind" }),
        None => Err(unknown(T::KIND)),
    }
}

fn unknown(expected: Kind) -> Error {
    Error::Handle { expected: expected.name(), found: "this is no handle" }
}

fn freed(expected: Kind) -> Error {
    Error::Handle { expected: expected.name(), found: "this handle has been freed" }
}

/// A handle as C knows it where any kind may come.
pub(crate) fn erased<T: Handled>(object: Arc<T>) -> Result<*mut c_void, Error> {
    insert(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Number(u32);

    impl Handled for Number {
        const KIND: Kind = Kind::Text;
    }

    #[derive(Debug)]
    struct Other;

    impl Handled for Other {
        const KIND: Kind = Kind::Sampler;
    }

    fn found<T>(result: Result<T, Error>) -> &'static str {
        match result {
            Err(Error::Handle { found, .. }) => found,
            _ => "a good handle",
        }
    }

    #[test]
    fn only_live_handles_of_the_right_kind_are_taken() {
        let handle = erased(Arc::new(Number(7))).unwrap();
        assert!(handle.addr() as u64 >> 47 == 0);
        assert_eq!(get::<Number, _>(handle).unwrap().0, 7);
        assert_eq!(found(get::<Other, _>(handle)), "this is a handle of another kind");
        assert_eq!(found(remove::<Other, _>(handle)), "this is a handle of another kind");
        let kept = get::<Number, _>(handle).unwrap();
        remove::<Number, _>(handle).unwrap();
        assert_eq!(kept.0, 7, "what is in use outlives its handle");
        assert_eq!(found(remove::<Number, _>(handle)), "this handle has been freed");
        assert_eq!(found(get::<Number, _>(handle)), "this handle has been freed");
        assert!(remove::<Number, c_void>(std::ptr::null()).is_ok());
        assert_eq!(found(get::<Number, c_void>(std::ptr::null())), "this is a null pointer");
        for wrong in [1, 8, usize::MAX, handle.addr() ^ (1 << 20), handle.addr() & !7] {
            let wrong = std::ptr::without_provenance::<c_void>(wrong);
            assert_eq!(found(get::<Number, _>(wrong)), "this is no handle", "{wrong:p}");
        }
        let again = erased(Arc::new(Number(8))).unwrap();
        assert_ne!(again, handle, "numbers are not given out twice");
        remove::<Number, _>(again).unwrap();
    }
}
