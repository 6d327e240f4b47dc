//! Every byte of a model, held against what is known of it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kimi_paging::{FileSource, Source, TensorIndex, TensorInfo};
use kimi_quant::Encoding;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::files::ModelFiles;
use crate::pack::{DIGEST, SINGLE, Written};
use crate::packed::{BankInfo, FileInfo, Manifest, MatrixInfo, RecordLayout, Tile, seed};

/// Bytes that are read at once where there are no tiles.
const PIECE: usize = 4 << 20;

/// How far a model is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyProgress {
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Files read.
    pub files: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Tiles and records whose checksums were computed.
    pub tiles: u64,
    /// What is wrong.
    pub damages: Vec<Damage>,
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The tensor; empty where it is not known.
    pub tensor: String,
    /// The tile, from 0, or the expert.
    pub tile: Option<usize>,
    /// What is wrong.
    pub reason: String,
}

/// Reads a model whole and checks every tile and every file; `None` for a folder that is not packed, which has no checksums.
///
/// # Errors
/// [`Error::Manifest`], errors of reading, [`Error::Cancelled`]. What is damaged is no error but part of the report.
pub fn verify(
    path: &Path,
    progress: &dyn Fn(VerifyProgress),
    cancel: &AtomicBool,
) -> Result<Option<VerifyReport>, Error> {
    let files = ModelFiles::open(path)?;
    let manifest = Manifest::read(&files)?;
    if files.is_single() {
        return single_file(path, manifest.as_ref(), progress, cancel).map(Some);
    }
    let Some(manifest) = manifest else { return Ok(None) };
    let total_bytes = manifest.files.iter().map(|file| file.bytes).sum();
    let mut report = VerifyReport::default();
    for file in &manifest.files {
        let done = report.bytes;
        let step = |bytes| progress(VerifyProgress { done_bytes: done + bytes, total_bytes });
        let mut reading = Reading::new(&file.name, &step, cancel);
        let matrix = |name: &str| manifest.matrices.get(name);
        let bank = |name: &str| manifest.experts.get(name);
        match reading.whole(&path.join(&file.name), &matrix, &bank) {
            Ok(()) => {
                let (bytes, sha256) = (reading.bytes, hex(reading.hash));
                if bytes != file.bytes {
                    let reason = format!("has {bytes} bytes, kimi.json says {}", file.bytes);
                    reading.damages.push(damage(&file.name, "", None, reason));
                } else if file.sha256.as_ref().is_some_and(|listed| *listed != sha256)
                    && reading.damages.is_empty()
                {
                    let reason =
                        "its SHA-256 is not that of kimi.json, though all its tiles are whole".to_owned();
                    reading.damages.push(damage(&file.name, "", None, reason));
                }
            }
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(error) => reading.damages.push(damage(&file.name, "", None, chain(&error))),
        }
        report.files += 1;
        report.bytes += reading.bytes;
        report.tiles += reading.tiles;
        report.damages.append(&mut reading.damages);
    }
    Ok(Some(report))
}

/// Reads back a file that has just been written.
///
/// # Errors
/// [`Error::Tile`] for the first tile that is not as it was written.
pub(crate) fn check_file(
    dir: &Path,
    name: &str,
    written: &Written,
    cancel: &AtomicBool,
) -> Result<FileInfo, Error> {
    let mut reading = Reading::new(name, &|_| (), cancel);
    let find = |name: &str| written.matrices.iter().find(|(of, _)| of == name).map(|(_, info)| info);
    let bank = |name: &str| written.experts.iter().find(|(of, _)| of == name).map(|(_, info)| info);
    reading.whole(&dir.join(name), &find, &bank)?;
    match reading.damages.pop() {
        None => Ok(FileInfo { name: name.to_owned(), bytes: reading.bytes, sha256: Some(hex(reading.hash)) }),
        Some(Damage { tensor, tile, reason, .. }) => {
            Err(Error::Tile { file: dir.join(name), tensor, tile: tile.unwrap_or(0), reason })
        }
    }
}

/// Reads a single file whole: its tiles if it is packed, and its digest.
pub(crate) fn single_file(
    path: &Path,
    manifest: Option<&Manifest>,
    progress: &dyn Fn(VerifyProgress),
    cancel: &AtomicBool,
) -> Result<VerifyReport, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let source = FileSource::open(path)?;
    let total_bytes = source.len();
    let mut head = vec![0; DIGEST.end.min(total_bytes) as usize];
    source.read_at(0, &mut head)?;
    let listed = head.get(8..).and_then(|head| head.strip_prefix(SINGLE.as_bytes())).map(<[u8]>::to_vec);
    let step = |done_bytes| progress(VerifyProgress { done_bytes, total_bytes });
    let mut reading = Reading::new(&name, &step, cancel);
    reading.zeros = DIGEST;
    let matrix = |name: &str| manifest.and_then(|manifest| manifest.matrices.get(name));
    let bank = |name: &str| manifest.and_then(|manifest| manifest.experts.get(name));
    match reading.whole(path, &matrix, &bank) {
        Ok(()) => {
            let found = hex(std::mem::take(&mut reading.hash));
            let reason = match listed {
                None => Some("its header holds no SHA-256 where `pack --single-file` puts it"),
                Some(listed) if listed != found.as_bytes() && reading.damages.is_empty() => {
                    Some("its SHA-256 is not that of its header, though all its tiles are whole")
                }
                Some(_) => None,
            };
            reading.damages.extend(reason.map(|reason| damage(&name, "", None, reason.to_owned())));
        }
        Err(Error::Cancelled) => return Err(Error::Cancelled),
        Err(error) => reading.damages.push(damage(&name, "", None, chain(&error))),
    }
    let Reading { bytes, tiles, damages, .. } = reading;
    Ok(VerifyReport { files: 1, bytes, tiles, damages })
}

