//! How latents are stored.

use std::fmt;
use std::str::FromStr;

use kimi_paging::{Budget, Error, LeasedVec};
use kimi_quant::Bf16;

/// The number format of the latents in a session.
///
/// Attention is float32 arithmetic on what is stored, so a format decides about precision once, when a row is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum KvFormat {
    /// Float32, as computed: the exact tier.
    #[default]
    F32,
    /// BF16, rounded to nearest even: half the memory.
    Bf16,
}

impl KvFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of a value.
    pub(crate) const fn value_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no format of [`KvFormat::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format of latents `{0}`; known: f32, bf16")]
pub struct UnknownKvFormat(String);

impl FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(name: &str) -> Result<Self, UnknownKvFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| UnknownKvFormat(name.to_owned()))
    }
}

/// The rows of some neighbouring positions.
#[derive(Debug)]
pub(crate) enum KvBlock {
    F32(LeasedVec<f32>),
    Bf16(LeasedVec<u16>),
}

impl KvBlock {
    /// Room for `len` values.
    pub(crate) fn new(format: KvFormat, len: usize, budget: &Budget) -> Result<Self, Error> {
        Ok(match format {
            KvFormat::F32 => Self::F32(budget.zeroed(len, "latents")?),
            KvFormat::Bf16 => Self::Bf16(budget.zeroed(len, "latents")?),
        })
    }

    /// Stores `values` from value `at` on.
    pub(crate) fn store(&mut self, at: usize, values: &[f32]) {
        match self {
            Self::F32(block) => block[at..][..values.len()].copy_from_slice(values),
            Self::Bf16(block) => {
                for (stored, &value) in block[at..].iter_mut().zip(values) {
                    *stored = Bf16::from_f32(value).0;
                }
            }
        }
    }

    /// The first `len` values; `scratch` holds them where they are not stored as float32.
    pub(crate) fn read<'a>(&'a self, len: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        match self {
            Self::F32(block) => &block[..len],
            Self::Bf16(block) => {
                let values = &mut scratch[..len];
                for (value, &stored) in values.iter_mut().zip(block.iter()) {
                    *value = Bf16(stored).to_f32();
                }
                values
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for format in KvFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert_eq!(
            "q8".parse::<KvFormat>().unwrap_err().to_string(),
            "unknown format of latents `q8`; known: f32, bf16"
        );
    }

    #[test]
    fn values_are_rounded_once_when_they_are_stored() {
        let budget = Budget::unlimited();
        let values = [1.0, -3.5, 1.0 + f32::EPSILON, f32::MIN_POSITIVE];
        for format in KvFormat::ALL {
            let mut block = KvBlock::new(format, 8, &budget).unwrap();
            block.store(2, &values);
            let mut scratch = [f32::NAN; 8];
            let read = block.read(6, &mut scratch)[2..].to_vec();
            let expected = match format {
                KvFormat::F32 => values.to_vec(),
                KvFormat::Bf16 => vec![1.0, -3.5, 1.0, f32::MIN_POSITIVE],
            };
            assert_eq!(read, expected);
            assert_eq!(budget.used_bytes(), 8 * format.value_bytes() as u64);
        }
    }
}
