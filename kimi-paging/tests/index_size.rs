//! The index of the released K3, built from its real names, types and shapes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_paging::{Backend, Dtype, Error, MemorySource, Source, TensorIndex};

#[path = "support/k3.rs"]
mod k3;

/// A file of which only the header has bytes; the rest has a length.
#[derive(Debug)]
struct HeaderOnly {
    name: PathBuf,
    header: Vec<u8>,
    len: u64,
}

impl HeaderOnly {
    fn new(shard: usize) -> Self {
        let (header, data) = k3::header(shard);
        let len = header.len() as u64 + data;
        Self { name: k3::shard_name(shard).into(), header, len }
    }
}

impl Source for HeaderOnly {
    fn name(&self) -> &Path {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let start = offset as usize;
        buf.copy_from_slice(&self.header[start..start + buf.len()]);
        Ok(())
    }

    fn backend(&self) -> Backend {
        Backend::Pread
    }
}

#[test]
fn the_index_of_k3_fits_its_budget() {
    let shards = |()| {
        let shard = |at| (k3::shard_name(at), Arc::new(HeaderOnly::new(at)) as Arc<dyn Source>);
        (0..k3::SHARDS).map(shard).collect::<Vec<_>>()
    };
    let json = MemorySource::new("model.safetensors.index.json", k3::index_json());
    let index = TensorIndex::from_sources(shards(()), Some(&json)).unwrap();
    assert_eq!((index.len(), index.unindexed(), index.sources().len()), (k3::TENSORS, 0, k3::SHARDS));
    println!("{} bytes for {} tensors", index.heap_bytes(), index.len());
    assert!(index.heap_bytes() <= 11 << 20, "{} bytes", index.heap_bytes());

    // Every tensor is found, by name and by numbers, and lies where its header says.
    let template = |pattern: &str| index.template(pattern).unwrap();
    let packed = template("language_model.model.layers.{}.block_sparse_moe.experts.{}.w1.weight_packed");
    let mut language_bytes = 0;
    for shard in 0..k3::SHARDS {
        let mut offset = k3::header(shard).0.len() as u64;
        k3::shard_tensors(shard, |name, dtype, shape| {
            let info = index.find(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!((info.dtype.as_str(), info.shape, info.offset), (dtype, shape, offset), "{name}");
            assert_eq!(index.source(info.source).name(), Path::new(&k3::shard_name(shard)));
            offset += info.bytes;
            if name.starts_with("language_model.") {
                language_bytes += info.bytes;
            }
        });
    }
    let w1 = index.at(packed, &[92, 895]).unwrap();
    assert_eq!((w1.dtype, w1.shape), (Dtype::U8, &[3072, 1792][..]));
    assert!(index.at(packed, &[92, 896]).is_none() && index.at(packed, &[0, 0]).is_none());
    assert!(language_bytes < k3::TOTAL_BYTES && language_bytes > k3::TOTAL_BYTES * 999 / 1000);

    // Without an index file the same headers give the same index.
    let bare = TensorIndex::from_sources(shards(()), None).unwrap();
    assert_eq!(bare.len(), index.len());
    assert!(bare.heap_bytes() <= 11 << 20, "{} bytes", bare.heap_bytes());
    assert!(index.iter().map(|tensor| tensor.1.offset).eq(bare.iter().map(|tensor| tensor.1.offset)));
}
