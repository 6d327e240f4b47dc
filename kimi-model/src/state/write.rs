//! A session on its way into a file.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Write};
use std::path::Path;

use twox_hash::XxHash3_64;

use super::CHUNK_BYTES;
use super::header::{HEADER_BYTES, Header};
use crate::error::Error;
use crate::kv::KvBlock;
use crate::pack::writer::{PARTIAL, io_error, sync_dir};
use crate::session::{KV_BLOCK, KvCache, Session};
use crate::transcript::Transcript;

/// Writes everything under another name, puts it on the drive and renames it. Returns the bytes written.
pub(super) fn write(
    header: &Header,
    session: &Session,
    transcript: &Transcript,
    path: &Path,
) -> Result<u64, Error> {
    let sizes = &header.sizes;
    let is_own = session.kda.len() == sizes.kda_layers as usize
        && session.kv.len() == sizes.mla_layers as usize
        && session.kda.iter().all(|kda| kda.state.len() as u64 == sizes.state)
        && session.kda.iter().all(|kda| kda.tails.len() as u64 == sizes.tails)
        && session.kv.iter().all(|kv| kv.format == header.kv)
        && session.kv.iter().all(|kv| kv.format.row_bytes(kv.shape.len) as u64 == sizes.row_bytes);
    assert!(is_own, "the session is of this engine");

    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A name of its own, as several processes may save the same at once; removed when writing fails.
    let mut file = tempfile::Builder::new()
        .prefix(&format!(".{name}."))
        .suffix(PARTIAL)
        .tempfile_in(dir)
        .map_err(io_error("create", path))?;
    let mut writer = Writer::new(file.as_file_mut(), header).map_err(io_error("write", path))?;
    let written = writer.body(header, session, transcript).and_then(|()| {
        let written = writer.written;
        file.as_file().sync_all().map(|()| written)
    });
    let written = written.map_err(io_error("write", path))?;
    assert_eq!(Some(written), header.file_bytes(), "the header tells the length");
    file.persist(path).map_err(|error| io_error("rename", path)(error.error))?;
    sync_dir(path)?;
    Ok(written)
}

/// Writes sections, each with its checksum behind it.
struct Writer<'a> {
    file: &'a mut File,
    sums: Sums,
    buffer: Vec<u8>,
    written: u64,
}

/// The checksums of the sections of one file.
pub(super) struct Sums {
    base: u64,
    section: u64,
    hash: XxHash3_64,
}

impl Sums {
    /// Sections are seeded with the header's checksum and their number, so that none passes for another, nor for that of another file.
    pub(super) fn new(header: &[u8; HEADER_BYTES]) -> Self {
        let base = XxHash3_64::oneshot(header);
        Self { base, section: 0, hash: XxHash3_64::with_seed(base) }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.hash.write(bytes);
    }

    /// The checksum of the section that ends here.
    pub(super) fn end(&mut self) -> u64 {
        let sum = self.hash.finish();
        self.section += 1;
        self.hash = XxHash3_64::with_seed(self.base.wrapping_add(self.section));
        sum
    }
}

impl<'a> Writer<'a> {
    fn new(file: &'a mut File, header: &Header) -> io::Result<Self> {
        let bytes = header.to_bytes();
        file.write_all(&bytes)?;
        let buffer = vec![0; CHUNK_BYTES];
        Ok(Self { file, sums: Sums::new(&bytes), buffer, written: HEADER_BYTES as u64 })
    }

    fn body(&mut self, header: &Header, session: &Session, transcript: &Transcript) -> io::Result<()> {
        self.each(transcript.tokens(), |id| id.to_le_bytes())?;
        let marks: Vec<u8> = transcript
            .sampled()
            .chunks(8)
            .map(|marks| marks.iter().enumerate().map(|(i, &mark)| u8::from(mark) << i).sum())
            .collect();
        self.bytes(&marks)?;
        self.end()?;
        for kda in &session.kda {
            self.each(&kda.state, |value| value.to_le_bytes())?;
            self.each(&kda.tails, |value| value.to_le_bytes())?;
            self.end()?;
        }
        for cache in &session.kv {
            self.rows(cache, header.position as usize)?;
            self.end()?;
        }
        Ok(())
    }

    /// The rows of the first `count` positions, as they are stored.
    fn rows(&mut self, cache: &KvCache, count: usize) -> io::Result<()> {
        for (block, first) in cache.blocks.iter().zip((0..count).step_by(KV_BLOCK)) {
            let rows = (count - first).min(KV_BLOCK);
            let len = rows * cache.shape.len;
            match block {
                KvBlock::F32(values) => self.each(&values[..len], |value| value.to_le_bytes())?,
                KvBlock::Bf16(values) => self.each(&values[..len], |value| value.to_le_bytes())?,
                KvBlock::Codes(format, bytes) => {
                    self.bytes(&bytes[..rows * format.bytes(cache.shape.len)])?
                }
            }
        }
        Ok(())
    }

    fn each<T: Copy, const N: usize>(
        &mut self,
        values: &[T],
        to_bytes: impl Fn(T) -> [u8; N],
    ) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        for values in values.chunks(CHUNK_BYTES / N) {
            let bytes = &mut buffer[..values.len() * N];
            for (bytes, &value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = to_bytes(value);
            }
            self.bytes(bytes)?;
        }
        self.buffer = buffer;
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sums.add(bytes);
        self.put(bytes)
    }

    fn end(&mut self) -> io::Result<()> {
        let sum = self.sums.end();
        self.put(&sum.to_le_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}
