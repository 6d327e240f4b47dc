//! A session on its way out of a file.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::CHUNK_BYTES;
use super::header::{HEADER_BYTES, Header};
use super::problem::StateProblem;
use super::write::Sums;
use crate::error::Error;
use crate::kv::KvBlock;
use crate::pack::writer::io_error;
use crate::session::{KV_BLOCK, KvCache, Session};
use crate::transcript::Transcript;

/// Opens a file and reads its header.
pub(super) fn open(path: &Path) -> Result<(File, Header), Error> {
    let mut file = File::open(path).map_err(io_error("open", path))?;
    let mut bytes = [0; HEADER_BYTES];
    match file.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            return Err(StateProblem::NotAState.of(path));
        }
        Err(error) => return Err(io_error("read", path)(error)),
    }
    let header = Header::parse(&bytes).map_err(|problem| problem.of(path))?;
    Ok((file, header))
}

/// Reads everything behind the header, which fits the session, into an empty session.
pub(super) fn read(
    file: File,
    header: &Header,
    session: &mut Session,
    vocab_size: usize,
    path: &Path,
) -> Result<Transcript, Error> {
    let (position, tokens) = (header.position as usize, header.tokens as usize);
    let sums = Sums::new(&header.to_bytes());
    let mut reader = Reader { file, sums, path, buffer: vec![0; CHUNK_BYTES] };

    let mut ids = vec![0; tokens];
    reader.each(&mut ids, u32::from_le_bytes)?;
    let mut marks = vec![0; tokens.div_ceil(8)];
    reader.bytes(&mut marks)?;
    reader.end(|| "tokens".to_owned())?;
    if ids.iter().any(|&id| id as usize >= vocab_size) {
        return Err(StateProblem::Damaged { part: "tokens outside the vocabulary".to_owned() }.of(path));
    }
    let sampled = (0..tokens).map(|i| marks[i / 8] >> (i % 8) & 1 == 1).collect();

    session.reserve(position)?;
    for (layer, kda) in session.kda.iter_mut().enumerate() {
        reader.each(&mut kda.state, f32::from_le_bytes)?;
        reader.each(&mut kda.tails, f32::from_le_bytes)?;
        reader.end(|| format!("recurrent state {layer}"))?;
    }
    for (layer, cache) in session.kv.iter_mut().enumerate() {
        reader.rows(cache, position)?;
        reader.end(|| format!("latents {layer}"))?;
    }
    session.position = position;
    Ok(Transcript::from_parts(ids, sampled, header.random))
}

/// Reads sections and holds each against its checksum.
struct Reader<'a> {
    file: File,
    sums: Sums,
    path: &'a Path,
    buffer: Vec<u8>,
}

impl Reader<'_> {
    fn rows(&mut self, cache: &mut KvCache, count: usize) -> Result<(), Error> {
        let row = cache.shape.len;
        for (block, first) in cache.blocks.iter_mut().zip((0..count).step_by(KV_BLOCK)) {
            let rows = (count - first).min(KV_BLOCK);
            match block {
                KvBlock::F32(values) => self.each(&mut values[..rows * row], f32::from_le_bytes)?,
                KvBlock::Bf16(values) => self.each(&mut values[..rows * row], u16::from_le_bytes)?,
                KvBlock::Codes(format, bytes) => self.bytes(&mut bytes[..rows * format.bytes(row)])?,
            }
        }
        Ok(())
    }

    fn each<T, const N: usize>(
        &mut self,
        values: &mut [T],
        from_bytes: impl Fn([u8; N]) -> T,
    ) -> Result<(), Error> {
        let mut buffer = std::mem::take(&mut self.buffer);
        for values in values.chunks_mut(CHUNK_BYTES / N) {
            let bytes = &mut buffer[..values.len() * N];
            self.bytes(bytes)?;
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = from_bytes(*bytes);
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    fn bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.take(bytes)?;
        self.sums.add(bytes);
        Ok(())
    }

    fn end(&mut self, part: impl FnOnce() -> String) -> Result<(), Error> {
        let mut sum = [0; 8];
        self.take(&mut sum)?;
        if u64::from_le_bytes(sum) == self.sums.end() {
            return Ok(());
        }
        Err(StateProblem::Damaged { part: format!("{}: its checksum is another", part()) }.of(self.path))
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact(bytes).map_err(|error| match error.kind() {
            // It had its length a moment ago.
            ErrorKind::UnexpectedEof => {
                StateProblem::Damaged { part: "it became shorter while it was read".to_owned() }.of(self.path)
            }
            _ => io_error("read", self.path)(error),
        })
    }
}
