//! Whether a machine and a model are fit to run, and how well.

mod drive;
mod folder;
mod machine;
mod mounts;
mod processor;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;

use crate::bench::BenchError;
use crate::bench::disk::DiskProgress;
use crate::{EngineOptions, Plan};

pub(crate) use mounts::file_system;
pub(crate) use processor::Processor;

/// How a finding bears on running a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It runs, slower or in less comfort than it could.
    Warning,
    /// It does not run.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at: `processor`, `threads`, `memory`, `drive`, `model`.
    pub topic: &'static str,
    /// How it bears on running.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    fn good(topic: &'static str, found: impl Into<String>) -> Self {
        Self { topic, verdict: Verdict::Good, found: found.into(), advice: None }
    }

    fn warning(topic: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { topic, verdict: Verdict::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    fn problem(topic: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { topic, verdict: Verdict::Problem, found: found.into(), advice: Some(advice.into()) }
    }
}

/// What to examine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoctorOptions {
    /// The folder of a model, or one that a model could be put in.
    pub dir: PathBuf,
    /// How the model would be run.
    pub engine: EngineOptions,
    /// How long the drive is measured for, in all; zero leaves the measurement out.
    pub drive_time: Duration,
    /// Bytes of the file that is written and read where the folder holds no model; fewer where room is short.
    pub file_bytes: u64,
}

impl DoctorOptions {
    /// Everything, with the defaults of an engine.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            engine: EngineOptions::default(),
            drive_time: Duration::from_secs(2),
            file_bytes: 512 << 20,
        }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Examination {
    /// Everything that was looked at, by topic.
    pub findings: Vec<Finding>,
    /// Bytes a second that the drive reads as a model is read, where that was measured.
    pub drive_bytes_per_second: Option<f64>,
    /// The model in the folder, when there is one that opens.
    pub model: Option<ModelExamination>,
}

/// How a model would run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelExamination {
    /// It was made by `pack`.
    pub packed: bool,
    /// It has a tokenizer.
    pub tokenizer: bool,
    /// The least memory that it runs in.
    pub floor_bytes: u64,
    /// The split of the memory; `None` where the memory is too small.
    pub plan: Option<Plan>,
}

impl ModelExamination {
    /// Seconds that the drive takes for what a token reads.
    pub fn seconds_per_token(&self, bytes_per_second: f64) -> Option<f64> {
        self.plan.as_ref().map(|plan| plan.reads.total() as f64 / bytes_per_second)
    }
}

impl Examination {
    /// The gravest verdict.
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good)
    }
}

/// Looks at the machine, at the drive of a folder, and at the model in it if there is one. What does not work is a finding, not
/// an error.
///
/// # Errors
/// [`BenchError::Cancelled`] soon after `cancel` became true.
pub fn examine(
    options: &DoctorOptions,
    progress: &dyn Fn(DiskProgress),
    cancel: &AtomicBool,
) -> Result<Examination, BenchError> {
    let mut findings = machine::examine(&options.engine);
    let (found, drive_bytes_per_second) = drive::examine(options, progress, cancel)?;
    findings.extend(found);
    let (found, model) = folder::examine(&options.dir, &options.engine);
    findings.extend(found);
    Ok(Examination { findings, drive_bytes_per_second, model })
}

/// A number of bytes for people, in powers of 1000.
fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e12 => format!("{:.2} TB", bytes / 1e12),
        bytes if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        bytes => format!("{:.1} MB", bytes / 1e6),
    }
}

#[cfg(test)]
mod tests;
