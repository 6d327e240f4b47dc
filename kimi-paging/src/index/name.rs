//! Tensor names without half a million strings.
//!
//! Names of a model repeat: `layers.7.experts.345.w1.weight` differs from its neighbours by two numbers. A name is split into
//! a *template*, in which up to three components that are numbers read `{}`, and those numbers. The 497,220 names of the
//! released Kimi K3, 37 MB of text, have 59 templates.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::entry::{Key, MAX_ID, NUMBERS};
use crate::IndexProblem;

/// The placeholder of a number.
const PLACEHOLDER: &str = "{}";

/// A template of tensor names, made by [`TensorIndex::template`](crate::TensorIndex::template) and good for that index only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateId(pub(super) u32);

/// The templates of an index, each once.
#[derive(Debug, Default)]
pub(super) struct Names {
    templates: Vec<Template>,
    ids: HashTable<u32>,
    /// Keyed per process: names come from files, and nobody should be able to choose colliding ones.
    hasher: RandomState,
    scratch: String,
}

/// A name that contains `{}` itself has no numbers, so template and numbers always lead back to one name.
#[derive(Debug, PartialEq)]
struct Template {
    text: Box<str>,
    numbers: u8,
}

impl Names {
    /// The key of `name`, whose template is added when it is new.
    pub(super) fn intern(&mut self, name: &str) -> Result<Key, IndexProblem> {
        let mut text = std::mem::take(&mut self.scratch);
        let (numbers, count) = split(name, &mut text);
        let id = match self.id(&text, count) {
            Some(id) => Ok(id),
            None => self.add(&text, count),
        };
        self.scratch = text;
        Ok(Key { template: id?, numbers })
    }

    /// The key of `name`, if its template is known.
    pub(super) fn key(&self, name: &str) -> Option<Key> {
        let mut text = String::with_capacity(name.len());
        let (numbers, count) = split(name, &mut text);
        self.id(&text, count).map(|template| Key { template, numbers })
    }

    /// The template written with placeholders.
    pub(super) fn template(&self, pattern: &str) -> Option<TemplateId> {
        let count = pattern.split('.').filter(|&part| part == PLACEHOLDER).count();
        self.id(pattern, u8::try_from(count).ok()?).map(TemplateId)
    }

    /// How many numbers a template takes; `None` for the id of another index.
    pub(super) fn numbers(&self, template: TemplateId) -> Option<usize> {
        self.templates.get(template.0 as usize).map(|template| usize::from(template.numbers))
    }

    /// The name of a key.
    pub(super) fn name(&self, key: Key) -> String {
        let template = &self.templates[key.template as usize];
        let numbers = &key.numbers[..usize::from(template.numbers)];
        fill(&template.text, numbers.iter().map(|&number| u32::from(number)))
    }

    /// The name of a template with numbers of any size.
    pub(super) fn fill(&self, template: TemplateId, numbers: &[u32]) -> String {
        fill(&self.templates[template.0 as usize].text, numbers.iter().copied())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let texts: usize = self.templates.iter().map(|template| template.text.len()).sum();
        texts
            + self.templates.capacity() * size_of::<Template>()
            + self.ids.allocation_size()
            + self.scratch.capacity()
    }

    pub(super) fn shrink(&mut self) {
        self.templates.shrink_to_fit();
        self.scratch = String::new();
    }

    fn id(&self, text: &str, numbers: u8) -> Option<u32> {
        let same = |&id: &u32| {
            let template = &self.templates[id as usize];
            template.numbers == numbers && *template.text == *text
        };
        self.ids.find(self.hasher.hash_one((text, numbers)), same).copied()
    }

    fn add(&mut self, text: &str, numbers: u8) -> Result<u32, IndexProblem> {
        let id = self.templates.len() as u32;
        if id >= MAX_ID {
            return Err(IndexProblem::TooMany { what: "different tensor names", limit: MAX_ID.into() });
        }
        self.templates.push(Template { text: text.into(), numbers });
        let rehash = |&id: &u32| {
            let template = &self.templates[id as usize];
            self.hasher.hash_one((&*template.text, template.numbers))
        };
        self.ids.insert_unique(self.hasher.hash_one((text, numbers)), id, rehash);
        Ok(id)
    }
}

