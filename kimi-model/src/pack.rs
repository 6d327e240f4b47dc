//! From a released checkpoint to a packed model: fewer bytes, in the order of their use. And from either to a single file.
//!
//! Files are written one after another, each under another name until it is on the drive and its checksums have been read
//! back. A journal beside them lists those that are finished; an interrupted run goes on after the last of them.

mod encode;
mod journal;
mod recipe;
mod reclaim;
mod single;
mod work;
pub(crate) mod writer;

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kimi_kernels::Threads;
use kimi_paging::Extent;
use kimi_quant::int::BAND_ROWS;
use kimi_quant::{Encoding, MatrixView, bf12};
use rayon::prelude::*;
use serde::Serialize;
use twox_hash::XxHash3_64;

pub(crate) use self::encode::Guide;
use self::encode::{EncodeError, encode};
use self::journal::Journal;
use self::work::{BankWork, FileWork, MatrixWork};
use crate::calibrate::Calibration;
use crate::drive::free_bytes;
use crate::error::Error;
use crate::files::ModelFiles;
use crate::layout::BlockScales;
use crate::model::Model;
use crate::packed::{BankInfo, FileInfo, HEADER_BYTES, Manifest, MatrixInfo, Tile, seal, seed};
use crate::verify::check_file;

pub(crate) use self::journal::manifest;
pub(crate) use self::recipe::keeps;
pub use self::recipe::{EIGHT_BITS, KEPT, Recipe};
pub use self::single::{estimate_join, join, pack_single};
pub(crate) use self::writer::{DIGEST, SINGLE, TensorFile, io_error, write_whole};
use self::writer::{Header, is_zero};

/// How to pack a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackOptions {
    /// The encoding of every part.
    pub recipe: Recipe,
    /// Ceiling of the memory of buffers; `None` takes as many threads as there are.
    pub ram_bytes: Option<u64>,
    /// Threads; `None` takes what affinity and CPU quota allow. The result does not depend on it.
    pub threads: Option<usize>,
    /// Free the storage of what has been written and verified in the source's files, which are of no use afterwards.
    pub reclaim: bool,
    /// What the matrices see, so that what they see much of is rounded best.
    pub calibration: Option<Arc<Calibration>>,
}

impl PackOptions {
    /// A recipe, with defaults for the rest.
    pub fn new(recipe: Recipe) -> Self {
        Self { recipe, ram_bytes: None, threads: None, reclaim: false, calibration: None }
    }
}

/// How far a model is packed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackProgress {
    /// Bytes of the source that are done, those of earlier runs included.
    pub done_bytes: u64,
    /// Bytes of the source.
    pub total_bytes: u64,
    /// Bytes of the source that earlier runs had done.
    pub resumed_bytes: u64,
    /// The file that is being written.
    pub file: String,
}

/// What a packed model is, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PackReport {
    /// Files with tensors.
    pub files: usize,
    /// Files that were there from an interrupted run.
    pub resumed_files: usize,
    /// Bytes of the source's tensors.
    pub source_bytes: u64,
    /// Bytes of the files; before packing an estimate, as the size of BF12 depends on the weights.
    pub packed_bytes: u64,
    /// Bytes of the source whose storage was freed.
    pub reclaimed_bytes: u64,
    /// Every weight keeps its bits.
    pub lossless: bool,
    /// Bytes by encoding, as the source has them and as they are packed.
    pub encodings: Vec<EncodingSize>,
}

/// The matrices of one encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EncodingSize {
    /// The encoding.
    pub encoding: String,
    /// Matrices; an expert has three.
    pub matrices: u64,
    /// Their weights.
    pub weights: u64,
    /// Bytes of their tiles.
    pub bytes: u64,
}

/// What BF12 takes beyond its planes, in parts of a thousand: an estimate, as patches depend on the weights. Normal weights in
/// matrices of K3's widths have 0.7 (`docs/formats.md`).
const PATCHES_PER_MILLE: usize = 1;

