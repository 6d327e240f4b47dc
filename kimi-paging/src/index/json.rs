//! JSON read straight from a source, a piece at a time.

use std::fmt;
use std::io;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::{Error, Source};

/// Bytes read ahead of the parser.
const PIECE_BYTES: usize = 256 << 10;

/// What is at most this long is read at once: the parser is much faster on a slice than on a stream.
const WHOLE_BYTES: u64 = 2 << 20;

/// A range of a source as a stream.
pub(super) struct Stream<'a> {
    source: &'a dyn Source,
    offset: u64,
    end: u64,
    piece: Vec<u8>,
    at: usize,
    /// Why a read failed, kept here because the parser passes on less.
    failure: Option<Error>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(source: &'a dyn Source, offset: u64, end: u64) -> Self {
        Self { source, offset, end, piece: Vec::new(), at: 0, failure: None }
    }

    /// Parses one JSON value that fills the whole stream.
    ///
    /// # Errors
    /// What the source or the parser says; the latter goes through `invalid`.
    pub(super) fn parse(
        mut self,
        seed: impl for<'de> DeserializeSeed<'de, Value = ()>,
        invalid: impl FnOnce(serde_json::Error) -> Error,
    ) -> Result<(), Error> {
        let len = self.end - self.offset;
        if len <= WHOLE_BYTES {
            let mut whole = vec![0; len as usize];
            self.source.read_once(self.offset, &mut whole)?;
            return value(seed, serde_json::Deserializer::from_slice(&whole)).map_err(invalid);
        }
        let parsed = value(seed, serde_json::Deserializer::from_reader(&mut self));
        parsed.map_err(|error| self.failure.take().unwrap_or_else(|| invalid(error)))
    }

    fn refill(&mut self) -> io::Result<()> {
        let len = (self.end - self.offset).min(PIECE_BYTES as u64) as usize;
        self.piece.resize(len, 0);
        self.at = 0;
        match self.source.read_once(self.offset, &mut self.piece) {
            Ok(()) => {
                self.offset += len as u64;
                Ok(())
            }
            Err(error) => {
                self.failure = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        }
    }
}

impl io::Read for Stream<'_> {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // The parser asks for single bytes, sixty million of them for a large index.
        if let ([to], Some(&from)) = (&mut *buf, self.piece.get(self.at)) {
            *to = from;
            self.at += 1;
            return Ok(1);
        }
        if self.at == self.piece.len() {
            if self.offset == self.end {
                return Ok(0);
            }
            self.refill()?;
        }
        let count = buf.len().min(self.piece.len() - self.at);
        buf[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// One value with nothing behind it.
fn value<'de>(
    seed: impl DeserializeSeed<'de, Value = ()>,
    mut json: serde_json::Deserializer<impl serde_json::de::Read<'de>>,
) -> serde_json::Result<()> {
    seed.deserialize(&mut json)?;
    json.end()
}

/// Copies a JSON string into a `String` whose memory is used again and again.
pub(super) struct Text<'a>(pub(super) &'a mut String);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.clear();
        self.0.push_str(text);
        Ok(())
    }
}

/// The `weight_map` of a `model.safetensors.index.json`, each pair of tensor and shard given to a function.
///
/// The function says `false` to stop; it keeps the reason itself.
pub(super) struct WeightMap<F>(pub(super) F);

impl<'de, F: FnMut(&str, &str) -> bool> DeserializeSeed<'de> for WeightMap<F> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(&str, &str) -> bool> Visitor<'de> for WeightMap<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let (mut field, mut seen) = (String::new(), false);
        while map.next_key_seed(Text(&mut field))?.is_some() {
            if field != "weight_map" {
                map.next_value::<IgnoredAny>()?;
            } else if std::mem::replace(&mut seen, true) {
                return Err(A::Error::custom("`weight_map` occurs twice"));
            } else {
                map.next_value_seed(Pairs(&mut self.0))?;
            }
        }
        if seen { Ok(()) } else { Err(A::Error::custom("`weight_map` is missing")) }
    }
}

struct Pairs<'a, F>(&'a mut F);

impl<'de, F: FnMut(&str, &str) -> bool> DeserializeSeed<'de> for Pairs<'_, F> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(&str, &str) -> bool> Visitor<'de> for Pairs<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to shard names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut tensor, mut shard) = (String::new(), String::new());
        while map.next_key_seed(Text(&mut tensor))?.is_some() {
            map.next_value_seed(Text(&mut shard))?;
            if !(self.0)(&tensor, &shard) {
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}
