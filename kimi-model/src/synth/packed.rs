//! Synthetic models that are packed from the start, without a checkpoint that they were made from.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kimi_paging::{Source, TensorIndex};

use super::folder::check_sparse;
use super::generated::Generated;
use super::random::Tables;
use super::{Geometry, SynthError, SynthOptions, header};
use crate::error::Error;
use crate::model::Model;
use crate::pack::{self, PackOptions, PackProgress, PackReport, Recipe};

/// Why a packed model could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackedSynthError {
    /// The file system does not hold a sparse model, or cannot be asked.
    #[error(transparent)]
    Folder(#[from] SynthError),
    /// As from packing.
    #[error(transparent)]
    Pack(#[from] Error),
}

/// Makes the packed form of the model that [`synthesize`](super::synthesize) would make: the same files as packing that model gives.
///
/// A sparse one has holes where the other has zeros, and the same numbers everywhere; its files are neither hashed nor read
/// back. After an interruption the same call goes on with the file that was being written.
///
/// # Errors
/// [`PackedSynthError`]: as from [`pack`](crate::pack::pack), and for a sparse model a file system without holes.
pub fn synthesize_packed(
    geometry: &Geometry,
    dir: &Path,
    options: SynthOptions,
    recipe: Recipe,
    progress: &dyn Fn(&PackProgress),
    cancel: &AtomicBool,
) -> Result<PackReport, PackedSynthError> {
    let model = generated(geometry, options)?;
    let mut pack = PackOptions::new(recipe);
    pack.threads = options.threads;
    if options.sparse {
        let largest = pack::largest_file(&model, &pack.recipe)?;
        std::fs::create_dir_all(dir).map_err(pack::io_error("create", dir))?;
        check_sparse(dir, largest)?;
    }
    let mut wanted = pack::manifest(&model, &pack.recipe);
    // The shapes alone do not tell these models apart.
    let seed = format!("{}{}", options.seed, if options.sparse { ", sparse" } else { "" });
    wanted.recipe.insert("synthetic".to_owned(), seed);
    let beside = || pack::write_whole(&dir.join("config.json"), geometry.json());
    let job = pack::Job { wanted, holes: options.sparse, beside: &beside };
    Ok(pack::write(&model, dir, &pack, job, progress, cancel)?)
}

/// The model in the released layout, its bytes computed when they are read.
fn generated(geometry: &Geometry, options: SynthOptions) -> Result<Model, Error> {
    let name = PathBuf::from("synthetic");
    let tables = Arc::new(Tables::new());
    let shards = (0..geometry.shards()).map(|shard| {
        let file = geometry.shard_name(shard);
        let tensors = geometry.tensors(shard, options.sparse);
        let (path, header) = (name.join(&file), header(&tensors));
        let source = Generated::new(path, header, tensors, options.seed, Arc::clone(&tables));
        (file, Arc::new(source) as Arc<dyn Source>)
    });
    let index = TensorIndex::from_sources(shards.collect(), None)?;
    Model::new(geometry.config().clone(), index, &name, None)
}
