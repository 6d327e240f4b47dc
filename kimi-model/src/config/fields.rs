//! Typed access to the fields of a JSON object, with errors that name field and file.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ConfigError;

/// A parsed file and the paths of the fields that were read from it.
pub(crate) struct Document<'a> {
    root: Map<String, Value>,
    file: &'a Path,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Document<'a> {
    pub(crate) fn parse(json: &[u8], file: &'a Path) -> Result<Self, ConfigError> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(root)) => Ok(Self { root, file, read: RefCell::default() }),
            Ok(_) => Err(ConfigError::NotAnObject { file: file.to_path_buf() }),
            Err(source) => Err(ConfigError::Json { file: file.to_path_buf(), source }),
        }
    }

    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields { map: &self.root, prefix: String::new(), document: self }
    }

    /// What nobody asked for, nested objects reduced to their unread part.
    pub(crate) fn unread(&self) -> Map<String, Value> {
        fn filter(map: &Map<String, Value>, prefix: &str, read: &BTreeSet<String>) -> Map<String, Value> {
            let mut rest = Map::new();
            for (key, value) in map {
                let path = format!("{prefix}{key}");
                match value {
                    _ if !read.contains(&path) => {
                        rest.insert(key.clone(), value.clone());
                    }
                    Value::Object(nested) => {
                        let nested = filter(nested, &format!("{path}."), read);
                        if !nested.is_empty() {
                            rest.insert(key.clone(), Value::Object(nested));
                        }
                    }
                    _ => {}
                }
            }
            rest
        }
        filter(&self.root, "", &self.read.borrow())
    }
}

/// One object of the document. A field that is `null` counts as absent.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    prefix: String,
    document: &'a Document<'a>,
}

impl<'a> Fields<'a> {
    fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    fn value(&self, field: &str) -> Option<&'a Value> {
        self.document.read.borrow_mut().insert(self.path(field));
        self.map.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn holds(&self, field: &str) -> bool {
        self.value(field).is_some()
    }

    /// The object in a field.
    pub(crate) fn nested(&self, field: &str) -> Result<Option<Self>, ConfigError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Fields { map, prefix: format!("{}.", self.path(field)), document: self.document }))
            }
            Some(_) => Err(self.invalid(field, "it must be an object")),
        }
    }

    pub(crate) fn optional<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|error| self.invalid(field, &error.to_string()))
    }

    pub(crate) fn required<T: DeserializeOwned>(&self, field: &str) -> Result<T, ConfigError> {
        self.optional(field)?.ok_or_else(|| self.missing(field))
    }

    /// A count from 1 to `max`.
    pub(crate) fn optional_size(&self, field: &str, max: usize) -> Result<Option<usize>, ConfigError> {
        let Some(size) = self.optional::<u64>(field)? else { return Ok(None) };
        match usize::try_from(size) {
            Ok(size) if (1..=max).contains(&size) => Ok(Some(size)),
            _ => Err(self.invalid(field, &format!("{size} is outside 1 to {max}"))),
        }
    }

    pub(crate) fn size(&self, field: &str, max: usize) -> Result<usize, ConfigError> {
        self.optional_size(field, max)?.ok_or_else(|| self.missing(field))
    }

    /// A positive number that float32 can hold.
    pub(crate) fn positive(&self, field: &str) -> Result<f32, ConfigError> {
        let value: f32 = self.required(field)?;
        if value > 0.0 && value.is_finite() {
            Ok(value)
        } else {
            Err(self.invalid(field, "it must be positive"))
        }
    }

    /// One token id, a list of them, or nothing.
    pub(crate) fn token_ids(&self, field: &str) -> Result<Vec<u32>, ConfigError> {
        match self.value(field) {
            Some(Value::Array(_)) => self.required(field),
            _ => Ok(self.optional(field)?.into_iter().collect()),
        }
    }

    pub(crate) fn missing(&self, field: &str) -> ConfigError {
        ConfigError::Missing { file: self.document.file.to_path_buf(), field: self.path(field) }
    }

    pub(crate) fn invalid(&self, field: &str, reason: &str) -> ConfigError {
        let (file, field) = (self.document.file.to_path_buf(), self.path(field));
        ConfigError::Invalid { file, field, reason: reason.to_owned() }
    }

    pub(crate) fn unsupported(&self, field: &str, value: &str, reason: &str) -> ConfigError {
        self.invalid(field, &format!("`{value}` is not supported: {reason}"))
    }

    /// A fault of one layer number in a list.
    pub(crate) fn layer(&self, field: &str, number: usize, reason: &str) -> ConfigError {
        self.invalid(field, &format!("layer {number} {reason}"))
    }
}
