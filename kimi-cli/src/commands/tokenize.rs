//! `kimi-cli tokenize`.

use std::io::{Write, stdout};

use kimi_text::{Flagged, Specials};
use serde_json::json;

use crate::args::TokenizeArgs;
use crate::exit::Exit;
use crate::{source, text};

pub(crate) fn run(args: &TokenizeArgs) -> anyhow::Result<Exit> {
    let tokenizer = source::require_tokenizer(args.model.as_deref())?;
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => text::read(file, args.lossy)?,
        (None, None) => text::read_stdin(args.lossy)?,
    };
    let specials = if args.parse_special { Specials::Parse } else { Specials::AsText };
    let ids = tokenizer.encode(&text, specials);
    let mut out = stdout().lock();
    if args.json {
        let tokens = ids
            .iter()
            .map(|&id| tokenizer.decode_lossy(&[id], Flagged::Show))
            .collect::<Result<Vec<_>, _>>()?;
        let numbers: Vec<u32> = ids.iter().map(|id| id.0).collect();
        writeln!(out, "{}", json!({ "ids": numbers, "tokens": tokens, "count": numbers.len() }))?;
    } else {
        let line = ids.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(" ");
        writeln!(out, "{line}")?;
    }
    Ok(Exit::Ok)
}
