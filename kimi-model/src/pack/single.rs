//! A whole model in one safetensors file: the tensors of all its files, and the files beside them.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use kimi_paging::MAX_HEADER_BYTES;
use sha2::{Digest, Sha256};

use super::writer::{DIGEST, Header, PARTIAL, sync_dir};
use super::{PackOptions, PackProgress, PackReport, io_error, pack, refused, wanted};
use crate::drive::free_bytes;
use crate::error::Error;
use crate::files::{ModelFiles, file_tensor, is_file_tensor};
use crate::model::Model;
use crate::packed::{BLOCK, MANIFEST_FILE, Manifest};
use crate::verify::{VerifyProgress, hex, single_file};

/// Bytes that are copied at once.
const PIECE: u64 = 4 << 20;

/// What the folder of an encoding that is not joined yet is called, behind the name of the file.
const PARTS: &str = ".parts";

/// Packs a model into the single file `target`.
///
/// Tiles are written to a folder beside the target as [`pack`] does, then joined; so the drive holds the model twice for a
/// while. After an interruption the same call goes on. `progress` counts both steps from their beginning.
///
/// # Errors
/// As [`pack`] and [`join`].
pub fn pack_single(
    model: &Model,
    target: &Path,
    options: &PackOptions,
    progress: &dyn Fn(&PackProgress),
    cancel: &AtomicBool,
) -> Result<PackReport, Error> {
    refuse_present(target)?;
    let parts = beside(target, PARTS);
    let wanted = wanted(model, options)?;
    let finished =
        if parts.is_dir() { Manifest::read(&ModelFiles::open(&parts)?).ok().flatten() } else { None };
    let packed = match finished {
        Some(found)
            if (&found.source, &found.recipe, &found.preset)
                == (&wanted.source, &wanted.recipe, &wanted.preset) =>
        {
            None
        }
        Some(_) => return Err(refused(&parts, "holds another packed model; remove it".to_owned())),
        None => Some(pack(model, model.checkpoint.dir(), &parts, options, progress, cancel)?),
    };
    let open = &mut |file: &Path| Ok(std::sync::Arc::new(kimi_paging::FileSource::open(file)?) as _);
    let joined = join(&Model::open(&parts, open)?, target, progress, cancel)?;
    fs::remove_dir_all(&parts).map_err(io_error("remove", &parts))?;
    let reclaimed_bytes = packed.map_or(0, |packed| packed.reclaimed_bytes);
    let source_bytes = wanted.source.bytes;
    Ok(PackReport { source_bytes, reclaimed_bytes, ..joined })
}

/// Writes a model, packed or as released, into the single file `target`, its tensors as they are.
///
/// The file has its name only when it is whole: it is written under another one, put on the drive and read back. An
/// interrupted run begins again.
///
/// # Errors
/// [`Error::Pack`] when there is something at the target, the drive is too small or the model has too many tensors for one
/// file; [`Error::Tile`] for damaged tiles of a packed model; errors of reading and writing; [`Error::Cancelled`].
pub fn join(
    model: &Model,
    target: &Path,
    progress: &dyn Fn(&PackProgress),
    cancel: &AtomicBool,
) -> Result<PackReport, Error> {
    refuse_present(target)?;
    let plan = Plan::new(model, target)?;
    let partial = beside(target, PARTIAL);
    if partial.exists() {
        fs::remove_file(&partial).map_err(io_error("remove", &partial))?;
    }
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free = free_bytes(dir).map_err(io_error("ask for the free space of", dir))?;
    if let Some(free) = free.filter(|&free| free < plan.report.packed_bytes) {
        let (needed, free) = (plan.report.packed_bytes as f64 / 1e9, free as f64 / 1e9);
        return Err(refused(target, format!("needs {needed:.1} GB, {free:.1} GB are free")));
    }
    let written = plan.write(model, target, &partial, progress, cancel);
    if let Err(Error::Cancelled) = written {
        fs::remove_file(&partial).map_err(io_error("remove", &partial))?;
    }
    written?;
    fs::rename(&partial, target).map_err(io_error("rename", &partial))?;
    sync_dir(target)?;
    Ok(plan.report)
}

/// What [`join`] would write, without writing it.
///
/// # Errors
/// As [`join`], as far as they can be known before.
pub fn estimate_join(model: &Model, target: &Path) -> Result<PackReport, Error> {
    refuse_present(target)?;
    Ok(Plan::new(model, target)?.report)
}

fn refuse_present(target: &Path) -> Result<(), Error> {
    match target.exists() {
        true => Err(refused(target, "is there already; give another name".to_owned())),
        false => Ok(()),
    }
}

/// A path with more at the end of its name.
fn beside(target: &Path, end: &str) -> PathBuf {
    target.with_file_name(format!("{}{end}", target.file_name().unwrap_or_default().to_string_lossy()))
}

