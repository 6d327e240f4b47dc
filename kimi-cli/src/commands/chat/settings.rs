//! What can be changed in the middle of a conversation, by name.

use anyhow::{Context, anyhow, bail};
use kimi_model::{Error, GenerateOptions};
use kimi_text::chat::ChatOptions;

use crate::args::When;

/// How answers are made and shown.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) generate: GenerateOptions,
    pub(super) chat: ChatOptions,
    pub(super) reasoning: When,
}

/// What a value must be.
const NUMBER: &str = "a number";
const COUNT: &str = "a whole number";

impl Settings {
    /// Names and values of all settings.
    pub(super) fn list(&self) -> Vec<(&'static str, String)> {
        let sampler = &self.generate.sampler;
        vec![
            ("temperature", sampler.temperature.to_string()),
            ("top_k", sampler.top_k.to_string()),
            ("top_p", sampler.top_p.to_string()),
            ("min_p", sampler.min_p.to_string()),
            ("repetition_penalty", sampler.repetition_penalty.to_string()),
            ("presence_penalty", sampler.presence_penalty.to_string()),
            ("frequency_penalty", sampler.frequency_penalty.to_string()),
            ("penalty_window", sampler.penalty_window.to_string()),
            ("seed", sampler.seed.to_string()),
            ("max_tokens", self.generate.max_tokens.to_string()),
            ("thinking", if self.chat.thinking { "on" } else { "off" }.to_owned()),
            ("effort", self.chat.effort.map_or_else(|| "none".to_owned(), |effort| effort.name().to_owned())),
            ("reasoning", self.reasoning.name().to_owned()),
        ]
    }

    /// Changes one setting; nothing is changed when the value is none.
    pub(super) fn set(&mut self, name: &str, value: &str, vocab_size: usize) -> anyhow::Result<()> {
        let number = || value.parse::<f32>().ok().with_context(|| format!("{name} must be {NUMBER}"));
        let count = || value.parse::<usize>().ok().with_context(|| format!("{name} must be {COUNT}"));
        let mut changed = self.clone();
        let sampler = &mut changed.generate.sampler;
        match name {
            "temperature" => sampler.temperature = number()?,
            "top_k" => sampler.top_k = count()?,
            "top_p" => sampler.top_p = number()?,
            "min_p" => sampler.min_p = number()?,
            "repetition_penalty" => sampler.repetition_penalty = number()?,
            "presence_penalty" => sampler.presence_penalty = number()?,
            "frequency_penalty" => sampler.frequency_penalty = number()?,
            "penalty_window" => sampler.penalty_window = count()?,
            "seed" => sampler.seed = value.parse().ok().with_context(|| format!("seed must be {COUNT}"))?,
            "max_tokens" => changed.generate.max_tokens = count()?,
            "thinking" => {
                changed.chat.thinking = match value {
                    "on" | "true" => true,
                    "off" | "false" => false,
                    _ => bail!("thinking must be on or off"),
                }
            }
            "effort" if value == "none" => changed.chat.effort = None,
            "effort" => changed.chat.effort = Some(value.parse()?),
            "reasoning" => {
                let found = When::ALL.into_iter().find(|when| when.name() == value);
                changed.reasoning = found.ok_or_else(|| anyhow!("reasoning must be auto, show or hide"))?;
            }
            _ => {
                let names: Vec<_> = self.list().into_iter().map(|(name, _)| name).collect();
                bail!("{name} is no setting; there are {}", names.join(", "));
            }
        }
        changed.generate.sampler.check(vocab_size).map_err(Error::from)?;
        *self = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let (generate, chat) = (GenerateOptions::default(), ChatOptions::default());
        Settings { generate, chat, reasoning: When::Auto }
    }

    #[test]
    fn every_setting_takes_its_own_value_back() {
        let mut settings = settings();
        let list = settings.list();
        for (name, value) in &list {
            settings.set(name, value, 10).unwrap_or_else(|error| panic!("{name} {value}: {error}"));
        }
        assert_eq!(settings.list(), list);
    }

    #[test]
    fn values_take_effect_or_are_refused_and_leave_all_as_it_was() {
        let mut settings = settings();
        for (name, value) in [
            ("temperature", "0.25"),
            ("seed", "18446744073709551615"),
            ("thinking", "off"),
            ("effort", "low"),
        ] {
            settings.set(name, value, 10).unwrap();
            assert!(settings.list().contains(&(name, value.to_owned())), "{name}");
        }
        let list = settings.list();
        for (name, value, expected) in [
            ("temperature", "-1", "temperature"),
            ("temperature", "warm", "a number"),
            ("top_p", "NaN", "top_p"),
            ("top_k", "1.5", "a whole number"),
            ("thinking", "perhaps", "on or off"),
            ("effort", "some", "effort"),
            ("reasoning", "dim", "auto, show or hide"),
            ("temprature", "1", "there are temperature, "),
        ] {
            let error = settings.set(name, value, 10).unwrap_err().to_string();
            assert!(error.contains(expected), "{name} {value}: {error}");
            assert_eq!(settings.list(), list);
        }
    }
}
