//! Options by name, with the names and the meaning of the command line.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Mutex;

use kimi_kernels::Isa;
use kimi_model::open::Io;
use kimi_model::{Arith, Check, EngineOptions, GenerateOptions, KvFormat};

use crate::error::Error;
use crate::handle::{Handled, Kind};

/// How to open a model.
#[derive(Debug, Clone)]
pub(crate) struct ModelOptions {
    pub(crate) ram_bytes: Option<u64>,
    /// Longest sequence; a model that knows only shorter ones bounds it.
    pub(crate) context: usize,
    pub(crate) kv_bytes: Option<u64>,
    pub(crate) chunk: usize,
    pub(crate) threads: Option<usize>,
    pub(crate) isa: Option<Isa>,
    pub(crate) kv: KvFormat,
    pub(crate) arith: Arith,
    pub(crate) check: Check,
    pub(crate) io: Io,
}

impl Default for ModelOptions {
    fn default() -> Self {
        let EngineOptions { positions, columns, kv, arith, check, .. } = EngineOptions::default();
        Self {
            ram_bytes: None,
            context: positions,
            kv_bytes: None,
            chunk: columns,
            threads: None,
            isa: None,
            kv,
            arith,
            check,
            io: Io::Auto,
        }
    }
}

impl ModelOptions {
    /// What an engine is asked for.
    pub(crate) fn engine(&self, positions: usize) -> EngineOptions {
        let mut options = EngineOptions::default();
        options.ram_bytes = self.ram_bytes;
        options.positions = positions;
        options.columns = self.chunk;
        options.threads = self.threads;
        options.isa = self.isa;
        options.kv = self.kv;
        options.arith = self.arith;
        options.check = self.check;
        options.read = self.io.read_settings();
        options
    }

    fn set_int(&mut self, name: &str, value: i64) -> Result<(), Error> {
        match name {
            "ram_bytes" => self.ram_bytes = Some(positive("ram_bytes", value)?),
            "context" => self.context = positive("context", value)?,
            "kv_bytes" => self.kv_bytes = Some(positive("kv_bytes", value)?),
            "chunk" => self.chunk = positive("chunk", value)?,
            "threads" => self.threads = Some(positive("threads", value)?),
            _ => return Err(unknown(name, Self::NAMES)),
        }
        Ok(())
    }

    fn set_text(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match name {
            "isa" => self.isa = Some(parse("isa", value)?),
            "kv" => self.kv = parse("kv", value)?,
            "arith" => self.arith = parse("arith", value)?,
            "check" => self.check = parse("check", value)?,
            "io" => self.io = parse("io", value)?,
            _ => return Err(unknown(name, Self::NAMES)),
        }
        Ok(())
    }

    const NAMES: &str =
        "ram_bytes, context, kv_bytes, chunk, threads (whole numbers), isa, kv, arith, check, io (texts)";
}

/// Either kind of options.
#[derive(Debug)]
pub(crate) enum Options {
    Model(ModelOptions),
    Generate(GenerateOptions),
}

impl Handled for Mutex<Options> {
    const KIND: Kind = Kind::Options;
}

impl Options {
    pub(crate) fn set_int(&mut self, name: &str, value: i64) -> Result<(), Error> {
        match self {
            Self::Model(options) => options.set_int(name, value),
            Self::Generate(options) => set_generate_int(options, name, value),
        }
    }

    pub(crate) fn set_float(&mut self, name: &str, value: f64) -> Result<(), Error> {
        match self {
            Self::Model(_) => Err(unknown(name, ModelOptions::NAMES)),
            Self::Generate(options) => {
                let sampler = &mut options.sampler;
                let option = match name {
                    "temperature" => &mut sampler.temperature,
                    "top_p" => &mut sampler.top_p,
                    "min_p" => &mut sampler.min_p,
                    "repetition_penalty" => &mut sampler.repetition_penalty,
                    "presence_penalty" => &mut sampler.presence_penalty,
                    "frequency_penalty" => &mut sampler.frequency_penalty,
                    _ => return Err(unknown(name, GENERATE_NAMES)),
                };
                *option = value as f32;
                Ok(())
            }
        }
    }

    pub(crate) fn set_text(&mut self, name: &str, value: &str) -> Result<(), Error> {
        match (self, name) {
            (Self::Model(options), _) => options.set_text(name, value),
            (Self::Generate(options), "stop") => {
                if value.is_empty() {
                    return Err(Error::argument("stop", "an empty text would stop at once"));
                }
                options.stop.push(value.to_owned());
                Ok(())
            }
            (Self::Generate(_), _) => Err(unknown(name, GENERATE_NAMES)),
        }
    }

    pub(crate) fn add_logit_bias(&mut self, token: u32, bias: f64) -> Result<(), Error> {
        match self {
            Self::Model(_) => {
                Err(Error::argument("options", "are for a model, options for generating are needed"))
            }
            Self::Generate(options) => {
                options.sampler.logit_bias.push((token, bias as f32));
                Ok(())
            }
        }
    }

    pub(crate) fn model(&self) -> Result<ModelOptions, Error> {
        match self {
            Self::Model(options) => Ok(options.clone()),
            Self::Generate(_) => {
                Err(Error::argument("options", "are for generating, options for a model are needed"))
            }
        }
    }

    pub(crate) fn generate(&self) -> Result<GenerateOptions, Error> {
        match self {
            Self::Generate(options) => Ok(options.clone()),
            Self::Model(_) => {
                Err(Error::argument("options", "are for a model, options for generating are needed"))
            }
        }
    }
}

const GENERATE_NAMES: &str = "max_tokens, top_k, penalty_window, seed, chunk, ignore_eos (whole numbers), \
     temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty (numbers), stop (a text)";

fn set_generate_int(options: &mut GenerateOptions, name: &str, value: i64) -> Result<(), Error> {
    match name {
        "max_tokens" => options.max_tokens = natural("max_tokens", value)?,
        "top_k" => options.sampler.top_k = natural("top_k", value)?,
        "penalty_window" => options.sampler.penalty_window = natural("penalty_window", value)?,
        // All 64 bits of it.
        "seed" => options.sampler.seed = value.cast_unsigned(),
        "chunk" => options.chunk = natural("chunk", value)?,
        "ignore_eos" => options.ignore_eos = value != 0,
        _ => return Err(unknown(name, GENERATE_NAMES)),
    }
    Ok(())
}

fn natural<T: TryFrom<i64>>(what: &'static str, value: i64) -> Result<T, Error> {
    T::try_from(value).map_err(|_| Error::argument(what, format!("{value} is out of range")))
}

fn positive<T: TryFrom<i64>>(what: &'static str, value: i64) -> Result<T, Error> {
    if value == 0 {
        return Err(Error::argument(what, "must be at least 1"));
    }
    natural(what, value)
}

fn parse<T: FromStr<Err: Display>>(what: &'static str, value: &str) -> Result<T, Error> {
    value.parse().map_err(|error: T::Err| Error::argument(what, error.to_string()))
}

fn unknown(name: &str, known: &str) -> Error {
    Error::argument("name", format!("there is no such option of this type as `{name}`; there are {known}"))
}
