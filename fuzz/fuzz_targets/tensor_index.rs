//! A shard of arbitrary bytes: an index or an error, and every tensor of the index lies inside the shard.
#![no_main]

use std::sync::Arc;

use kimi_paging::{MemorySource, Source, TensorIndex};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new("fuzz.safetensors", data.to_vec()));
    if let Ok(index) = TensorIndex::from_sources(vec![("fuzz.safetensors".to_owned(), source)], None) {
        for (name, info) in index.iter() {
            assert!(info.offset + info.bytes <= data.len() as u64);
            assert_eq!(index.find(&name).map(|found| found.offset), Some(info.offset));
        }
    }
});
