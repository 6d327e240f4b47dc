//! The formats, and how to tell which one a model has.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use serde_json::Value;

use super::k2::{self, Style, Thinking};
use super::{Effort, k3};
use crate::error::LoadErrorKind;
use crate::json::Spacing;
use crate::specials::CONFIG_FILE as TOKENIZER_CONFIG_FILE;
use crate::tokenizer::read;
use crate::vocabulary::excerpt;
use crate::{LoadError, Tokenizer};

/// The largest file that is read to recognise a format, in bytes; released ones have some ten thousand.
const MAX_FILE_BYTES: usize = 4 << 20;

const CONFIG_FILE: &str = "config.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";

/// Reads a file of a model by its name.
type Read<'a> = dyn Fn(&str) -> Result<Vec<u8>, LoadErrorKind> + 'a;

/// How a model has its conversations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChatFormat {
    name: &'static str,
    family: Family,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    K3,
    K2(Style),
}

impl ChatFormat {
    /// Kimi K3.
    pub const K3: Self = Self { name: "k3", family: Family::K3 };

    /// Kimi K2 Instruct as first released (July 2025), and Moonlight: no names, calls or ids in the prompt.
    pub const K2_INSTRUCT_0711: Self = Self {
        name: "k2-instruct-0711",
        family: Family::K2(Style {
            default_system: Some("You are a helpful assistant"),
            thinking: Thinking::Never,
            full: false,
            tools: Spacing::Spaced,
        }),
    };

    /// Later Kimi K2 Instruct, and Kimi-Linear. The one format here without recorded prompts of its own: it is
    /// [`K2_THINKING`](Self::K2_THINKING) without the thinking.
    pub const K2_INSTRUCT: Self = Self {
        name: "k2-instruct",
        family: Family::K2(Style {
            default_system: Some(KIMI_SYSTEM),
            thinking: Thinking::Never,
            full: true,
            tools: Spacing::Compact,
        }),
    };

    /// Kimi K2 Thinking. The model writes the marker of its reasoning itself.
    pub const K2_THINKING: Self = Self {
        name: "k2-thinking",
        family: Family::K2(Style {
            default_system: Some(KIMI_SYSTEM),
            thinking: Thinking::Always,
            full: true,
            tools: Spacing::Spaced,
        }),
    };

    /// Kimi K2.5. Tools are declared as JSON; the release can also declare them in a form like TypeScript, which is not
    /// rendered here.
    pub const K2_5: Self = Self {
        name: "k2.5",
        family: Family::K2(Style {
            default_system: None,
            thinking: Thinking::Optional,
            full: true,
            tools: Spacing::Compact,
        }),
    };