/// A file while it is read from its beginning to its end.
struct Reading<'a> {
    file: &'a str,
    hash: Sha256,
    bytes: u64,
    tiles: u64,
    damages: Vec<Damage>,
    /// Bytes of the file that are hashed as the digit 0.
    zeros: Range<u64>,
    step: &'a dyn Fn(u64),
    cancel: &'a AtomicBool,
}

impl<'a> Reading<'a> {
    fn new(file: &'a str, step: &'a dyn Fn(u64), cancel: &'a AtomicBool) -> Self {
        let (hash, damages) = (Sha256::new(), Vec::new());
        Self { file, hash, bytes: 0, tiles: 0, damages, zeros: 0..0, step, cancel }
    }

    fn whole<'m>(
        &mut self,
        path: &Path,
        matrix: &dyn Fn(&str) -> Option<&'m MatrixInfo>,
        bank: &dyn Fn(&str) -> Option<&'m BankInfo>,
    ) -> Result<(), Error> {
        let source: Arc<dyn Source> = Arc::new(FileSource::open(path)?);
        let index = TensorIndex::from_sources(vec![(self.file.to_owned(), Arc::clone(&source))], None)?;
        let mut buffer = Vec::new();
        for (name, info) in index.iter() {
            self.plain(&*source, info.offset, &mut buffer)?;
            match (matrix(&name), bank(&name)) {
                (Some(matrix), _) => self.matrix(&*source, &name, info, matrix, &mut buffer)?,
                (None, Some(bank)) => self.bank(&*source, &name, info, bank, &mut buffer)?,
                (None, None) => self.plain(&*source, info.offset + info.bytes, &mut buffer)?,
            }
        }
        self.plain(&*source, source.len(), &mut buffer)
    }

    /// Reads on from where the last read ended.
    fn read<'b>(
        &mut self,
        source: &dyn Source,
        len: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], Error> {
        crate::weights::check(self.cancel)?;
        buffer.resize(len, 0);
        source.read_once(self.bytes, buffer)?;
        // In front of all tensors, so nobody looks at them again.
        let place = |at: u64| (at.saturating_sub(self.bytes) as usize).min(len);
        buffer[place(self.zeros.start)..place(self.zeros.end)].fill(b'0');
        self.hash.update(&*buffer);
        self.bytes += len as u64;
        (self.step)(self.bytes);
        Ok(buffer)
    }

    /// Reads up to `end` what has no checksum of its own.
    fn plain(&mut self, source: &dyn Source, end: u64, buffer: &mut Vec<u8>) -> Result<(), Error> {
        while self.bytes < end {
            let len = (end - self.bytes).min(PIECE as u64) as usize;
            self.read(source, len, buffer)?;
        }
        Ok(())
    }

    fn matrix(
        &mut self,
        source: &dyn Source,
        name: &str,
        info: TensorInfo<'_>,
        listed: &MatrixInfo,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let encoding = listed.encoding.parse::<Encoding>();
        let ([tiles, stride], Ok(encoding)) = (info.shape, encoding) else {
            self.damage(name, None, "kimi.json does not describe what is there".to_owned());
            return self.plain(source, info.offset + info.bytes, buffer);
        };
        let seed = seed(name);
        for tile in 0..*tiles as usize {
            let first = tile.saturating_mul(listed.tile_rows);
            let rows = listed.tile_rows.min(listed.rows.saturating_sub(first));
            let expected = Tile { encoding, rows, cols: listed.cols, first };
            let bytes = self.read(source, *stride as usize, buffer)?;
            let found = expected.view(bytes, Some(seed)).map(|_| ());
            self.tiles += 1;
            if let Err(problem) = found {
                self.damage(name, Some(tile), problem.to_string());
            }
        }
        Ok(())
    }

    fn bank(
        &mut self,
        source: &dyn Source,
        name: &str,
        info: TensorInfo<'_>,
        listed: &BankInfo,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let layout = listed.encoding.parse::<Encoding>().ok();
        let layout = layout.and_then(|encoding| RecordLayout::new(encoding, listed.inner, listed.width).ok());
        let ([experts, stride], Some(layout)) = (info.shape, layout) else {
            self.damage(name, None, "kimi.json does not describe what is there".to_owned());
            return self.plain(source, info.offset + info.bytes, buffer);
        };
        let seed = seed(name);
        for expert in 0..*experts as u32 {
            let bytes = self.read(source, *stride as usize, buffer)?;
            let found = layout.views(expert, bytes, Some(seed)).map(|_| ());
            self.tiles += 1;
            if let Err(problem) = found {
                self.damage(name, Some(expert as usize), problem.to_string());
            }
        }
        Ok(())
    }

    fn damage(&mut self, tensor: &str, tile: Option<usize>, reason: String) {
        self.damages.push(damage(self.file, tensor, tile, reason));
    }
}

fn damage(file: &str, tensor: &str, tile: Option<usize>, reason: String) -> Damage {
    Damage { file: file.to_owned(), tensor: tensor.to_owned(), tile, reason }
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
