//! `generation_config.json`: how the maker of a model wants it to be sampled.

use std::path::Path;

use crate::config::fields::{Document, Fields};
use crate::error::{ConfigError, SamplerError};
use crate::files::ModelFiles;
use crate::generate::GenerateOptions;
use crate::sampler::SamplerOptions;

/// What a `generation_config.json` says. Every field may be missing or `null`; fields that are not listed here are not read.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// Tokens that end a generation (`eos_token_id`, one or a list); an empty list leaves those of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// `false` is greedy, whatever the other fields say; `true` without a temperature is temperature 1.
    pub do_sample: Option<bool>,
    /// As [`SamplerOptions::temperature`].
    pub temperature: Option<f32>,
    /// As [`SamplerOptions::top_k`]; the file may write -1 for 0.
    pub top_k: Option<usize>,
    /// As [`SamplerOptions::top_p`].
    pub top_p: Option<f32>,
    /// As [`SamplerOptions::min_p`].
    pub min_p: Option<f32>,
    /// As [`SamplerOptions::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// As [`SamplerOptions::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// As [`SamplerOptions::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads the file of a model. A model without one says nothing.
    ///
    /// # Errors
    /// [`ConfigError::Read`], and as [`parse`](Self::parse).
    pub fn open(files: &ModelFiles, vocab_size: usize) -> Result<Self, ConfigError> {
        const NAME: &str = "generation_config.json";
        let file = files.path().join(NAME);
        match files.read(NAME) {
            Ok(Some(json)) => Self::parse(&json, &file, vocab_size),
            Ok(None) => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { file, source }),
        }
    }

    /// Reads the bytes of a file for a vocabulary; `file` is named in errors.
    ///
    /// # Errors
    /// [`ConfigError`] with file and field: what is no JSON object, a value of another type or outside the range of its sampling
    /// option, an end token outside the vocabulary.
    pub fn parse(json: &[u8], file: &Path, vocab_size: usize) -> Result<Self, ConfigError> {
        let document = Document::parse(json, file)?;
        let fields = document.fields();
        let config = Self {
            eos_token_ids: fields.token_ids("eos_token_id")?,
            do_sample: fields.optional("do_sample")?,
            temperature: fields.optional("temperature")?,
            top_k: top_k(&fields)?,
            top_p: fields.optional("top_p")?,
            min_p: fields.optional("min_p")?,
            repetition_penalty: fields.optional("repetition_penalty")?,
            presence_penalty: fields.optional("presence_penalty")?,
            frequency_penalty: fields.optional("frequency_penalty")?,
        };
        if let Some(id) = config.eos_token_ids.iter().find(|&&id| id as usize >= vocab_size) {
            let reason = format!("token id {id} is outside the vocabulary of {vocab_size}");
            return Err(fields.invalid("eos_token_id", &reason));
        }
        let mut options = SamplerOptions::default();
        config.apply_to_sampler(&mut options);
        match options.check(vocab_size) {
            Err(SamplerError::Range { option, value, allowed }) => {
                Err(fields.invalid(option, &format!("it is {value}, it must be {allowed}")))
            }
            _ => Ok(config),
        }
    }

    /// Sets the options that the file has a say in and leaves the others.
    pub fn apply(&self, options: &mut GenerateOptions) {
        if !self.eos_token_ids.is_empty() {
            options.eos_token_ids = Some(self.eos_token_ids.clone());
        }
        self.apply_to_sampler(&mut options.sampler);
        match (self.do_sample, self.temperature) {
            (Some(false), _) => options.sampler.temperature = 0.0,
            (Some(true), None) => options.sampler.temperature = 1.0,
            _ => {}
        }
    }

    fn apply_to_sampler(&self, options: &mut SamplerOptions) {
        let SamplerOptions { temperature, top_k, top_p, min_p, .. } = options;
        let SamplerOptions { repetition_penalty, presence_penalty, frequency_penalty, .. } = options;
        *top_k = self.top_k.unwrap_or(*top_k);
        for (option, value) in [
            (temperature, self.temperature),
            (top_p, self.top_p),
            (min_p, self.min_p),
            (repetition_penalty, self.repetition_penalty),
            (presence_penalty, self.presence_penalty),
            (frequency_penalty, self.frequency_penalty),
        ] {
            *option = value.unwrap_or(*option);
        }
    }
}

