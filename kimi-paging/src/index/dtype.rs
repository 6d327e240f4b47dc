//! Element types of the safetensors format.

use std::fmt;

/// The element type of a tensor, as the safetensors format names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// `BOOL`, one byte.
    Bool,
    /// `F4`, two elements a byte.
    F4,
    /// `F6_E2M3`, four elements in three bytes.
    F6E2M3,
    /// `F6_E3M2`, four elements in three bytes.
    F6E3M2,
    /// `U8`.
    U8,
    /// `I8`.
    I8,
    /// `F8_E5M2`.
    F8E5M2,
    /// `F8_E4M3`.
    F8E4M3,
    /// `F8_E8M0`, a power of two.
    F8E8M0,
    /// `F8_E4M3FNUZ`.
    F8E4M3Fnuz,
    /// `F8_E5M2FNUZ`.
    F8E5M2Fnuz,
    /// `I16`.
    I16,
    /// `U16`.
    U16,
    /// `F16`.
    F16,
    /// `BF16`.
    Bf16,
    /// `I32`.
    I32,
    /// `U32`.
    U32,
    /// `F32`.
    F32,
    /// `C64`, two float32.
    C64,
    /// `F64`.
    F64,
    /// `I64`.
    I64,
    /// `U64`.
    U64,
    /// A name that this crate does not know. The range of such a tensor is checked like any other, so it can be listed and
    /// copied; what its bytes mean, and whether they fit its shape, nobody here can tell.
    Other(OtherDtype),
}

/// Names and bits per element of the types that are known.
const KNOWN: [(Dtype, &str, u32); 22] = [
    (Dtype::Bool, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6E2M3, "F6_E2M3", 6),
    (Dtype::F6E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8E5M2, "F8_E5M2", 8),
    (Dtype::F8E4M3, "F8_E4M3", 8),
    (Dtype::F8E8M0, "F8_E8M0", 8),
    (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
    (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::Bf16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

impl Dtype {
    /// The type of this name; `None` when the name is too long to be one.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match KNOWN.iter().find(|known| known.1 == name) {
            Some(known) => Some(known.0),
            None => OtherDtype::new(name).map(Self::Other),
        }
    }

    /// Bits of an element; `None` for a type that this crate does not know.
    pub fn bits(self) -> Option<u32> {
        KNOWN.iter().find(|known| known.0 == self).map(|known| known.2)
    }

    /// The name in the file.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Other(other) => other.as_str(),
            known => KNOWN.iter().find(|entry| entry.0 == *known).map_or("", |entry| entry.1),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of an element type that this crate does not know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OtherDtype {
    len: u8,
    bytes: [u8; Self::MAX_LEN],
}

impl OtherDtype {
    /// The longest name that is kept, in bytes.
    pub(super) const MAX_LEN: usize = 23;

    fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LEN];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self { len: name.len() as u8, bytes })
    }

    /// The name in the file.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("copied from a str")
    }
}

impl fmt::Debug for OtherDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_those_of_the_safetensors_crate() {
        for (dtype, name, bits) in KNOWN {
            let theirs: safetensors::Dtype = serde_json::from_str(&format!("\"{name}\"")).unwrap();
            assert_eq!((theirs.bitsize() as u32, theirs.to_string()), (bits, name.to_owned()));
            assert_eq!(
                (Dtype::from_name(name), dtype.bits(), dtype.as_str()),
                (Some(dtype), Some(bits), name)
            );
        }
    }

    #[test]
    fn unknown_names_are_kept() {
        let other = Dtype::from_name("F3_E1M1").unwrap();
        assert_eq!((other.bits(), other.to_string().as_str()), (None, "F3_E1M1"));
        assert_ne!(Some(other), Dtype::from_name("F3_E1M0"));
        assert!(Dtype::from_name(&"x".repeat(OtherDtype::MAX_LEN)).is_some());
        assert!(Dtype::from_name(&"x".repeat(OtherDtype::MAX_LEN + 1)).is_none());
    }
}