/// Everything about the file but its bytes.
struct Plan {
    header: Vec<u8>,
    /// Names of the tensors in the order of their data.
    tensors: Vec<String>,
    /// The contents of the files beside them, which come last.
    files: Vec<Vec<u8>>,
    report: PackReport,
}

impl Plan {
    fn new(model: &Model, target: &Path) -> Result<Self, Error> {
        let (index, manifest) = (model.checkpoint.index(), model.checkpoint.manifest());
        let mut tensors: Vec<_> = index.iter().filter(|(name, _)| !is_file_tensor(name)).collect();
        // Whole blocks first, in the order of the files: each begins on a block then, as tiles have to. The others by the width of
        // their elements, so that each is aligned.
        tensors.sort_by_key(|(_, info)| match info.bytes.is_multiple_of(BLOCK as u64) {
            true => (false, Reverse(0)),
            false => (true, Reverse(info.dtype.bits().unwrap_or(0))),
        });
        let mut report = PackReport::joined(manifest.is_none_or(|manifest| manifest.lossless));
        let mut header = Header::single();
        for (name, info) in &tensors {
            header.add(name, &info.dtype.to_string(), info.shape, info.bytes);
            report.source_bytes += info.bytes;
            if let Some(manifest) = manifest {
                report.add_listed(manifest, name, info.bytes, target)?;
            }
        }
        let model_files = ModelFiles::open(model.checkpoint.dir())?;
        let manifest = manifest.map(|_| MANIFEST_FILE.to_owned());
        let mut files = Vec::new();
        for name in model_files.others()?.into_iter().chain(manifest) {
            let path = model_files.path().join(&name);
            let bytes = model_files.read(&name).map_err(io_error("read", &path))?.unwrap_or_default();
            header.add(&file_tensor(&name), "U8", &[bytes.len() as u64], bytes.len() as u64);
            files.push(bytes);
        }
        let (header, bytes) = header.exact();
        if header.len() as u64 > MAX_HEADER_BYTES {
            let reason = format!(
                "would have a header of {:.0} MB for {} tensors, a safetensors file allows {:.0} MB; pack the experts",
                header.len() as f64 / 1e6,
                tensors.len(),
                MAX_HEADER_BYTES as f64 / 1e6
            );
            return Err(refused(target, reason));
        }
        report.packed_bytes = bytes;
        Ok(Self { header, tensors: tensors.into_iter().map(|(name, _)| name).collect(), files, report })
    }

    fn write(
        &self,
        model: &Model,
        target: &Path,
        partial: &Path,
        progress: &dyn Fn(&PackProgress),
        cancel: &AtomicBool,
    ) -> Result<(), Error> {
        let bytes = self.report.packed_bytes;
        let step = |done_bytes: u64| {
            // It is read back afterwards.
            let (total_bytes, resumed_bytes, file) = (2 * bytes, 0, target.display().to_string());
            progress(&PackProgress { done_bytes, total_bytes, resumed_bytes, file });
        };
        let failed = || io_error("write", partial);
        let mut out = Output::create(partial).map_err(io_error("create", partial))?;
        out.write(&self.header).map_err(failed())?;
        let index = model.checkpoint.index();
        let mut piece = Vec::new();
        for name in &self.tensors {
            let info = index.find(name).expect("it was listed by the index");
            let mut at = 0;
            while at < info.bytes {
                crate::weights::check(cancel)?;
                piece.resize(PIECE.min(info.bytes - at) as usize, 0);
                index.source(info.source).read_once(info.offset + at, &mut piece)?;
                out.write(&piece).map_err(failed())?;
                at += piece.len() as u64;
                step(out.written);
            }
        }
        for file in &self.files {
            out.write(file).map_err(failed())?;
        }
        assert_eq!(out.written, bytes, "the header counted every byte");
        out.finish().map_err(failed())?;
        let read = |at: VerifyProgress| step(bytes + at.done_bytes);
        let manifest = model.checkpoint.manifest();
        match single_file(partial, manifest, &read, cancel)?.damages.into_iter().next() {
            None => Ok(()),
            Some(damage) => Err(Error::Tile {
                file: partial.to_path_buf(),
                tensor: damage.tensor,
                tile: damage.tile.unwrap_or(0),
                reason: damage.reason,
            }),
        }
    }
}

/// A file whose digest stands in its header.
struct Output {
    file: BufWriter<File>,
    hash: Sha256,
    written: u64,
}

impl Output {
    fn create(path: &Path) -> io::Result<Self> {
        let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        Ok(Self { file, hash: Sha256::new(), written: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Writes the digest, which was hashed as zeros, and puts everything on the drive.
    fn finish(mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(DIGEST.start))?;
        self.file.write_all(hex(self.hash).as_bytes())?;
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_their_ends() {
        assert_eq!(beside(Path::new("a/b.gguf"), PARTIAL), Path::new("a/b.gguf.partial"));
        assert_eq!(beside(Path::new("b"), PARTS), Path::new("b.parts"));
    }
}
