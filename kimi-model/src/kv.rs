//! How latents are stored.

use std::fmt;
use std::str::FromStr;

use kimi_paging::{Budget, Error, LeasedVec};
use kimi_quant::Bf16;
use kimi_quant::kv::{RowFormat, rotate};

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
    /// A byte per value and two scales per row ([`RowFormat::I8`]): a quarter.
    I8,
    /// A nibble per value of the rotated row and two scales ([`RowFormat::I4`]): an eighth.
    I4,
}

impl KvFormat {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::I8, Self::I4];

    /// The name that options and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::I4 => "i4",
        }
    }

    /// Bytes of a row of `len` values.
    pub const fn row_bytes(self, len: usize) -> usize {
        match self {
            Self::F32 => len * 4,
            Self::Bf16 => len * 2,
            Self::I8 => RowFormat::I8.bytes(len),
            Self::I4 => RowFormat::I4.bytes(len),
        }
    }

    /// Turns the parts of a query to where the stored rows lie: dot products are those of the plain rows.
    pub(crate) fn turn(self, values: &mut [f32]) {
        if self == Self::I4 {
            rotate(values);
        }
    }

    /// Turns a sum of stored rows back.
    pub(crate) fn turn_back(self, values: &mut [f32]) {
        // The rotation is its own inverse.
        self.turn(values);
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no format of [`KvFormat::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format of latents `{0}`; known: f32, bf16, i8, i4")]
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

/// The values of a row: the latent, then what has a range of its own, the shared key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowShape {
    pub(crate) len: usize,
    /// Values of the latent.
    pub(crate) content: usize,
}

/// The rows of some neighbouring positions.
#[derive(Debug)]
pub(crate) enum KvBlock {
    F32(LeasedVec<f32>),
    Bf16(LeasedVec<u16>),
    Codes(RowFormat, LeasedVec<u8>),
}

impl KvBlock {
    /// Room for so many rows.
    pub(crate) fn new(
        format: KvFormat,
        shape: RowShape,
        rows: usize,
        budget: &Budget,
    ) -> Result<Self, Error> {
        let len = rows * shape.len;
        let codes = || budget.zeroed(rows * format.row_bytes(shape.len), "latents");
        Ok(match format {
            KvFormat::F32 => Self::F32(budget.zeroed(len, "latents")?),
            KvFormat::Bf16 => Self::Bf16(budget.zeroed(len, "latents")?),
            KvFormat::I8 => Self::Codes(RowFormat::I8, codes()?),
            KvFormat::I4 => Self::Codes(RowFormat::I4, codes()?),
        })
    }

    /// Stores a row as row `at`; what is left of its values is undefined.
    pub(crate) fn store(&mut self, shape: RowShape, at: usize, row: &mut [f32]) {
        match self {
            Self::F32(block) => block[at * shape.len..][..shape.len].copy_from_slice(row),
            Self::Bf16(block) => {
                for (stored, &value) in block[at * shape.len..].iter_mut().zip(&*row) {
                    *stored = Bf16::from_f32(value).0;
                }
            }
            Self::Codes(format, block) => {
                let bytes = format.bytes(shape.len);
                format.encode(row, shape.content, &mut block[at * bytes..][..bytes]);
            }
        }
    }

    /// The first `rows` rows, turned as the format stores them; `scratch` holds them where they are not stored as float32.
    pub(crate) fn read<'a>(&'a self, shape: RowShape, rows: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let len = rows * shape.len;
        match self {
            Self::F32(block) => &block[..len],
            Self::Bf16(block) => {
                let values = &mut scratch[..len];
                for (value, &stored) in values.iter_mut().zip(block.iter()) {
                    *value = Bf16(stored).to_f32();
                }
                values
            }
            Self::Codes(format, block) => {
                let values = &mut scratch[..len];
                let stored = block.chunks_exact(format.bytes(shape.len));
                for (values, stored) in values.chunks_exact_mut(shape.len).zip(stored) {
                    format.decode(stored, shape.content, values);
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
            "unknown format of latents `q8`; known: f32, bf16, i8, i4"
        );
    }

    #[test]
    fn values_are_rounded_once_when_they_are_stored() {
        let shape = RowShape { len: 130, content: 128 };
        let row: Vec<f32> =
            (0..130).map(|i| (i as f32 * 0.7).sin() + if i >= 128 { 40.0 } else { 0.0 }).collect();
        let largest = |values: &[f32]| values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
        for (format, bytes, error) in [
            (KvFormat::F32, 520, 0.0),
            (KvFormat::Bf16, 260, 0.125),
            (KvFormat::I8, 138, 0.17),
            (KvFormat::I4, 73, 3.0),
        ] {
            let budget = Budget::unlimited();
            assert_eq!(format.row_bytes(130), bytes);
            let mut block = KvBlock::new(format, shape, 4, &budget).unwrap();
            assert_eq!(budget.used_bytes(), 4 * bytes as u64);
            block.store(shape, 2, &mut row.clone());
            let mut scratch = [f32::NAN; 3 * 130];
            let mut read = block.read(shape, 3, &mut scratch)[2 * 130..].to_vec();
            let (latent, key) = read.split_at_mut(128);
            format.turn_back(latent);
            format.turn_back(key);
            let difference: Vec<f32> = read.iter().zip(&row).map(|(a, b)| a - b).collect();
            assert!(largest(&difference) <= error, "{format}: {}", largest(&difference));
            // The large key does not coarsen the latent.
            assert!(largest(&difference[..128]) <= error.min(0.35), "{format}");
            assert!(error == 0.0 || largest(&difference) > 0.0, "{format} rounds");
        }
    }

    #[test]
    fn turned_queries_meet_turned_rows_as_plain_ones_would() {
        let values = |seed: f32| (0..192).map(|i| (i as f32 * seed).cos()).collect::<Vec<f32>>();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        for format in KvFormat::ALL {
            let (mut a, mut b) = (values(0.3), values(1.1));
            let expected = dot(&a, &b);
            format.turn(&mut a);
            format.turn(&mut b);
            assert!((dot(&a, &b) - expected).abs() < 1e-3, "{format}");
            format.turn_back(&mut a);
            assert!(a.iter().zip(values(0.3)).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }
}