/// Writes the template of `name` to `text`; returns the numbers and how many there are.
fn split(name: &str, text: &mut String) -> ([u16; NUMBERS], u8) {
    let (mut numbers, mut count) = ([0; NUMBERS], 0);
    text.clear();
    if name.contains(PLACEHOLDER) {
        text.push_str(name);
        return (numbers, 0);
    }
    for (at, part) in name.split('.').enumerate() {
        if at > 0 {
            text.push('.');
        }
        match number(part) {
            Some(number) if count < NUMBERS => {
                numbers[count] = number;
                count += 1;
                text.push_str(PLACEHOLDER);
            }
            _ => text.push_str(part),
        }
    }
    (numbers, count as u8)
}

/// The value of a component that is a number and is written as a number prints: no sign, no leading zero.
fn number(part: &str) -> Option<u16> {
    let digits = part.as_bytes();
    if !digits.first()?.is_ascii_digit() || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    part.parse().ok()
}

fn fill(text: &str, mut numbers: impl Iterator<Item = u32>) -> String {
    let mut name = String::with_capacity(text.len() + 8);
    for (at, part) in text.split('.').enumerate() {
        if at > 0 {
            name.push('.');
        }
        match (part, part == PLACEHOLDER) {
            (part, false) => name.push_str(part),
            (part, true) => match numbers.next() {
                Some(number) => write!(name, "{number}").expect("writing to a String does not fail"),
                None => name.push_str(part),
            },
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_whole_components() {
        let mut text = String::new();
        for (name, template, numbers) in [
            (
                "model.layers.12.experts.345.w1.weight_packed",
                "model.layers.{}.experts.{}.w1.weight_packed",
                &[12, 345][..],
            ),
            ("model.norm.weight", "model.norm.weight", &[]),
            ("0", "{}", &[0]),
            ("a.1.2.3.4", "a.{}.{}.{}.4", &[1, 2, 3]),
            ("a.01.65535.65536.+1..7", "a.01.{}.65536.+1..{}", &[65535, 7]),
            ("a.{}.1", "a.{}.1", &[]),
            ("", "", &[]),
            ("слой.5.вес", "слой.{}.вес", &[5]),
        ] {
            let (found, count) = split(name, &mut text);
            assert_eq!((text.as_str(), &found[..usize::from(count)]), (template, numbers), "{name}");
        }
    }

    #[test]
    fn literal_placeholders_are_not_numbers() {
        let mut names = Names::default();
        let all = ["a.0.b", "a.{}.b", "a.{}.0", "a.0.{}", "{}", "0", "a.0.0"];
        let keys: Vec<_> = all.iter().map(|name| names.intern(name).unwrap()).collect();
        for (i, name) in all.iter().enumerate() {
            assert_eq!((names.name(keys[i]), names.key(name)), ((*name).to_owned(), Some(keys[i])));
            assert!(keys[i + 1..].iter().all(|key| *key != keys[i]), "{name}");
        }
    }

    proptest! {
        #[test]
        fn keys_lead_back_to_names(names in prop::collection::vec("([0-9]{1,6}|[a-z{}]{0,3}|[0-9][a-z])(\\.([0-9]{1,6}|[a-z{}]{0,3})){0,5}", 1..40)) {
            let mut interned = Names::default();
            let keys: Vec<_> = names.iter().map(|name| interned.intern(name).unwrap()).collect();
            for (name, &key) in names.iter().zip(&keys) {
                prop_assert_eq!(&interned.name(key), name);
                prop_assert_eq!(interned.key(name), Some(key));
            }
            for (a, x) in names.iter().zip(&keys) {
                for (b, y) in names.iter().zip(&keys) {
                    prop_assert_eq!(a == b, x == y);
                }
            }
        }
    }
}
