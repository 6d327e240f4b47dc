//! Arguments of `plan`.

use std::path::PathBuf;

use clap::Args;

use super::EngineArgs;
use super::pack::{OutputArgs, PackedArgs};

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Model, or a config.json alone, before anything is downloaded; k3, k3-mini, kimi-linear, moonlight and k2 are known by
    /// name
    #[arg(value_name = "MODEL|CONFIG.JSON|k3|k3-mini|kimi-linear|moonlight|k2")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) packed: PackedArgs,
    /// What the drive reads, in GB/s [default: measured for half a second where there is a model]
    #[arg(long, value_name = "GB/s", value_parser = parse_speed)]
    pub(crate) speed: Option<f64>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn parse_speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err("must be a number of gigabytes per second above 0".to_owned()),
    }
}
