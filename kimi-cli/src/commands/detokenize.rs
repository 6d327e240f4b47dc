//! `kimi-cli detokenize`.

use std::io::{Write, stdout};

use kimi_text::{Flagged, TokenId};
use serde_json::json;

use crate::args::DetokenizeArgs;
use crate::exit::{Exit, Usage};
use crate::{source, text};

pub(crate) fn run(args: &DetokenizeArgs) -> anyhow::Result<Exit> {
    let tokenizer = source::require_tokenizer(args.model.as_deref())?;
    let words = if args.ids.is_empty() { text::read_stdin(false)? } else { args.ids.join(" ") };
    let mut ids = Vec::new();
    for word in words.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty()) {
        let id = word.parse().map_err(|_| Usage(format!("`{word}` is no token id")))?;
        ids.push(TokenId(id));
    }
    let flagged = if args.hide_special { Flagged::Hide } else { Flagged::Show };
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({ "text": tokenizer.decode_lossy(&ids, flagged)? }))?;
    } else {
        out.write_all(&tokenizer.decode_bytes(&ids, flagged)?)?;
        out.flush()?;
    }
    Ok(Exit::Ok)
}
