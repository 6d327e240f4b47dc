//! JSON objects as the formats of this crate need them: with their keys in order, and as Python would write them.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

/// The entries of an object in order. A map would let the last of two equal keys win in silence.
#[derive(Debug)]
pub(crate) struct Entries<V>(pub(crate) Vec<(String, V)>);

/// A structure that is written as an object. The derived implementation alone would take a list of its fields.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<V> Default for Entries<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for InOrder<V> {
            type Value = Entries<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<V>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(InOrder(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// What stands after commas and colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// Nothing.
    Compact,
    /// A space.
    Spaced,
}

/// `json` as Python's `json.dumps(json.loads(json), ensure_ascii=False)` writes it, so that a prompt has the ids of
/// the released encoders. Other than there, integers of any size keep their digits, and so do equal keys.
///
/// `json` is valid JSON: anything else gives some text or other.
pub(crate) fn restyle(json: &str, spacing: Spacing) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 8);
    let mut rest = json;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => {
                let len = string_len(rest);
                match serde_json::from_str::<String>(&rest[..len]) {
                    Ok(text) => push_string(&text, &mut out),
                    Err(_) => out.push_str(&rest[..len]),
                }
                len
            }
            '-' | '0'..='9' => {
                let len = rest.find([',', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(rest.len());
                push_number(&rest[..len], &mut out);
                len
            }
            ' ' | '\t' | '\r' | '\n' => 1,
            other => {
                out.push(other);
                if matches!(other, ',' | ':') && spacing == Spacing::Spaced {
                    out.push(' ');
                }
                other.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    out
}

/// Bytes of the string literal at the beginning of `json`, quotes included.
fn string_len(json: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in json.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    json.len()
}

/// Appends `text` as a string literal.
pub(crate) fn push_string(text: &str, out: &mut String) {
    out.push('"');
    push_escaped(text, out);
    out.push('"');
}

/// Appends `text` as the inside of a string literal.
pub(crate) fn push_escaped(text: &str, out: &mut String) {
    let literal = serde_json::to_string(text).expect("a string can be written to memory");
    out.push_str(&literal[1..literal.len() - 1]);
}

/// Appends a number. Integers stay as they are; others are written as Python's `repr` does: the fewest digits that
/// give the number back, with an exponent below 1e-4 and from 1e16 on.
fn push_number(literal: &str, out: &mut String) {
    use std::fmt::Write;

    let float = literal.contains(['.', 'e', 'E']).then(|| literal.parse::<f64>().ok()).flatten();
    let Some(float) = float.filter(|float| float.is_finite()) else {
        out.push_str(if literal == "-0" { "0" } else { literal });
        return;
    };
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').expect("scientific notation has an exponent");
    let exponent: i32 = exponent.parse().expect("and that is a number");
    if (-4..16).contains(&exponent) {
        // Decimal notation of Rust has the same digits; it lacks the fraction of a whole number.
        let plain = format!("{float}");
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs()).expect("memory takes all text");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_reads_as_python_writes_it() {
        for (json, expected) in [
            (r#" { "b":1 , "a" : [1,2.0 ,"x"]} "#, r#"{"b": 1, "a": [1, 2.0, "x"]}"#),
            (r#"["\u4f60\u597d","\ud83d\ude00","\u00e9\/"]"#, r#"["你好", "😀", "é/"]"#),
            (r#"["a\"b\\", "\n\u0001\u007f"]"#, "[\"a\\\"b\\\\\", \"\\n\\u0001\u{7f}\"]"),
            (
                "[1e2, 1.5e300, 1e16, 1e15, 0.0001, 0.00001, -0.0, -0, 1.0]",
                "[100.0, 1.5e+300, 1e+16, 1000000000000000.0, 0.0001, 1e-05, -0.0, 0, 1.0]",
            ),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("1e400", "1e400"),
            ("{}", "{}"),
            ("[true,false,null]", "[true, false, null]"),
        ] {
            assert_eq!(restyle(json, Spacing::Spaced), expected);
        }
        assert_eq!(restyle(r#"{"a" : [1, 2]}"#, Spacing::Compact), r#"{"a":[1,2]}"#);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(json in r#"[\[\]{}",:\\ 0-9eE.+\-ué文]{0,40}"#) {
            restyle(&json, Spacing::Spaced);
        }

        #[test]
        fn a_number_is_the_same_number(number in any::<f64>().prop_filter("finite", |number| number.is_finite())) {
            let literal = serde_json::to_string(&number).unwrap();
            prop_assert_eq!(restyle(&literal, Spacing::Spaced).parse::<f64>().unwrap().to_bits(), number.to_bits());
        }
    }
}
