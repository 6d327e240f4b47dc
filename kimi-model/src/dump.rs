//! All logits of a run in a safetensors file, written while they are computed.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use crate::pass::LogitSink;

/// Bytes kept for the header; the format allows it to be padded with spaces.
const HEADER_BYTES: u64 = 256;

/// A file with the F32 tensors `prompt_logits` `[prompt, vocab]` and `generated_logits` `[generated, vocab]`, row `n` of
/// the second being the distribution that chose generated id `n`.
///
/// Rows go to the file as they come; the header is written by [`finish`](Self::finish).
#[derive(Debug)]
pub struct LogitDump {
    file: File,
    vocab: usize,
    /// Prompt rows of finished passes, and those of the pass under way.
    prompt: usize,
    pending: usize,
    generated: usize,
    last: Vec<f32>,
    bytes: Vec<u8>,
}

impl LogitDump {
    /// Creates or replaces the file.
    ///
    /// # Errors
    /// Those of the system.
    pub fn create(path: &Path, vocab_size: usize) -> io::Result<Self> {
        let file = File::create(path)?;
        let last = vec![0.0; vocab_size];
        Ok(Self { file, vocab: vocab_size, prompt: 0, pending: 0, generated: 0, last, bytes: Vec::new() })
    }

    /// The next pass will hand over the logits of `columns` prompt tokens.
    pub(crate) fn expect(&mut self, columns: usize) {
        self.prompt += self.pending;
        self.pending = columns;
    }

    /// The logits of the last column of the last pass.
    pub(crate) fn last_column(&self) -> &[f32] {
        &self.last
    }

    /// Appends the distribution that chose a token.
    pub(crate) fn generated(&mut self, logits: &[f32]) -> io::Result<()> {
        let row = self.prompt + self.pending + self.generated;
        self.write(row, 0, logits)?;
        self.generated += 1;
        Ok(())
    }

    /// Writes the header. Without it the file is not valid.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish(mut self) -> io::Result<()> {
        let prompt = self.prompt + self.pending;
        let row_bytes = self.vocab * 4;
        let tensor = |first: usize, rows: usize| {
            serde_json::json!({
                "dtype": "F32", "shape": [rows, self.vocab],
                "data_offsets": [first * row_bytes, (first + rows) * row_bytes],
            })
        };
        let header = serde_json::json!({
            "prompt_logits": tensor(0, prompt), "generated_logits": tensor(prompt, self.generated),
        });
        let mut header = header.to_string().into_bytes();
        let length = HEADER_BYTES - 8;
        assert!(header.len() as u64 <= length, "four numbers fit the space kept for them");
        header.resize(length as usize, b' ');
        self.file.set_len(HEADER_BYTES + ((prompt + self.generated) * row_bytes) as u64)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(&header)?;
        self.file.sync_all()
    }

    fn write(&mut self, row: usize, first_id: usize, logits: &[f32]) -> io::Result<()> {
        let at = HEADER_BYTES + 4 * (row as u64 * self.vocab as u64 + first_id as u64);
        self.bytes.clear();
        self.bytes.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(&self.bytes)
    }
}

impl LogitSink for LogitDump {
    fn piece(&mut self, first_id: usize, ids: usize, values: &[f32]) -> io::Result<()> {
        for (c, logits) in values.chunks_exact(ids).enumerate() {
            self.write(self.prompt + c, first_id, logits)?;
        }
        let last = &values[values.len() - ids..];
        self.last[first_id..first_id + ids].copy_from_slice(last);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_back_by_the_format_library() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logits.safetensors");
        let mut dump = LogitDump::create(&path, 3).unwrap();
        dump.expect(2);
        dump.piece(0, 2, &[1.0, 2.0, 4.0, 5.0]).unwrap();
        dump.piece(2, 1, &[3.0, 6.0]).unwrap();
        dump.expect(1);
        dump.piece(0, 3, &[7.0, 8.0, 9.0]).unwrap();
        assert_eq!(dump.last_column(), [7.0, 8.0, 9.0]);
        dump.generated(&[7.0, 8.0, 9.0]).unwrap();
        dump.finish().unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let values = |name: &str| -> Vec<f32> {
            let data = tensors.tensor(name).unwrap().data().to_vec();
            data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        assert_eq!(values("prompt_logits"), (1..=9).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(tensors.tensor("prompt_logits").unwrap().shape(), [3, 3]);
        assert_eq!(values("generated_logits"), [7.0, 8.0, 9.0]);
    }
}
