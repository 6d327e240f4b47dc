//! How tokens are chosen: what the flags say, then the model's files, then the defaults.

use std::path::Path;

use kimi_model::{Config, Error, GenerateOptions, GenerationConfig, ModelFiles};

use crate::args::SamplingArgs;

/// The demo model loops when it always takes the most probable token.
const DEMO_TEMPERATURE: f32 = 0.6;

/// Options of a generation with the model in `dir`, or with the demo model.
pub(crate) fn options(
    dir: Option<&Path>,
    args: &SamplingArgs,
    config: &Config,
) -> anyhow::Result<GenerateOptions> {
    let mut options = GenerateOptions::default();
    match dir {
        None => options.sampler.temperature = DEMO_TEMPERATURE,
        Some(dir) => {
            let file =
                GenerationConfig::open(&ModelFiles::open(dir)?, config.vocab_size).map_err(Error::from)?;
            file.apply(&mut options);
        }
    }
    args.apply(&mut options.sampler);
    options.sampler.check(config.vocab_size).map_err(Error::from)?;
    Ok(options)
}
