//! The header of one safetensors file, read a piece at a time.
//!
//! A file is eight bytes of header length (little endian), that many bytes of JSON, and data that the tensors cover without
//! holes or overlaps. Sizes are checked before anything is allocated by them.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::dtype::{Dtype, OtherDtype};
use super::json::{Stream, Text};
use crate::{Error, ShardProblem, Source};

/// The cap of the safetensors format on the length of a header in bytes, as the safetensors crate has it.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes before the header.
const LENGTH_BYTES: u64 = 8;

/// The key of the header that is no tensor.
const METADATA: &str = "__metadata__";

/// One tensor as its header describes it, its own sizes checked.
#[derive(Debug)]
pub(super) struct Described<'a> {
    pub(super) name: &'a str,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a [u64],
    /// Where it begins in the file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Reads the header of `source` and gives every tensor to `each`; returns where the data begin.
///
/// A tensor that reaches past the end of the file is not given to `each`; the file is refused at the end, when the whole
/// damage is known.
pub(super) fn read(
    source: &dyn Source,
    mut each: impl FnMut(Described<'_>) -> Result<(), Error>,
) -> Result<u64, Error> {
    let refuse = |problem| Error::Shard { path: source.name().to_path_buf(), problem };
    let file_bytes = source.len();
    let Some(available) = file_bytes.checked_sub(LENGTH_BYTES) else {
        return Err(refuse(ShardProblem::TooShort { found: file_bytes }));
    };
    let mut prefix = [0; LENGTH_BYTES as usize];
    source.read_once(0, &mut prefix)?;
    let claimed = u64::from_le_bytes(prefix);
    if claimed > available {
        return Err(refuse(ShardProblem::HeaderPastEnd { claimed, available }));
    }
    if claimed > MAX_HEADER_BYTES {
        return Err(refuse(ShardProblem::HeaderTooLarge { claimed, limit: MAX_HEADER_BYTES }));
    }

    let data = LENGTH_BYTES + claimed;
    let mut header =
        Header { data, file_bytes, each: &mut each, name: String::new(), failure: None, furthest: None };
    let parsed = Stream::new(source, LENGTH_BYTES, data)
        .parse(&mut header, |error| refuse(ShardProblem::Header { tensor: None, reason: error.to_string() }));
    match (parsed, header.failure) {
        (_, Some(Failure::Problem(problem))) => return Err(refuse(problem)),
        (_, Some(Failure::Other(error))) => return Err(error),
        // The parser knows the column; the tensor says more.
        (Err(Error::Shard { path, problem: ShardProblem::Header { reason, .. } }), None) => {
            let tensor = Some(header.name).filter(|name| !name.is_empty());
            return Err(Error::Shard { path, problem: ShardProblem::Header { tensor, reason } });
        }
        (parsed, None) => parsed?,
    }
    if let Some((tensor, expected)) = header.furthest {
        let missing = expected - file_bytes;
        return Err(refuse(ShardProblem::Truncated { tensor, expected, found: file_bytes, missing }));
    }
    Ok(data)
}

struct Header<'a> {
    data: u64,
    file_bytes: u64,
    each: &'a mut dyn FnMut(Described<'_>) -> Result<(), Error>,
    /// The tensor that is being read.
    name: String,
    failure: Option<Failure>,
    /// The tensor that reaches furthest past the end of the file, and where it ends.
    furthest: Option<(String, u64)>,
}

enum Failure {
    Problem(ShardProblem),
    Other(Error),
}

impl<'de> DeserializeSeed<'de> for &mut Header<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Header<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut shape = Vec::new();
        while map.next_key_seed(Text(&mut self.name))?.is_some() {
            if self.name == METADATA {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let Fields { dtype, offsets } = map.next_value_seed(Description { shape: &mut shape })?;
            if let Err(failure) = self.tensor(dtype, &shape, offsets) {
                self.failure = Some(failure);
                return Err(A::Error::custom("stopped"));
            }
        }
        self.name.clear();
        Ok(())
    }
}

impl Header<'_> {
    fn tensor(
        &mut self,
        dtype: Result<Dtype, String>,
        shape: &[u64],
        [begin, end]: [u64; 2],
    ) -> Result<(), Failure> {
        let tensor = || self.name.clone();
        let dtype = dtype.map_err(|dtype| {
            Failure::Problem(ShardProblem::DtypeName { tensor: tensor(), dtype, limit: OtherDtype::MAX_LEN })
        })?;
        let Some(bytes) = end.checked_sub(begin) else {
            return Err(Failure::Problem(ShardProblem::Reversed { tensor: tensor(), begin, end }));
        };
        if let Some(bits) = dtype.bits() {
            let expected = tensor_bytes(bits, shape);
            if expected != Some(bytes) {
                let (dtype, shape) = (dtype.to_string(), shape.to_vec());
                let problem = ShardProblem::Size { tensor: tensor(), dtype, shape, expected, found: bytes };
                return Err(Failure::Problem(problem));
            }
        }
        let end = self.data.saturating_add(end);
        if end > self.file_bytes {
            if self.furthest.as_ref().is_none_or(|(_, furthest)| end > *furthest) {
                self.furthest = Some((tensor(), end));
            }
            return Ok(());
        }
        let described = Described { name: &self.name, dtype, shape, offset: self.data + begin, bytes };
        (self.each)(described).map_err(Failure::Other)
    }
}

/// The bytes of a tensor, if they are a whole number that fits.
fn tensor_bytes(bits: u32, shape: &[u64]) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n))?;
    let bits = elements.checked_mul(bits.into())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// What the description of a tensor holds besides its shape.
struct Fields {
    /// The type, or the beginning of a name too long to be one.
    dtype: Result<Dtype, String>,
    offsets: [u64; 2],
}

/// Reads the description of a tensor. Fields that later versions of the format may add are skipped.
struct Description<'a> {
    shape: &'a mut Vec<u64>,
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Field {
    Dtype,
    Shape,
    DataOffsets,
    #[serde(other)]
    Unknown,
}

impl<'de> DeserializeSeed<'de> for Description<'_> {
    type Value = Fields;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Fields, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Description<'_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<Field>()? {
            let repeated = match field {
                Field::Dtype => dtype.replace(map.next_value_seed(DtypeName)?).is_some(),
                Field::Shape => shape.replace(map.next_value_seed(Shape(self.shape))?).is_some(),
                Field::DataOffsets => offsets.replace(map.next_value::<[u64; 2]>()?).is_some(),
                Field::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if repeated {
                return Err(A::Error::custom("a field occurs twice"));
            }
        }
        shape.ok_or_else(|| A::Error::missing_field("shape"))?;
        Ok(Fields {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            offsets: offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }
}

struct DtypeName;

impl<'de> DeserializeSeed<'de> for DtypeName {
    type Value = Result<Dtype, String>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for DtypeName {
    type Value = Result<Dtype, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a type")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Dtype::from_name(name).ok_or_else(|| name.chars().take(OtherDtype::MAX_LEN).collect()))
    }
}

/// Reads a shape into memory that is used again and again.
struct Shape<'a>(&'a mut Vec<u64>);

impl<'de> DeserializeSeed<'de> for Shape<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.clear();
        while let Some(size) = seq.next_element()? {
            self.0.push(size);
        }
        Ok(())
    }
}
