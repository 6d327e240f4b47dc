//! What an unfinished run has written, and the manifest that ends it.
//!
//! A file counts as finished only from the moment the journal lists it, with the size it has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::recipe::Recipe;
use super::writer::{PARTIAL, io_error, write_whole};
use super::{PackReport, Written, refused};
use crate::error::Error;
use crate::files::{ModelFiles, is_file_tensor};
use crate::model::Model;
use crate::packed::{FORMAT, JOURNAL_FILE, MANIFEST_FILE, Manifest, SourceInfo};

/// The file that tells other readers which tensor lies where.
const INDEX_FILE: &str = "model.safetensors.index.json";

/// The journal of one target folder: its manifest under construction.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    manifest: Manifest,
}

impl Journal {
    /// Takes up the journal of a folder, or begins one in a folder that is empty or does not exist.
    ///
    /// `wanted` is the manifest of nothing packed yet.
    pub(crate) fn open(dir: &Path, wanted: Manifest) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let path = dir.join(JOURNAL_FILE);
        if dir.join(MANIFEST_FILE).is_file() {
            return Err(refused(dir, "holds a packed model already; give another folder".to_owned()));
        }
        let journal = match fs::read(&path) {
            Ok(json) => {
                let begun: Manifest = serde_json::from_slice(&json).map_err(|error| {
                    refused(
                        dir,
                        format!("{JOURNAL_FILE} cannot be read ({error}); remove the folder to begin anew"),
                    )
                })?;
                if begun.source != wanted.source {
                    return Err(refused(dir, "was begun from another model; give another folder".to_owned()));
                }
                if (&begun.recipe, &begun.preset) != (&wanted.recipe, &wanted.preset) {
                    let reason = format!(
                        "was begun with other options: {}; give them again, or another folder",
                        differences(&begun.recipe, &wanted.recipe)
                    );
                    return Err(refused(dir, reason));
                }
                Self { dir: dir.to_path_buf(), manifest: begun }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if let Some(name) = foreign(dir)? {
                    return Err(refused(dir, format!("is not empty: it holds `{name}`; give a new folder")));
                }
                let journal = Self { dir: dir.to_path_buf(), manifest: wanted };
                journal.write()?;
                journal
            }
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        journal.check_files()?;
        journal.remove_partial()?;
        Ok(journal)
    }

    /// True before the first file is finished.
    pub(crate) fn is_empty(&self) -> bool {
        self.manifest.files.is_empty()
    }

    /// True when a file is finished.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.manifest.files.iter().any(|file| file.name == name)
    }

    /// Adds a finished file.
    pub(crate) fn add(&mut self, written: Written) -> Result<(), Error> {
        let manifest = &mut self.manifest;
        let lossy = written.matrices.iter().any(|(_, info)| info.source_xxh3.is_none())
            || written.experts.iter().any(|(_, info)| info.source_xxh3.is_none());
        manifest.lossless &= !lossy;
        manifest.matrices.extend(written.matrices);
        manifest.experts.extend(written.experts);
        manifest.files.extend(written.files);
        self.write()
    }

    /// Writes index and manifest, and completes the report.
    pub(crate) fn finish(self, report: &mut PackReport) -> Result<PackReport, Error> {
        let manifest = &self.manifest;
        let mut weight_map = BTreeMap::new();
        let mut tensor_bytes = 0;
        for file in &manifest.files {
            let source = kimi_paging::FileSource::open(self.dir.join(&file.name))?;
            let shards = vec![(file.name.clone(), std::sync::Arc::new(source) as _)];
            let index = kimi_paging::TensorIndex::from_sources(shards, None)?;
            for (name, info) in index.iter() {
                tensor_bytes += info.bytes;
                report.add_listed(manifest, &name, info.bytes, &self.dir)?;
                weight_map.insert(name, file.name.clone());
            }
        }
        let index =
            serde_json::json!({ "metadata": { "total_size": tensor_bytes }, "weight_map": weight_map });
        write_whole(&self.dir.join(INDEX_FILE), index.to_string().as_bytes())?;
        let json = serde_json::to_vec_pretty(manifest).expect("a manifest is plain data");
        write_whole(&self.dir.join(MANIFEST_FILE), &json)?;
        let journal = self.dir.join(JOURNAL_FILE);
        fs::remove_file(&journal).map_err(io_error("remove", &journal))?;
        report.lossless = manifest.lossless;
        report.packed_bytes = manifest.files.iter().map(|file| file.bytes).sum();
        Ok(report.clone())
    }

    fn write(&self) -> Result<(), Error> {
        let json = serde_json::to_vec(&self.manifest).expect("a journal is plain data");
        write_whole(&self.dir.join(JOURNAL_FILE), &json)
    }

    /// Every finished file is there with its size.
    fn check_files(&self) -> Result<(), Error> {
        for file in &self.manifest.files {
            let path = self.dir.join(&file.name);
            let found = fs::metadata(&path).map_err(io_error("read", &path))?.len();
            if found != file.bytes {
                let reason = format!("{} has {found} bytes, it was written with {}", file.name, file.bytes);
                return Err(refused(&self.dir, reason));
            }
        }
        Ok(())
    }

    fn remove_partial(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.dir).map_err(io_error("list", &self.dir))? {
            let path = entry.map_err(io_error("list", &self.dir))?.path();
            if path.to_string_lossy().ends_with(PARTIAL) {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// The manifest of nothing packed yet.
pub(crate) fn manifest(model: &Model, recipe: &Recipe) -> Manifest {
    Manifest {
        format: FORMAT,
        preset: recipe.preset.clone(),
        recipe: recipe.describe(),
        lossless: true,
        source: source_info(model),
        matrices: BTreeMap::new(),
        experts: BTreeMap::new(),
        files: Vec::new(),
    }
}

/// A file that no run of packing leaves behind before its journal.
fn foreign(dir: &Path) -> Result<Option<String>, Error> {
    for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let name = entry.map_err(io_error("list", dir))?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(PARTIAL) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn differences(begun: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> String {
    let keys: std::collections::BTreeSet<_> = begun.keys().chain(now.keys()).collect();
    let none = "none".to_owned();
    let lines = keys.into_iter().filter_map(|key| {
        let (was, is) = (begun.get(key).unwrap_or(&none), now.get(key).unwrap_or(&none));
        (was != is).then(|| format!("{key} was {was}, now {is}"))
    });
    lines.collect::<Vec<_>>().join(", ")
}

fn source_info(model: &Model) -> SourceInfo {
    let mut hash = Sha256::new();
    let (mut tensors, mut bytes) = (0, 0);
    for (name, info) in model.checkpoint.index().iter().filter(|(name, _)| !is_file_tensor(name)) {
        tensors += 1;
        bytes += info.bytes;
        hash.update(format!("{name} {} {:?} {}\n", info.dtype, info.shape, info.bytes));
    }
    // Absent only where a model is in memory, which nobody packs.
    let files = ModelFiles::open(model.checkpoint.dir());
    hash.update(files.and_then(|files| files.config_json()).unwrap_or_default());
    let fingerprint = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    SourceInfo { tensors, bytes, fingerprint }
}
