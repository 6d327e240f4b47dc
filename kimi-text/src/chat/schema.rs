//! What types the tools declare for their arguments.

use std::collections::HashMap;

use serde::de::IgnoredAny;
use serde_json::Value;

/// Schemas that are looked at for one argument: references and alternatives can lead in circles.
const MAX_STEPS: usize = 256;

/// The declared types of all arguments of all tools.
#[derive(Debug, Clone, Default)]
pub(super) struct Schemas(HashMap<String, HashMap<String, Types>>);

/// A set of JSON types; empty where nothing is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Types(u8);

impl Types {
    const STRING: Self = Self(1);
    const INTEGER: Self = Self(2);
    /// Any number, integers included.
    const NUMBER: Self = Self(4 | Self::INTEGER.0);
    const BOOLEAN: Self = Self(8);
    const NULL: Self = Self(16);
    const OBJECT: Self = Self(32);
    const ARRAY: Self = Self(64);

    /// The type of this name.
    pub(super) fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self::default(),
        }
    }

    /// The type of a text that is JSON; nothing for other texts.
    fn of_json(text: &str) -> Self {
        if serde_json::from_str::<IgnoredAny>(text).is_err() {
            return Self::default();
        }
        match text.trim_start().as_bytes()[0] {
            b'"' => Self::STRING,
            b'{' => Self::OBJECT,
            b'[' => Self::ARRAY,
            b't' | b'f' => Self::BOOLEAN,
            b'n' => Self::NULL,
            // JSON Schema counts 1.0 among the integers.
            _ => match text.trim().parse::<f64>() {
                Ok(number) if number.fract() == 0.0 => Self::INTEGER,
                _ => Self::NUMBER,
            },
        }
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in this set.
    fn has(self, other: Self) -> bool {
        !other.is_empty() && self.0 & other.0 == other.0
    }

    /// Whether an argument that is declared so, and that the model gives the type `given`, can only be a string. The
    /// declaration counts, then what the model says.
    pub(super) fn is_string(self, given: Option<Self>) -> bool {
        match given {
            _ if self == Self::STRING => true,
            Some(given) => given == Self::STRING && (self.is_empty() || self.has(Self::STRING)),
            None => self.is_empty() || self.has(Self::STRING),
        }
    }

    /// Whether `text` stands for itself as JSON, in an argument that is not [a string](Self::is_string) beforehand; it is
    /// a string otherwise.
    pub(super) fn is_json(self, given: Option<Self>, text: &str) -> bool {
        let found = Self::of_json(text);
        self.has(found) || (!found.is_empty() && found != Self::STRING && given != Some(Self::STRING))
    }
}

impl Schemas {
    /// The declared types of `tools`: objects with a `function`, or functions themselves.
    pub(super) fn new(tools: &[Value]) -> Self {
        let mut schemas = HashMap::new();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function["name"].as_str() else { continue };
            let root = &function["parameters"];
            let properties = root["properties"].as_object().into_iter().flatten();
            let types = properties
                .map(|(key, schema)| (key.clone(), types_of(schema, root, &mut { MAX_STEPS })))
                .collect();
            schemas.insert(name.to_string(), types);
        }
        Self(schemas)
    }

    /// Whether a tool of this name is declared.
    pub(super) fn declares(&self, tool: &str) -> bool {
        self.0.contains_key(tool)
    }

    /// The declared types of an argument.
    pub(super) fn types(&self, tool: &str, key: &str) -> Types {
        self.0.get(tool).and_then(|keys| keys.get(key)).copied().unwrap_or_default()
    }
}