    /// Kimi K2.6: K2.5 with [`preserve_thinking`](super::ChatOptions::preserve_thinking).
    pub const K2_6: Self = Self {
        name: "k2.6",
        family: Family::K2(Style {
            default_system: None,
            thinking: Thinking::Preservable,
            full: true,
            tools: Spacing::Compact,
        }),
    };

    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::K3, Self::K2_INSTRUCT_0711, Self::K2_INSTRUCT, Self::K2_THINKING, Self::K2_5, Self::K2_6];

    /// Recognises the format of a model in a folder, by its `config.json`, its `chat_template.jinja` or the
    /// `chat_template` of its `tokenizer_config.json`, and its tokenizer. Files that are absent say nothing.
    ///
    /// # Errors
    /// As [`recognise`](Self::recognise); [`FormatError::File`] when a file cannot be read or is no JSON.
    pub fn of_dir(folder: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<Self, FormatError> {
        let folder = folder.as_ref();
        Self::of(folder, &|name| read(&folder.join(name), MAX_FILE_BYTES), tokenizer)
    }

    /// As [`of_dir`](Self::of_dir), for files that lie elsewhere: `read` gives the bytes of a file, or `None` where there is
    /// none. `folder` is named in errors.
    ///
    /// # Errors
    /// As [`of_dir`](Self::of_dir).
    pub fn of_files(
        folder: &Path,
        read: &dyn Fn(&str) -> io::Result<Option<Vec<u8>>>,
        tokenizer: &Tokenizer,
    ) -> Result<Self, FormatError> {
        let bounded = |name: &str| match read(name) {
            Ok(Some(bytes)) if bytes.len() > MAX_FILE_BYTES => {
                Err(LoadErrorKind::TooLarge { expected: MAX_FILE_BYTES, found: bytes.len() })
            }
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(LoadErrorKind::Io(ErrorKind::NotFound.into())),
            Err(error) => Err(LoadErrorKind::Io(error)),
        };
        Self::of(folder, &bounded, tokenizer)
    }

    fn of(folder: &Path, read: &Read<'_>, tokenizer: &Tokenizer) -> Result<Self, FormatError> {
        let config = json(folder, CONFIG_FILE, read)?;
        let model_type = config.as_ref().and_then(|config| config["model_type"].as_str());
        let template = match text(folder, TEMPLATE_FILE, read)? {
            Some(template) => Some(template),
            None => json(folder, TOKENIZER_CONFIG_FILE, read)?.as_ref().and_then(template_of),
        };
        Self::recognise(tokenizer, model_type, template.as_deref())
    }

    /// Recognises a format by the names of the special tokens, the `model_type` of a configuration, and the text of a
    /// chat template, the last two if there are any. A template that is none of the known ones is not taken for
    /// one. Copies of one template differ in whether they declare tools without spaces; the format that comes back does
    /// as this one, so it need not be equal to the constant of its name.
    ///
    /// # Errors
    /// [`FormatError::Unknown`] when this is no format of [`ALL`](Self::ALL), [`FormatError::Ambiguous`] when it could be
    /// several.
    pub fn recognise(
        tokenizer: &Tokenizer,
        model_type: Option<&str>,
        template: Option<&str>,
    ) -> Result<Self, FormatError> {
        let has = |names: &[&str]| names.iter().all(|name| tokenizer.special_id(name).is_some());
        let unknown = |reason| FormatError::Unknown {
            model: model_type.map_or_else(
                || "without a model_type".into(),
                |name| format!("`{}`", excerpt(name.as_bytes())),
            ),
            reason,
        };
        if has(&[k3::OPEN, k3::CLOSE, k3::SEP, k3::END_OF_MSG]) {
            return match template {
                Some(template) if !template.contains(k3::OPEN) => Err(unknown(
                    "the tokenizer has the markers of k3 and the chat template does not use them",
                )),
                _ => Ok(Self::K3),
            };
        }
        if !has(&[k2::IM_USER, k2::IM_ASSISTANT, k2::IM_SYSTEM, k2::IM_MIDDLE, k2::IM_END]) {
            return Err(unknown("the tokenizer has the markers of no known format"));
        }
        if let Some(template) = template {
            return Self::of_template(template)
                .ok_or_else(|| unknown("the chat template is none of the known ones"));
        }
        match model_type {
            Some("kimi_k25") => Ok(Self::K2_5),
            Some("kimi_k2") if has(&[k2::THINK, k2::THINK_END]) => Ok(Self::K2_THINKING),
            Some("kimi_k2" | "kimi_linear") => Ok(Self::K2_INSTRUCT),
            Some("deepseek_v3") => Ok(Self::K2_INSTRUCT_0711),
            Some(_) => Err(unknown("the type of the model has no known format")),
            None => Err(FormatError::Ambiguous),
        }
    }

    /// The format of the K2 family whose template this is.
    fn of_template(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if ![k2::IM_USER, k2::IM_ASSISTANT, k2::IM_SYSTEM, k2::IM_MIDDLE, k2::IM_END].into_iter().all(has) {
            return None;
        }
        let calls = has(k2::CALL_BEGIN) && has("## Return of");
        // Turns up to the last answer are a history of their own, without reasoning.
        let thinks = has(k2::THINK) && has("hist_msgs");
        // Thinking can be switched off.
        let optional = has("thinking is false");
        let format = match (thinks, calls) {
            (true, true) if has(KIMI_SYSTEM) && !optional => Self::K2_THINKING,
            (true, true) if has("preserve_thinking") && optional => Self::K2_6,
            (true, true) if optional => Self::K2_5,
            (false, true) if has(KIMI_SYSTEM) && !has(k2::THINK) => Self::K2_INSTRUCT,
            (false, false) if has("You are a helpful assistant") && !has(k2::THINK) => Self::K2_INSTRUCT_0711,
            _ => return None,
        };
        // Copies of one template differ in this.
        let tools = if has("separators") { Spacing::Compact } else { Spacing::Spaced };
        Some(match format.family {
            Family::K2(style) => Self { family: Family::K2(Style { tools, ..style }), ..format },
            Family::K3 => format,
        })
    }

    pub(super) fn family(self) -> Family {
        self.family
    }

    /// Its name: what [`Display`](fmt::Display) writes and [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The effort that the release asks for when nothing is said.
    pub fn default_effort(self) -> Option<Effort> {
        (self.family == Family::K3).then_some(Effort::Max)
    }

    /// The name of the special token that ends a turn of the assistant.
    pub fn end_of_turn(self) -> &'static str {
        match self.family {
            Family::K3 => k3::END_OF_MSG,
            Family::K2(_) => k2::IM_END,
        }
    }
}

