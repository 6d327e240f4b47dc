//! Read settings that suit a model's drive, measured once and kept beside the model.

use std::path::PathBuf;
use std::time::Duration;

use kimi_paging::{Backend, Budget, ReadSettings, Readers, TuneLimits, Tuning, tune};

use crate::error::Error;
use crate::model::Model;
use crate::pack::write_whole;

/// The file in the folder of a model; beside a single file it has that one's name in front. It belongs to the drive and is not
/// copied with the model.
pub(crate) const TUNING_FILE: &str = "kimi-tuning.json";

/// What a measurement may cost.
const LIMITS: TuneLimits = TuneLimits { bytes: 4_000_000_000, time: Duration::from_millis(1500) };

/// Memory for the reads of the measurement, at most.
const MEMORY: u64 = 256 << 20;

/// Settings for reading a model past the page cache: those that are kept beside it, or measured now and kept where the folder
/// can be written. `ram_bytes` bounds the memory of the measurement. Models that are read in other ways get the defaults.
///
/// # Errors
/// What reading returns.
pub fn read_settings(model: &Model, ram_bytes: Option<u64>) -> Result<ReadSettings, Error> {
    let sources = model.checkpoint.index().sources();
    if sources.iter().any(|source| source.backend() != Backend::Direct) || sources.is_empty() {
        return Ok(ReadSettings::threads(Readers::DEFAULT_THREADS));
    }
    let path = path(model);
    let kept = std::fs::read(&path).ok().and_then(|json| serde_json::from_slice::<Tuning>(&json).ok());
    if let Some(kept) = kept.filter(|kept| kept.backend == Backend::Direct && kept.bytes_per_second > 0) {
        return Ok(kept.settings);
    }
    let memory = MEMORY.min(ram_bytes.unwrap_or(u64::MAX) / 4);
    let tuning = tune(sources, &Budget::new(memory), LIMITS)?;
    if tuning.bytes_per_second > 0 {
        let json = serde_json::to_vec_pretty(&tuning).expect("settings are plain data");
        // A folder that cannot be written is measured every time.
        let _ = write_whole(&path, &json);
    }
    Ok(tuning.settings)
}

fn path(model: &Model) -> PathBuf {
    let path = model.checkpoint.dir();
    match path.file_name() {
        Some(name) if path.is_file() => {
            path.with_file_name(format!("{}.{TUNING_FILE}", name.to_string_lossy()))
        }
        _ => path.join(TUNING_FILE),
    }
}
