//! The files of a model, and the memory that it needs.

use std::path::Path;
use std::sync::Arc;

use kimi_paging::{FileSource, Source};

use super::{Finding, ModelExamination, size};
use crate::{EngineOptions, Error, Model, ModelFiles, Plan};

/// Files whose holes are below this share are whole: file systems store small parts elsewhere.
const SPARSE_SHARE: f64 = 0.95;

/// Nothing is said of a folder without a configuration: it is one for models to come.
pub(super) fn examine(dir: &Path, options: &EngineOptions) -> (Vec<Finding>, Option<ModelExamination>) {
    if dir.is_dir() && !dir.join("config.json").exists() {
        return (Vec::new(), None);
    }
    let mut open = |file: &Path| Ok(Arc::new(FileSource::open_direct(file)?) as Arc<dyn Source>);
    let model = match Model::open(dir, &mut open) {
        Ok(model) => model,
        Err(error) => {
            let why = std::error::Error::source(&error).map_or_else(String::new, |why| format!(": {why}"));
            let advice = "download the file again, or see the list of models in the documentation";
            return (vec![Finding::problem("model", format!("{error}{why}"), advice)], None);
        }
    };
    let sources = model.checkpoint.index().sources();
    let bytes: u64 = sources.iter().map(|source| source.len()).sum();
    let packed = model.checkpoint.manifest().is_some();
    let mut findings = vec![Finding::good(
        "model",
        format!(
            "{} {}in {} files, {}",
            model.config.model_type,
            if packed { "packed " } else { "" },
            sources.len(),
            size(bytes)
        ),
    )];
    findings.extend(holes(sources, bytes));
    let tokenizer = ModelFiles::open(dir).is_ok_and(|files| files.has("tiktoken.model"));
    if !tokenizer {
        let advice =
            "copy tiktoken.model and tokenizer_config.json of the release there; until then it takes --ids";
        findings.push(Finding::warning("model", "no tiktoken.model", advice));
    }
    let (found, examined) = memory(&model, packed, tokenizer, options);
    findings.push(found);
    (findings, examined)
}

/// Files that take far fewer bytes than they are long were not written to their end.
fn holes(sources: &[Arc<dyn Source>], bytes: u64) -> Option<Finding> {
    let stored = sources.iter().map(|source| stored_bytes(source.name())).sum::<Option<u64>>()?;
    ((stored as f64) < bytes as f64 * SPARSE_SHARE).then(|| {
        let text = format!("{} of {} are holes, which read as zeros", size(bytes - stored), size(bytes));
        let advice = "a download that was cut off looks like this, and so does a model of `synth --sparse`: `kimi-cli verify` tells";
        Finding::warning("model", text, advice)
    })
}

/// Bytes that a file takes on its drive.
fn stored_bytes(file: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        /// The unit of `st_blocks`, whatever the file system's own.
        const BLOCK: u64 = 512;
        Some(std::fs::metadata(file).ok()?.blocks().saturating_mul(BLOCK))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        None
    }
}

fn memory(
    model: &Model,
    packed: bool,
    tokenizer: bool,
    options: &EngineOptions,
) -> (Finding, Option<ModelExamination>) {
    let mut options = options.clone();
    options.positions = options.positions.min(model.config.max_position_embeddings);
    let planned = Plan::floor(model, &options).and_then(|floor| {
        let floor_bytes = floor.total_bytes();
        match Plan::new(model, &options) {
            Ok(plan) => Ok((floor_bytes, plan.limit_bytes, Some(plan))),
            Err(Error::DoesNotFit { plan, .. }) => Ok((floor_bytes, plan.limit_bytes, None)),
            Err(error) => Err(error),
        }
    });
    match planned {
        Err(error) => (Finding::problem("model", error.to_string(), "choose other settings"), None),
        Ok((floor_bytes, limit_bytes, plan)) => {
            let text = format!("runs in {} or more, {} are allowed", size(floor_bytes), size(limit_bytes));
            let found = match plan {
                Some(_) => Finding::good("model", text),
                None => Finding::problem(
                    "model",
                    text,
                    "allow more with --ram, or need less with --kv bf16 and a smaller --context",
                ),
            };
            (found, Some(ModelExamination { packed, tokenizer, floor_bytes, plan }))
        }
    }
}
