//! Which model a saved session belongs to.

use kimi_paging::Source;
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::error::Error;
use crate::kv::KvFormat;
use crate::layout::FeedForward;
use crate::model::Model;
use crate::operand::Arith;

/// Bytes looked at in each of three tensors of a file.
const SAMPLE_BYTES: u64 = 4096;

/// A SHA-256 over what decides the numbers in a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({})", hex(&self.0))
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Fingerprint {
    /// That of a model as it is run.
    pub(crate) fn new(model: &Model, kv: KvFormat, arith: Arith) -> Result<Self, Error> {
        let model = match model.fingerprint.get() {
            Some(known) => *known,
            None => {
                let computed = of_model(model)?;
                *model.fingerprint.get_or_init(|| computed)
            }
        };
        let mut hash = Sha256::new();
        hash.update(model);
        hash.update(format!("kv {kv}, arith {arith}"));
        Ok(Self(hash.finalize().into()))
    }
}

/// Over the configuration, every tensor's name, type and shape, the encodings, the small vectors, and a sample of each file.
fn of_model(model: &Model) -> Result<[u8; 32], Error> {
    let mut hash = Sha256::new();
    hash.update(format!("{:?}\n", what_computes(&model.config)));
    let index = model.checkpoint.index();
    let mut tensors = vec![Vec::new(); index.sources().len()];
    for (name, info) in index.iter() {
        hash.update(format!("{name} {} {:?} {}\n", info.dtype, info.shape, info.bytes));
        tensors[info.source.index()].push((info.offset, info.bytes));
    }
    let layout = &model.layout;
    for matrix in &layout.matrices {
        hash.update(format!("{} {} {} {}\n", matrix.name, matrix.encoding, matrix.rows, matrix.cols));
    }
    hash.update(format!("{} {}\n", layout.embedding.name, layout.embedding.encoding));
    for layer in &layout.layers {
        if let FeedForward::Moe(moe) = &layer.feed_forward {
            hash.update(format!("{} {}\n", moe.experts.name, moe.experts.encoding));
        }
    }
    let mut bytes = Vec::new();
    for vector in layout.vectors() {
        bytes.clear();
        bytes.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
        hash.update(&bytes);
    }
    for (source, tensors) in index.sources().iter().zip(&tensors) {
        sample(&**source, tensors, &mut hash)?;
    }
    Ok(hash.finalize().into())
}

/// A configuration without what is looked at beside the computation only.
fn what_computes(config: &Config) -> Config {
    let mut config = config.clone();
    config.unknown = serde_json::Map::new();
    (config.bos_token_id, config.eos_token_ids) = (None, Vec::new());
    config.max_position_embeddings = 0;
    config
}

/// The first bytes of the first, the middle and the last tensor of a file.
fn sample(source: &dyn Source, tensors: &[(u64, u64)], hash: &mut Sha256) -> Result<(), Error> {
    let Some(last) = tensors.len().checked_sub(1) else { return Ok(()) };
    for at in [0, last / 2, last] {
        let (offset, bytes) = tensors[at];
        let mut buffer = vec![0; bytes.min(SAMPLE_BYTES) as usize];
        source.read_at(offset, &mut buffer)?;
        hash.update(&buffer);
    }
    Ok(())
}
