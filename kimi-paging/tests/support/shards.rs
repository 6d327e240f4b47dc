//! Safetensors files written byte by byte, right or wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_paging::{Error, FileSource, MemorySource, Source, TensorIndex};

/// A file of this header and these data.
pub(crate) fn shard(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A header with tensors of `(name, dtype, shape, offsets)`.
pub(crate) fn header(tensors: &[(&str, &str, &[u64], [u64; 2])]) -> String {
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, offsets)| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets:?}}}"#)
        })
        .collect();
    format!("{{{}}}", tensors.join(","))
}

/// An index file of `(tensor, shard)`.
pub(crate) fn index_json(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<_> = pairs.iter().map(|(tensor, shard)| format!(r#""{tensor}":"{shard}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, pairs.join(","))
}

/// The index of one file in memory, called `x.safetensors`.
pub(crate) fn index_of(file: impl Into<Vec<u8>>) -> Result<TensorIndex, Error> {
    TensorIndex::from_sources(vec![memory("x.safetensors", file)], None)
}

/// A file in memory.
pub(crate) fn memory(name: &str, file: impl Into<Vec<u8>>) -> (String, Arc<dyn Source>) {
    (name.to_owned(), Arc::new(MemorySource::new(name, file.into())))
}

/// A folder with these files.
#[allow(dead_code, reason = "each test uses some")]
pub(crate) fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// Opens a folder with positioned reads.
#[allow(dead_code, reason = "each test uses some")]
pub(crate) fn open(dir: &Path) -> Result<TensorIndex, Error> {
    TensorIndex::open(
        dir,
        &mut |path| Ok(Arc::new(FileSource::open(PathBuf::from(path))?) as Arc<dyn Source>),
    )
}
