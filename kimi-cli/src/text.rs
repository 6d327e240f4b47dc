//! Texts from arguments, files and the standard input.

use std::io::{self, Read};
use std::path::Path;

use anyhow::Context;

use crate::exit::Usage;

/// Reads a text file; `-` is the standard input.
pub(crate) fn read(path: &Path, lossy: bool) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return read_stdin(lossy);
    }
    let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    decode(bytes, &path.display().to_string(), lossy)
}

/// Reads the standard input to its end.
pub(crate) fn read_stdin(lossy: bool) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("the standard input cannot be read")?;
    decode(bytes, "the standard input", lossy)
}

fn decode(bytes: Vec<u8>, name: &str, lossy: bool) -> anyhow::Result<String> {
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if lossy => Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes()[at];
            let hint = "convert the text, or use --lossy to replace such bytes";
            Err(Usage(format!("{name} is not UTF-8: byte {byte:#04x} at offset {at}; {hint}")).into())
        }
    }
}