/// The types that a schema allows, as far as it says so plainly within so many steps.
fn types_of(schema: &Value, root: &Value, steps: &mut usize) -> Types {
    let Some(left) = steps.checked_sub(1) else { return Types::default() };
    *steps = left;
    let values = |values: &[Value]| {
        values.iter().map(|value| Types::of_json(&value.to_string())).fold(Types::default(), Types::with)
    };
    match &schema["type"] {
        Value::String(name) => return Types::named(name),
        Value::Array(names) => {
            return names
                .iter()
                .filter_map(Value::as_str)
                .map(Types::named)
                .fold(Types::default(), Types::with);
        }
        _ => {}
    }
    if let Some(value) = schema.get("const") {
        return values(std::slice::from_ref(value));
    }
    if let Some(allowed) = schema["enum"].as_array() {
        return values(allowed);
    }
    if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        return root.pointer(path).map_or_else(Types::default, |schema| types_of(schema, root, steps));
    }
    let Some(alternatives) = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array()) else {
        return Types::default();
    };
    let mut all = Types::default();
    for alternative in alternatives {
        let types = types_of(alternative, root, steps);
        // One alternative that allows anything makes the whole do so.
        if types.is_empty() {
            return types;
        }
        all = all.with(types);
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_found_where_schemas_say_them() {
        let tools = [
            json!({"type": "function", "function": {"name": "f", "parameters": {
                "type": "object",
                "$defs": {
                "unit": {"enum": ["c", "f"]},
                "loop": {"$ref": "#/$defs/loop"},
                "tree": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/tree"}]}
            },
                "properties": {
                    "s": {"type": "string"},
                    "n": {"type": ["integer", "null"]},
                    "unit": {"$ref": "#/$defs/unit"},
                    "either": {"anyOf": [{"type": "boolean"}, {"const": 7}]},
                    "open": {"anyOf": [{"type": "boolean"}, {}]},
                    "loop": {"$ref": "#/$defs/loop"},
                    "elsewhere": {"$ref": "https://example.com/schema"},
                    "any": true
                }
            }}}),
            json!({"name": "g"}),
            json!("no tool"),
        ];
        let schemas = Schemas::new(&tools);
        for (key, expected) in [
            ("s", Types::STRING),
            ("n", Types::INTEGER.with(Types::NULL)),
            ("unit", Types::STRING),
            ("either", Types::BOOLEAN.with(Types::INTEGER)),
            ("open", Types::default()),
            ("loop", Types::default()),
            ("tree", Types::default()),
            ("elsewhere", Types::default()),
            ("any", Types::default()),
            ("unheard", Types::default()),
        ] {
            assert_eq!(schemas.types("f", key), expected, "{key}");
        }
        assert!(schemas.declares("g") && !schemas.declares("h"));
    }

    #[test]
    fn the_declaration_counts_then_what_the_model_says() {
        let (string, number) = (Some(Types::STRING), Some(Types::NUMBER));
        let nullable = Types::STRING.with(Types::NULL);
        for (declared, given, text, json) in [
            (Types::STRING, number, "5", false),
            (Types::STRING, None, "{\"a\": 1}", false),
            (Types::INTEGER, string, "5", true),
            (Types::INTEGER, string, "five", false),
            (Types::INTEGER, string, "5.5", false),
            (Types::INTEGER, number, "5.5", true),
            (Types::INTEGER, None, "1e2", true),
            (Types::NUMBER, number, "1.5", true),
            (nullable, Some(Types::NULL), "null", true),
            (nullable, string, "null", false),
            (Types::BOOLEAN, string, "true", true),
            (Types::BOOLEAN, string, "True", false),
            (Types::OBJECT, string, "{\"a\": [1]}", true),
            (Types::OBJECT, Some(Types::OBJECT), "{\"a\": [1}", false),
            (Types::default(), string, "5", false),
            (Types::default(), number, "5", true),
            (Types::default(), number, "5 apples", false),
            (Types::default(), None, "5", false),
            (Types::default(), Some(Types::default()), "5", true),
        ] {
            let found = !declared.is_string(given) && declared.is_json(given, text);
            assert_eq!(found, json, "{declared:?} {given:?} {text}");
        }
    }
}