/// What packing will write, without writing it.
///
/// # Errors
/// As [`pack`], as far as they can be known before.
pub fn estimate(model: &Model, recipe: &Recipe) -> Result<PackReport, Error> {
    refuse_packed(model)?;
    let files = work::files(model, recipe)?;
    let mut report = PackReport::new(model, &files);
    for file in &files {
        report.packed_bytes += file.target_bytes(model)?;
        for matrix in &file.matrices {
            let payload = patched(matrix.target, matrix.payload()?);
            let bytes = matrix.tiles() as u64 * MatrixWork::stride(payload) as u64;
            report.add(matrix.target, 1, matrix.rows as u64 * matrix.cols as u64, bytes);
        }
        if let Some(BankWork { bank, target, layout }) = &file.bank {
            let experts = bank.count as u64;
            let weights = 3 * experts * bank.width as u64 * bank.inner as u64;
            report.add(*target, 3 * experts, weights, experts * layout.stride() as u64);
        }
    }
    Ok(report)
}

/// A file that packing would write.
pub(crate) struct OutlinedFile {
    pub(crate) name: String,
    pub(crate) header: Vec<u8>,
    pub(crate) bytes: u64,
}

/// The files that packing would write, and their manifest.
pub(crate) fn outline(model: &Model, recipe: &Recipe) -> Result<(Vec<OutlinedFile>, Manifest), Error> {
    refuse_packed(model)?;
    let works = work::files(model, recipe)?;
    let mut manifest = manifest(model, recipe);
    let mut files = Vec::new();
    for work in works {
        let mut header = Header::new(work.names());
        for matrix in &work.matrices {
            let payload = patched(matrix.target, matrix.payload()?);
            let (tiles, stride) = (matrix.tiles() as u64, MatrixWork::stride(payload) as u64);
            header.add(&matrix.tensor, "U8", &[tiles, stride], tiles * stride);
            manifest.matrices.insert(matrix.tensor.clone(), matrix.info(matrix.target, None));
        }
        if let Some(bank) = &work.bank {
            let (count, stride) = (bank.bank.count as u64, bank.layout.stride() as u64);
            header.add(&bank.bank.name, "U8", &[count, stride], count * stride);
            manifest.experts.insert(bank.bank.name.to_string(), bank.info(model, None));
        }
        for name in &work.copies {
            let info = model.checkpoint.index().find(name).expect("it was listed by the index");
            header.add(name, &info.dtype.to_string(), info.shape, info.bytes);
        }
        let (bytes, header) = (header.file_bytes(), header.bytes());
        files.push(OutlinedFile { name: work.name, header, bytes });
    }
    Ok((files, manifest))
}

/// Bytes of the largest file that packing would write, about.
pub(crate) fn largest_file(model: &Model, recipe: &Recipe) -> Result<u64, Error> {
    let files = work::files(model, recipe)?;
    files.iter().map(|file| file.target_bytes(model)).try_fold(0, |most, bytes| Ok(most.max(bytes?)))
}

/// What a tile of so many bytes without patches takes about.
fn patched(target: Encoding, bytes: usize) -> usize {
    if target == Encoding::Bf12 { bytes + bytes * PATCHES_PER_MILLE / 1000 } else { bytes }
}

/// Packs the model of the folder `source` into the folder `target`.
///
/// `progress` is called from time to time. After an interruption, by `cancel` or by anything else, the same call goes on with
/// the file that was being written.
///
/// # Errors
/// [`Error::Pack`] when the target holds something else or was begun with other options, or the drive is too small;
/// [`Error::Tensor`] for weights that cannot be stored; errors of reading and writing; [`Error::Cancelled`].
pub fn pack(
    model: &Model,
    source: &Path,
    target: &Path,
    options: &PackOptions,
    progress: &dyn Fn(&PackProgress),
    cancel: &AtomicBool,
) -> Result<PackReport, Error> {
    let wanted = wanted(model, options)?;
    let beside = || ModelFiles::open(source)?.copy_others(target);
    write(model, target, options, Job { wanted, holes: false, beside: &beside }, progress, cancel)
}