const KIMI_SYSTEM: &str = "You are Kimi, an AI assistant created by Moonshot AI.";

impl fmt::Display for ChatFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl fmt::Debug for ChatFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatFormat({})", self.name)
    }
}

impl FromStr for ChatFormat {
    type Err = UnknownFormatName;

    fn from_str(name: &str) -> Result<Self, UnknownFormatName> {
        Self::ALL
            .into_iter()
            .find(|format| format.name == name)
            .ok_or_else(|| UnknownFormatName { found: name.to_string() })
    }
}

/// A name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a chat format ({}), found {found:?}", names())]
pub struct UnknownFormatName {
    /// The name.
    pub found: String,
}

/// A model whose format is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The model has another format.
    #[error("the chat format of a model {model} is not known: {reason} (known formats: {})", names())]
    Unknown {
        /// The type of the model.
        model: String,
        /// What speaks against the known formats.
        reason: &'static str,
    },
    /// The markers are those of the K2 family, and nothing says which format of it.
    #[error("the markers are those of several chat formats: name one of {}", names())]
    Ambiguous,
    /// A file cannot be used.
    #[error(transparent)]
    File(LoadError),
}

fn names() -> String {
    ChatFormat::ALL.map(ChatFormat::name).join(", ")
}

/// The text of a file, if there is one.
fn text(folder: &Path, name: &str, read: &Read<'_>) -> Result<Option<String>, FormatError> {
    let failed = |kind: LoadErrorKind| FormatError::File(kind.at(folder.join(name)));
    match read(name) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            failed(LoadErrorKind::NotUtf8 { offset, found: error.as_bytes()[offset] })
        }),
        Err(LoadErrorKind::Io(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(kind) => Err(failed(kind)),
    }
}

/// The JSON of a file, if there is one.
fn json(folder: &Path, name: &str, read: &Read<'_>) -> Result<Option<Value>, FormatError> {
    let Some(text) = text(folder, name, read)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|source| {
        let (line, column) = (source.line(), source.column());
        FormatError::File(LoadErrorKind::Json { line, column, source: source.into() }.at(folder.join(name)))
    })
}