fn top_k(fields: &Fields<'_>) -> Result<Option<usize>, ConfigError> {
    match fields.optional::<i64>("top_k")? {
        None => Ok(None),
        Some(-1) => Ok(Some(0)),
        Some(count) => match usize::try_from(count) {
            Ok(count) => Ok(Some(count)),
            Err(_) => {
                Err(fields.invalid("top_k", &format!("it is {count}, it must be -1, 0 or a positive number")))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<GenerationConfig, ConfigError> {
        GenerationConfig::parse(json.as_bytes(), Path::new("folder/generation_config.json"), 100)
    }

    fn options(json: &str) -> GenerateOptions {
        let mut options = GenerateOptions::default();
        parse(json).unwrap().apply(&mut options);
        options
    }

    #[test]
    fn every_field_reaches_its_option_and_the_others_stay() {
        let found = options(
            r#"{"eos_token_id": [7, 9], "temperature": 0.6, "top_k": 40, "top_p": 0.95, "min_p": 0.01,
                "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 0.25, "max_length": 1048576}"#,
        );
        let mut expected = GenerateOptions { eos_token_ids: Some(vec![7, 9]), ..GenerateOptions::default() };
        expected.sampler = SamplerOptions {
            temperature: 0.6,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.01,
            repetition_penalty: 1.1,
            presence_penalty: -0.5,
            frequency_penalty: 0.25,
            ..SamplerOptions::default()
        };
        assert_eq!(found, expected);

        let mut set = GenerateOptions { eos_token_ids: Some(vec![1]), ..expected.clone() };
        for silent in ["{}", r#"{"temperature": null, "top_k": null, "eos_token_id": []}"#] {
            let before = set.clone();
            parse(silent).unwrap().apply(&mut set);
            assert_eq!(set, before, "{silent}");
        }
        assert_eq!(options(r#"{"eos_token_id": 7}"#).eos_token_ids, Some(vec![7]));
        assert_eq!(options(r#"{"top_k": -1}"#), GenerateOptions::default());
    }

    #[test]
    fn do_sample_decides_over_the_temperature() {
        for (json, temperature) in [
            (r#"{"do_sample": false, "temperature": 0.6}"#, 0.0),
            (r#"{"do_sample": true, "temperature": 0.6}"#, 0.6),
            (r#"{"do_sample": true}"#, 1.0),
            (r#"{"do_sample": false}"#, 0.0),
            (r#"{"top_p": 0.5}"#, 0.0),
        ] {
            assert_eq!(options(json).sampler.temperature, temperature, "{json}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_file_and_field() {
        for (json, expected) in [
            (
                r#"{"temperature": -0.1}"#,
                "field `temperature`: it is -0.1, it must be 0 or a positive number",
            ),
            (r#"{"temperature": 1e39}"#, "field `temperature`: it is inf, it must be 0 or a positive number"),
            (r#"{"temperature": "hot"}"#, "field `temperature`: invalid type: string \"hot\", expected f32"),
            (r#"{"top_p": 1.0001}"#, "field `top_p`: it is 1.0001, it must be a number from 0 to 1"),
            (r#"{"min_p": -1}"#, "field `min_p`: it is -1, it must be a number from 0 to 1"),
            (r#"{"top_k": -2}"#, "field `top_k`: it is -2, it must be -1, 0 or a positive number"),
            (r#"{"top_k": 1.5}"#, "field `top_k`: invalid type: floating point `1.5`, expected i64"),
            (
                r#"{"repetition_penalty": 0}"#,
                "field `repetition_penalty`: it is 0, it must be a positive number",
            ),
            (
                r#"{"presence_penalty": 1e300}"#,
                "field `presence_penalty`: it is inf, it must be a finite number",
            ),
            (
                r#"{"frequency_penalty": []}"#,
                "field `frequency_penalty`: invalid type: sequence, expected f32",
            ),
            (r#"{"do_sample": 1}"#, "field `do_sample`: invalid type: integer `1`, expected a boolean"),
            (
                r#"{"eos_token_id": 100}"#,
                "field `eos_token_id`: token id 100 is outside the vocabulary of 100",
            ),
            (
                r#"{"eos_token_id": [7, 5000]}"#,
                "field `eos_token_id`: token id 5000 is outside the vocabulary of 100",
            ),
            (r#"{"eos_token_id": -7}"#, "field `eos_token_id`: invalid value: integer `-7`, expected u32"),
            (
                r#"{"eos_token_id": [7, "x"]}"#,
                "field `eos_token_id`: invalid type: string \"x\", expected u32",
            ),
            ("[]", "expected a JSON object"),
            (r#"{"temperature": NaN}"#, "not valid JSON"),
            ("", "not valid JSON"),
        ] {
            let found = parse(json).unwrap_err().to_string();
            assert_eq!(found, format!("folder/generation_config.json: {expected}"), "{json}");
        }
    }

    #[test]
    fn a_missing_file_says_nothing_and_one_that_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let files = ModelFiles::open(dir.path()).unwrap();
        assert_eq!(GenerationConfig::open(&files, 100).unwrap(), GenerationConfig::default());
        let file = dir.path().join("generation_config.json");
        std::fs::write(&file, r#"{"top_k": 3}"#).unwrap();
        assert_eq!(GenerationConfig::open(&files, 100).unwrap().top_k, Some(3));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let error = GenerationConfig::open(&files, 100).unwrap_err();
        assert!(matches!(error, ConfigError::Read { file: named, .. } if named == file));
    }
}