/// The manifest of nothing packed yet.
fn wanted(model: &Model, options: &PackOptions) -> Result<Manifest, Error> {
    let mut wanted = manifest(model, &options.recipe);
    if let Some(calibration) = &options.calibration {
        calibration.check(model)?;
        wanted.recipe.insert("calibration".to_owned(), calibration.describe());
    }
    Ok(wanted)
}

/// What a packed model is beside its source and its options.
pub(crate) struct Job<'a> {
    /// The manifest of nothing packed yet.
    pub(crate) wanted: Manifest,
    /// Leave out blocks of zeros. What a source knows to be zeros is not encoded: zeros are zeros in every encoding. Nothing is
    /// hashed or read back, which would take longer than all the rest.
    pub(crate) holes: bool,
    /// Writes what belongs to a model beside its tensors.
    pub(crate) beside: &'a dyn Fn() -> Result<(), Error>,
}

/// Packs a model, or goes on with it.
pub(crate) fn write(
    model: &Model,
    target: &Path,
    options: &PackOptions,
    job: Job<'_>,
    progress: &dyn Fn(&PackProgress),
    cancel: &AtomicBool,
) -> Result<PackReport, Error> {
    refuse_packed(model)?;
    let Job { wanted, holes, beside } = job;
    let files = work::files(model, &options.recipe)?;
    let estimate = estimate(model, &options.recipe)?;
    let mut journal = Journal::open(target, wanted)?;
    if journal.is_empty() && !holes {
        let free = free_bytes(target).map_err(io_error("ask for the free space of", target))?;
        if free.is_some_and(|free| free < estimate.packed_bytes) && !options.reclaim {
            let (needed, free) = (estimate.packed_bytes as f64 / 1e9, free.unwrap_or(0) as f64 / 1e9);
            return Err(refused(target, format!("needs {needed:.1} GB, {free:.1} GB are free")));
        }
    }
    let threads = threads(&files, options)?;
    let calibration = options.calibration.as_deref();
    let packer = Packer { model, threads: &threads, holes, calibration, cancel };
    let total_bytes = files.iter().map(|file| file.source_bytes(model)).sum();
    let resumed_bytes =
        files.iter().filter(|file| journal.has(&file.name)).map(|file| file.source_bytes(model)).sum();
    let mut report = PackReport { packed_bytes: 0, encodings: Vec::new(), ..estimate };
    let mut done_bytes = resumed_bytes;
    for file in &files {
        let step = |bytes: u64| {
            let file = file.name.clone();
            progress(&PackProgress { done_bytes: done_bytes + bytes, total_bytes, resumed_bytes, file });
        };
        if journal.has(&file.name) {
            report.resumed_files += 1;
        } else {
            step(0);
            let (mut written, bytes) = packer.file(file, target, &step)?;
            let info = match holes {
                true => FileInfo { name: file.name.clone(), bytes, sha256: None },
                false => check_file(target, &file.name, &written, cancel)?,
            };
            written.files.push(info);
            journal.add(written)?;
            done_bytes += file.source_bytes(model);
        }
        if options.reclaim {
            report.reclaimed_bytes += reclaim::free(model, file)?;
        }
    }
    beside()?;
    journal.finish(&mut report)
}

/// Rows of an FP8 matrix from `first` on as little-endian float32.
fn plain(scales: &BlockScales, first: usize, cols: usize, codes: &[u8]) -> Result<Vec<u8>, Error> {
    let (mut bytes, mut row) = (Vec::with_capacity(4 * codes.len()), vec![0f32; cols]);
    let mut done = 0;
    while done * cols < codes.len() {
        let view = scales.view(first + done, cols, &codes[done * cols..])?;
        for r in 0..view.rows() {
            view.decode_row(r, &mut row);
            bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        }
        done += view.rows();
    }
    Ok(bytes)
}