/// The template in a tokenizer's configuration: the one for conversations where it has several.
fn template_of(config: &Value) -> Option<String> {
    match &config["chat_template"] {
        Value::String(template) => Some(template.clone()),
        Value::Array(templates) => {
            let chat = templates.iter().find(|template| template["name"] == "default")?;
            chat["template"].as_str().map(str::to_string)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::tests::bytes_and;

    fn tokenizer(names: &[&str]) -> Tokenizer {
        let added =
            names.iter().zip(256..).map(|(name, id)| (id.to_string(), serde_json::json!({"content": name})));
        let config = serde_json::json!({"added_tokens_decoder": added.collect::<serde_json::Map<_, _>>()});
        Tokenizer::new(bytes_and([[0u8; 0]; 0]), Some(config.to_string().as_bytes())).unwrap()
    }

    const IM: [&str; 5] = [k2::IM_USER, k2::IM_ASSISTANT, k2::IM_SYSTEM, k2::IM_MIDDLE, k2::IM_END];
    const K3: [&str; 4] = [k3::OPEN, k3::CLOSE, k3::SEP, k3::END_OF_MSG];

    /// The text of a template that has these words.
    fn template(words: &[&str]) -> String {
        IM.iter().chain(words).map(|word| format!("{{{{ '{word}' }}}}\n")).collect()
    }

    #[test]
    fn a_model_is_known_by_its_markers_its_type_and_its_template() {
        let (plain, thinking) = (tokenizer(&IM), tokenizer(&[&IM[..], &[k2::THINK, k2::THINK_END]].concat()));
        let recognise = |tokenizer: &Tokenizer, model_type: Option<&str>, words: Option<&[&str]>| {
            let template = words.map(template);
            ChatFormat::recognise(tokenizer, model_type, template.as_deref())
                .map_err(|error| error.to_string())
        };
        for model_type in [None, Some("kimi_k3"), Some("anything")] {
            assert_eq!(recognise(&tokenizer(&K3), model_type, None), Ok(ChatFormat::K3));
        }
        for (tokenizer, model_type, expected) in [
            (&plain, "kimi_k2", ChatFormat::K2_INSTRUCT),
            (&thinking, "kimi_k2", ChatFormat::K2_THINKING),
            (&thinking, "kimi_k25", ChatFormat::K2_5),
            (&plain, "kimi_linear", ChatFormat::K2_INSTRUCT),
            (&plain, "deepseek_v3", ChatFormat::K2_INSTRUCT_0711),
        ] {
            assert_eq!(recognise(tokenizer, Some(model_type), None), Ok(expected));
        }
        let calls = [k2::CALL_BEGIN, "## Return of", "separators=(',', ':')"];
        for (words, expected) in [
            (&[k2::THINK, "hist_msgs", "if thinking is false"][..], ChatFormat::K2_5),
            (&[k2::THINK, "hist_msgs", "preserve_thinking", "thinking is false"], ChatFormat::K2_6),
            (&[KIMI_SYSTEM], ChatFormat::K2_INSTRUCT),
        ] {
            // The template counts, whatever the configuration calls the model.
            assert_eq!(recognise(&thinking, Some("kimi_k2"), Some(&[&calls, words].concat())), Ok(expected));
        }
        let spaced = [&calls[..2], &[k2::THINK, "hist_msgs", KIMI_SYSTEM]].concat();
        assert_eq!(recognise(&thinking, None, Some(&spaced)), Ok(ChatFormat::K2_THINKING));
        let compact =
            recognise(&thinking, None, Some(&[&calls[..], &[k2::THINK, "hist_msgs", KIMI_SYSTEM]].concat()))
                .unwrap();
        assert_eq!(compact.name(), "k2-thinking");
        assert_ne!(compact, ChatFormat::K2_THINKING, "it declares tools without spaces");
        let first = ["You are a helpful assistant"];
        assert_eq!(recognise(&plain, None, Some(&first)), Ok(ChatFormat::K2_INSTRUCT_0711));
        // A relative whose thinking cannot be switched off and whose history keeps it.
        let other = [&calls[..], &[k2::THINK, "preserve_thinking"]].concat();
        assert!(recognise(&thinking, Some("kimi_k25"), Some(&other)).unwrap_err().contains("chat template"));
    }

    #[test]
    fn an_unknown_format_is_refused_by_name() {
        let plain = tokenizer(&IM);
        for (tokenizer, model_type, template, expected) in [
            (&tokenizer(&["<|im_start|>", "<|im_end|>"]), Some("qwen3"), None, "`qwen3`"),
            (&plain, Some("kimi_k4"), None, "`kimi_k4`"),
            (&plain, Some("kimi_k2"), Some("{{ messages }}"), "chat template"),
            (
                &plain,
                Some("kimi_k2"),
                Some("<|im_user|><|im_assistant|><|im_system|><|im_middle|><|im_end|>"),
                "chat template",
            ),
            (&tokenizer(&K3), Some("kimi_k3"), Some("<|im_user|>"), "does not use them"),
            (&plain, None, None, "name one of k3, k2-instruct-0711"),
        ] {
            let error = ChatFormat::recognise(tokenizer, model_type, template).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_folder_says_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        let plain = tokenizer(&IM);
        let of_dir = || ChatFormat::of_dir(folder.path(), &plain).map_err(|error| error.to_string());
        assert!(of_dir().unwrap_err().contains("several"));
        write(CONFIG_FILE, r#"{"model_type": "kimi_k2"}"#);
        assert_eq!(of_dir(), Ok(ChatFormat::K2_INSTRUCT));
        let first = template(&["You are a helpful assistant"]);
        write(TOKENIZER_CONFIG_FILE, &serde_json::json!({"chat_template": first}).to_string());
        assert_eq!(of_dir(), Ok(ChatFormat::K2_INSTRUCT_0711));
        let named = serde_json::json!({"chat_template": [{"name": "default", "template": first}]});
        write(TOKENIZER_CONFIG_FILE, &named.to_string());
        assert_eq!(of_dir(), Ok(ChatFormat::K2_INSTRUCT_0711));
        write(TEMPLATE_FILE, "something else");
        assert!(of_dir().unwrap_err().contains("`kimi_k2`"));
        std::fs::write(folder.path().join(TEMPLATE_FILE), b"\xff").unwrap();
        assert!(of_dir().unwrap_err().contains("expected UTF-8"));
        write(CONFIG_FILE, "{");
        assert!(of_dir().unwrap_err().contains("config.json: line 1"));
    }

    #[test]
    fn names_read_as_they_are_written() {
        for format in ChatFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("k4".parse::<ChatFormat>().unwrap_err().to_string().contains("k2.6"));
    }
}
