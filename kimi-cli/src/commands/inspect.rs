//! `kimi-cli inspect`.

use std::io::{Write, stdout};

use kimi_model::inspect::{PartSize, Summary};
use kimi_model::open::Io;
use serde_json::json;

use crate::args::InspectArgs;
use crate::exit::Exit;
use crate::source;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<Exit> {
    let model = source::model(args.model.as_deref(), Io::Pread, None)?;
    let mut out = stdout().lock();
    if args.tensors {
        let index = model.checkpoint().index();
        for (name, info) in index.iter() {
            let file = index
                .source(info.source)
                .name()
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if args.json {
                let dtype = info.dtype.to_string();
                let tensor = json!({
                    "name": name, "dtype": dtype, "shape": info.shape, "file": file, "offset": info.offset,
                    "bytes": info.bytes,
                });
                writeln!(out, "{tensor}")?;
            } else {
                writeln!(out, "{name}  {}  {:?}  {} bytes in {file}", info.dtype, info.shape, info.bytes)?;
            }
        }
        return Ok(Exit::Ok);
    }
    let summary = Summary::new(&model);
    if args.json {
        let mut summary = serde_json::to_value(&summary)?;
        summary["model"] = source::name(args.model.as_deref()).into();
        writeln!(out, "{summary:#}")?;
        return Ok(Exit::Ok);
    }
    writeln!(out, "{}: {}", source::name(args.model.as_deref()), summary.model_type)?;
    writeln!(
        out,
        "{} layers ({} KDA, {} MLA, {} with {} experts of which a token uses {}), hidden {}, vocabulary {}",
        summary.layers,
        summary.kda_layers,
        summary.mla_layers,
        summary.moe_layers,
        summary.experts,
        summary.experts_per_token,
        summary.hidden_size,
        summary.vocab_size
    )?;
    writeln!(out, "{:<12} {:>9} {:>20} {:>22}", "part", "tensors", "weights", "bytes")?;
    let mut line = |name: &str, size: &PartSize| {
        writeln!(out, "{name:<12} {:>9} {:>20} {:>22}", size.tensors, size.weights, size.bytes)
    };
    for (name, size) in &summary.parts {
        line(name, size)?;
    }
    for (name, size) in &summary.dtypes {
        line(name, size)?;
    }
    for (name, size) in &summary.encodings {
        line(name, size)?;
    }
    line("total", &summary.total)?;
    writeln!(
        out,
        "{} files; {:.3} GB read per token with nothing kept in memory; the index takes {:.1} MB",
        summary.files,
        summary.bytes_per_token as f64 / 1e9,
        summary.index_bytes as f64 / 1e6
    )?;
    if let Some(lossless) = summary.lossless {
        let recipe = summary.recipe.iter().map(|(part, how)| format!("{part} {how}"));
        let recipe = recipe.collect::<Vec<_>>().join(", ");
        let loss = if lossless { "without loss" } else { "with loss (docs/quality.md)" };
        writeln!(out, "packed {loss}: {recipe}")?;
    }
    if summary.unlisted_tensors > 0 {
        writeln!(out, "{} tensors are not listed in the index file", summary.unlisted_tensors)?;
    }
    match summary.unknown_config_fields.len() {
        0 => {}
        count => writeln!(out, "{count} fields of config.json are not used; --json lists them")?,
    }
    Ok(Exit::Ok)
}