/// What was written to a file: the parts of a manifest.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) matrices: Vec<(String, MatrixInfo)>,
    pub(crate) experts: Vec<(String, BankInfo)>,
    pub(crate) files: Vec<FileInfo>,
}

fn refuse_packed(model: &Model) -> Result<(), Error> {
    match model.checkpoint.manifest() {
        Some(_) => {
            let dir = model.checkpoint.dir();
            Err(refused(dir, "is packed already; pack the checkpoint that it was made from".to_owned()))
        }
        None => Ok(()),
    }
}

pub(crate) fn refused(dir: &Path, reason: String) -> Error {
    Error::Pack { dir: dir.to_path_buf(), reason }
}

/// As many threads as the memory allows.
fn threads(files: &[FileWork<'_>], options: &PackOptions) -> Result<Threads, Error> {
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let mut count = options.threads.unwrap_or_else(available).max(1);
    if let Some(ram) = options.ram_bytes {
        let guide = options.calibration.as_ref().map_or(0, |calibration| calibration.guide_bytes());
        let process = kimi_paging::current_rss_bytes().unwrap_or(0) + guide;
        let largest = files.iter().map(|file| {
            let matrices = file.matrices.iter().map(|matrix| {
                let rows = matrix.tile_rows.min(matrix.rows) as u64;
                // The source's rows, float32 of a few of them, and the tile twice while it is made.
                rows * matrix.row_bytes + 64 * matrix.cols as u64 * 8 + 2 * rows * matrix.cols as u64
            });
            let bank = file.bank.as_ref().map_or(0, |work| {
                work.bank.expert_bytes() + 3 * work.layout.stride() as u64 + 512 * work.bank.width as u64
            });
            matrices.max().unwrap_or(0).max(bank)
        });
        let each = largest.max().unwrap_or(0).max(1);
        let fitting = ram.saturating_sub(process) / each;
        if fitting == 0 {
            let needed = (process + each) as f64 / 1e6;
            let reason =
                format!("packing needs {needed:.0} MB of memory, {:.0} MB are allowed", ram as f64 / 1e6);
            return Err(Error::Pack { dir: PathBuf::new(), reason });
        }
        count = count.min(usize::try_from(fitting).unwrap_or(usize::MAX));
    }
    Ok(Threads::new(count)?)
}

impl PackReport {
    fn new(model: &Model, files: &[FileWork<'_>]) -> Self {
        Self {
            files: files.len(),
            resumed_files: 0,
            source_bytes: files.iter().map(|file| file.source_bytes(model)).sum(),
            packed_bytes: 0,
            reclaimed_bytes: 0,
            lossless: files.iter().all(FileWork::is_lossless),
            encodings: Vec::new(),
        }
    }

    /// Of nothing joined yet.
    fn joined(lossless: bool) -> Self {
        Self {
            files: 1,
            resumed_files: 0,
            source_bytes: 0,
            packed_bytes: 0,
            reclaimed_bytes: 0,
            lossless,
            encodings: Vec::new(),
        }
    }

    /// Counts a tensor of a packed model that lies in `path`, if a manifest lists it.
    pub(crate) fn add_listed(
        &mut self,
        manifest: &Manifest,
        tensor: &str,
        bytes: u64,
        path: &Path,
    ) -> Result<(), Error> {
        let encoding =
            |name: &str| name.parse::<Encoding>().map_err(|error| refused(path, error.to_string()));
        if let Some(listed) = manifest.matrices.get(tensor) {
            self.add(encoding(&listed.encoding)?, 1, listed.rows as u64 * listed.cols as u64, bytes);
        }
        if let Some(listed) = manifest.experts.get(tensor) {
            let weights = 3 * listed.count as u64 * listed.inner as u64 * listed.width as u64;
            self.add(encoding(&listed.encoding)?, 3 * listed.count as u64, weights, bytes);
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, encoding: Encoding, matrices: u64, weights: u64, bytes: u64) {
        let name = encoding.to_string();
        let at = self.encodings.iter().position(|size| size.encoding == name).unwrap_or_else(|| {
            self.encodings.push(EncodingSize { encoding: name, matrices: 0, weights: 0, bytes: 0 });
            self.encodings.len() - 1
        });
        let size = &mut self.encodings[at];
        size.matrices += matrices;
        size.weights += weights;
        size.bytes += bytes;
    }
}

/// Whoever turns one file after another from the source's tensors into tiles.
struct Packer<'a> {
    model: &'a Model,
    threads: &'a Threads,
    holes: bool,
    calibration: Option<&'a Calibration>,
    cancel: &'a AtomicBool,
}

/// A tile and the bytes that it was made from.
struct Encoded {
    tile: Vec<u8>,
    source: Vec<u8>,
}

impl Packer<'_> {
    fn check(&self) -> Result<(), Error> {
        crate::weights::check(self.cancel)
    }

    fn tensor_error(&self, tensor: &str, error: &EncodeError) -> Error {
        let dir = self.model.checkpoint.dir().to_path_buf();
        Error::Tensor { dir, tensor: tensor.to_owned(), reason: error.to_string() }
    }

    /// Writes a file; returns what is in it, and its size.
    fn file(&self, work: &FileWork<'_>, dir: &Path, step: &dyn Fn(u64)) -> Result<(Written, u64), Error> {
        let mut file = TensorFile::create(dir.join(&work.name), work.names())?;
        file = if self.holes { file.with_holes() } else { file };
        let (mut written, mut done) = (Written::default(), 0);
        for matrix in &work.matrices {
            let info = self.matrix(matrix, &mut file, &|bytes| step(done + bytes))?;
            written.matrices.push((matrix.tensor.clone(), info));
            done += matrix.source_bytes();
        }
        if let Some(bank) = &work.bank {
            let info = self.bank(bank, &mut file, step)?;
            written.experts.push((bank.bank.name.to_string(), info));
        }
        self.copies(&work.copies, &mut file)?;
        self.check()?;
        Ok((written, file.finish()?))
    }

    /// How many of the first rows have to be encoded for all of a tile's to be there.
    fn rows_with_data(&self, source: &[u8], row_bytes: u64, target: Encoding) -> usize {
        let rows = source.chunks_exact(row_bytes as usize);
        let all = rows.len();
        // The planes of BF12 do not lie row behind row.
        if !self.holes || target == Encoding::Bf12 {
            return all;
        }
        let last = rows.rev().position(|row| !is_zero(row)).map_or(0, |behind| all - behind);
        last.next_multiple_of(target.row_multiple()).max(target.row_multiple()).min(all)
    }

    /// The source's rows of a tile.
    fn source_tile(&self, work: &MatrixWork<'_>, tile: usize) -> Result<Vec<u8>, Error> {
        self.check()?;
        let rows = work.rows_of(tile);
        let mut bytes = vec![0; rows.len() * work.row_bytes as usize];
        let sources = self.model.checkpoint.index().sources();
        work.entry.read(sources, rows.start as u64 * work.row_bytes, &mut bytes)?;
        Ok(bytes)
    }

    /// Calls `make` for the numbers below `count` on all threads and `take` for the results in their order, a few at a time.
    fn in_order<T: Send>(
        &self,
        count: usize,
        make: impl Fn(usize) -> Result<T, Error> + Sync + Send,
        mut take: impl FnMut(usize, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let batch = self.threads.count();
        for first in (0..count).step_by(batch) {
            let numbers = first..count.min(first + batch);
            let made: Vec<_> =
                self.threads.run(|| numbers.into_par_iter().map(&make).collect::<Result<_, _>>())?;
            for (i, made) in made.into_iter().enumerate() {
                take(first + i, made)?;
            }
        }
        Ok(())
    }

    fn matrix(
        &self,
        work: &MatrixWork<'_>,
        file: &mut TensorFile,
        step: &dyn Fn(u64),
    ) -> Result<MatrixInfo, Error> {
        let mut target = work.target;
        let mut payload = work.payload()?;
        if target == Encoding::Bf12 {
            // All tiles have the size of the largest, which has to be known before the first is written.
            payload = 0;
            let size = |tile| {
                let rows = work.rows_of(tile).len();
                Ok(bf12::encoded_size([rows, work.cols], &self.source_tile(work, tile)?)?)
            };
            self.in_order(work.tiles(), size, |_, bytes| {
                payload = payload.max(bytes);
                Ok(())
            })?;
            let plain = Encoding::Bf16.matrix_bytes([work.tile_rows.min(work.rows), work.cols])?;
            if payload >= plain {
                (target, payload) = (Encoding::Bf16, plain);
            }
        }
        let (stride, seed) = (MatrixWork::stride(payload), seed(&work.tensor));
        let (tiles, bytes) = (work.tiles() as u64, work.tiles() as u64 * stride as u64);
        file.tensor(&work.tensor, "U8", &[tiles, stride as u64], bytes);
        let lossless = keeps(work.source, target) && !self.holes;
        let guide = match self.calibration {
            Some(calibration) => calibration.guide(&work.tensor, work.cols, target)?,
            None => Guide::None,
        };
        let make = |number| {
            let source = self.source_tile(work, number)?;
            let rows = work.rows_of(number);
            let mut tile = Vec::with_capacity(stride);
            tile.resize(HEADER_BYTES, 0);
            let widened;
            let (view, bytes) = match work.scales {
                None => {
                    let kept = self.rows_with_data(&source, work.row_bytes, target);
                    let bytes = &source[..kept * work.row_bytes as usize];
                    (MatrixView::new(work.source, [kept, work.cols], bytes)?, bytes)
                }
                Some(scales) => {
                    widened = plain(scales, rows.start, work.cols, &source)?;
                    (MatrixView::new(Encoding::F32, [rows.len(), work.cols], &widened)?, &widened[..])
                }
            };
            encode(view, bytes, target, &guide, &mut tile)
                .map_err(|error| self.tensor_error(&work.tensor, &error))?;
            if view.rows() < rows.len() {
                tile.resize(HEADER_BYTES + target.matrix_bytes([rows.len(), work.cols])?, 0);
            }
            let header = Tile { encoding: target, rows: rows.len(), cols: work.cols, first: rows.start };
            self.seal(&header, &work.tensor, seed, &mut tile)?;
            let source = if lossless { source } else { Vec::new() };
            Ok(Encoded { tile, source })
        };
        let mut hash = XxHash3_64::new();
        self.in_order(work.tiles(), make, |number, Encoded { tile, source }| {
            hash.write(&source);
            file.write(&tile)?;
            file.pad(stride - tile.len())?;
            step(work.rows_of(number).end as u64 * work.row_bytes);
            Ok(())
        })?;
        Ok(work.info(target, lossless.then(|| hash.finish())))
    }

    fn seal(&self, header: &Tile, tensor: &str, seed: u64, tile: &mut [u8]) -> Result<(), Error> {
        seal(header, seed, tile).ok_or_else(|| Error::Tensor {
            dir: self.model.checkpoint.dir().to_path_buf(),
            tensor: tensor.to_owned(),
            reason: "has more rows, columns or bytes than a tile can say".to_owned(),
        })
    }

    fn bank(
        &self,
        work: &BankWork<'_>,
        file: &mut TensorFile,
        step: &dyn Fn(u64),
    ) -> Result<BankInfo, Error> {
        let BankWork { bank, target, layout } = work;
        let index = self.model.checkpoint.index();
        let (stride, seed) = (layout.stride(), seed(&bank.name));
        let lossless = keeps(bank.encoding, *target) && !self.holes;
        file.tensor(&bank.name, "U8", &[bank.count as u64, stride as u64], bank.count as u64 * stride as u64);
        let make = |expert: usize| {
            self.check()?;
            let expert = expert as u32;
            let parts = bank.parts(index, expert);
            let per_matrix = parts.as_ref().len() / bank.shapes().len();
            let mut kept = bank.shapes();
            if self.holes && bank.encoding != Encoding::Fp8 {
                for ([rows, _], parts) in kept.iter_mut().zip(parts.as_ref().chunks(per_matrix)) {
                    // Scales count only where there are weights.
                    let Extent { source, offset, len } = parts[0];
                    let data = index.source(source).data_end(offset, len).min(offset + len) - offset;
                    let count = data.div_ceil(len / *rows as u64) as usize;
                    *rows = count.next_multiple_of(BAND_ROWS).clamp(BAND_ROWS.min(*rows), *rows);
                }
            }
            let planes = parts.as_ref().iter().enumerate().map(|(i, extent)| {
                let ([rows, _], [all, _]) = (kept[i / per_matrix], bank.shapes()[i / per_matrix]);
                let len = if rows == all { extent.len } else { extent.len / all as u64 * rows as u64 };
                let mut bytes = vec![0; len as usize];
                index.source(extent.source).read_at(extent.offset, &mut bytes)?;
                Ok(bytes)
            });
            let planes = planes.collect::<Result<Vec<_>, Error>>()?;
            let views = bank.views_of(kept, |i| &planes[i])?;
            let guides = match self.calibration {
                Some(calibration) => calibration.expert_guides(&bank.name, expert as usize, *target)?,
                None => [Guide::None, Guide::None, Guide::None],
            };
            let mut tile = Vec::with_capacity(stride);
            let of_matrices = planes.chunks(per_matrix).zip(layout.ranges()).zip(&guides);
            for (view, ((planes, range), guide)) in views.into_iter().zip(of_matrices) {
                tile.resize(HEADER_BYTES + range.start, 0);
                let encoded = encode(view, &planes[0], *target, guide, &mut tile);
                encoded.map_err(|error| self.tensor_error(&format!("{}.{expert}", bank.name), &error))?;
            }
            tile.resize(HEADER_BYTES + layout.payload_bytes(), 0);
            self.seal(&layout.tile(expert), &bank.name, seed, &mut tile)?;
            let source = if lossless { planes.concat() } else { Vec::new() };
            Ok(Encoded { tile, source })
        };
        let mut hash = XxHash3_64::new();
        self.in_order(bank.count, make, |expert, Encoded { tile, source }| {
            hash.write(&source);
            file.write(&tile)?;
            file.pad(stride - tile.len())?;
            step((expert as u64 + 1) * bank.expert_bytes());
            Ok(())
        })?;
        Ok(work.info(self.model, lossless.then(|| hash.finish())))
    }

    /// Tensors that are copied as they are, those of wider elements first, so that each is aligned.
    fn copies(&self, names: &[String], file: &mut TensorFile) -> Result<(), Error> {
        const PIECE: u64 = 4 << 20;
        let index = self.model.checkpoint.index();
        let mut tensors: Vec<_> = names.iter().filter_map(|name| Some((name, index.find(name)?))).collect();
        let bits = |dtype: kimi_paging::Dtype| std::cmp::Reverse(dtype.bits().unwrap_or(0));
        tensors.sort_by_key(|(_, info)| bits(info.dtype));
        for (name, info) in tensors {
            file.tensor(name, &info.dtype.to_string(), info.shape, info.bytes);
            let mut at = 0;
            while at < info.bytes {
                self.check()?;
                let mut bytes = vec![0; PIECE.min(info.bytes - at) as usize];
                index.source(info.source).read_at(info.offset + at, &mut bytes)?;
                file.write(&bytes)?;
                at += bytes.len() as u64;
            }
        }
        Ok(())
    }
}
