//! `kimi.json`: what a packed model is made of.

use std::collections::BTreeMap;
use std::path::Path;

use kimi_quant::{Encoding, IntFormat};
use serde::{Deserialize, Serialize};

use crate::checkpoint::EXPERT_NAMES;
use crate::error::Error;
use crate::files::ModelFiles;

/// The file that makes a folder a packed model. It is written last.
pub(crate) const MANIFEST_FILE: &str = "kimi.json";

/// The file that lists what an unfinished run of packing has written.
pub(crate) const JOURNAL_FILE: &str = "kimi-pack.json";

/// The version that this code writes and reads.
pub(crate) const FORMAT: u32 = 1;

/// The contents of [`MANIFEST_FILE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// The preset that was asked for, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) preset: Option<String>,
    /// What was asked for.
    #[serde(default)]
    pub(crate) recipe: BTreeMap<String, String>,
    /// Every weight has the bits of the source.
    pub(crate) lossless: bool,
    pub(crate) source: SourceInfo,
    /// Every packed matrix by the name of its tensor.
    pub(crate) matrices: BTreeMap<String, MatrixInfo>,
    /// The experts of each layer by the name of their tensor.
    pub(crate) experts: BTreeMap<String, BankInfo>,
    pub(crate) files: Vec<FileInfo>,
}

/// Where a packed model came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SourceInfo {
    pub(crate) tensors: u64,
    pub(crate) bytes: u64,
    /// SHA-256 over the names, types, shapes and sizes of all tensors, and the configuration.
    pub(crate) fingerprint: String,
}

/// A matrix and its tiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MatrixInfo {
    pub(crate) encoding: String,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) tile_rows: usize,
    /// The type in the source, as safetensors spells it.
    pub(crate) dtype: String,
    /// XXH3-64 of the source's bytes, row after row; where they are kept without loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source_xxh3: Option<String>,
}

/// The experts of a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BankInfo {
    pub(crate) encoding: String,
    pub(crate) count: usize,
    pub(crate) inner: usize,
    pub(crate) width: usize,
    /// The types of weights and scales in the source.
    pub(crate) dtypes: Vec<String>,
    /// What the gate, up and down matrix are called in the source.
    #[serde(default = "kimi_names")]
    pub(crate) names: Vec<String>,
    /// XXH3-64 of the source's bytes: expert after expert gate, up and down matrix, of each the weights and then the scales; where they
    /// are kept without loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source_xxh3: Option<String>,
}

impl BankInfo {
    /// The source was INT4 in planes, and every number of it is here.
    pub(crate) fn is_int4(&self) -> bool {
        let encoding = self.encoding.parse();
        self.dtypes.first().is_some_and(|dtype| dtype == "I32")
            && encoding == Ok(Encoding::Int(IntFormat::INT4))
    }
}

/// The names in models that were packed before the manifest listed them.
fn kimi_names() -> Vec<String> {
    EXPERT_NAMES[0].map(str::to_owned).to_vec()
}

/// A file of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileInfo {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Absent for the sparse files of a synthetic model, which are terabytes of holes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
}

impl Manifest {
    /// Reads the manifest of a model; `None` where there is none, as in released checkpoints.
    ///
    /// # Errors
    /// [`Error::Manifest`] for a file that cannot be read, is no manifest, or is of a later version.
    pub(crate) fn read(files: &ModelFiles) -> Result<Option<Self>, Error> {
        let path = files.path().join(MANIFEST_FILE);
        match files.read(MANIFEST_FILE) {
            Ok(Some(json)) => Self::parse(&json, &path).map(Some),
            Ok(None) if files.has(JOURNAL_FILE) => {
                let reason = "packing is not finished; run the same `pack` command again to go on with it";
                Err(Error::Manifest { path: files.path().join(JOURNAL_FILE), reason: reason.to_owned() })
            }
            Ok(None) => Ok(None),
            Err(error) => Err(Error::Manifest { path, reason: error.to_string() }),
        }
    }

    fn parse(json: &[u8], path: &Path) -> Result<Self, Error> {
        /// Read first, so that later versions may change everything else.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let invalid = |reason: String| Error::Manifest { path: path.to_path_buf(), reason };
        let version: Version = serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        if version.format != FORMAT {
            let found = version.format;
            return Err(invalid(format!("has format {found}, this program reads {FORMAT}")));
        }
        serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_and_other_files_are_refused() {
        let parse = |json: &str| Manifest::parse(json.as_bytes(), Path::new("m/kimi.json"));
        for (json, part) in [
            ("", "EOF"),
            ("[]", "invalid"),
            (r#"{"format":2}"#, "has format 2"),
            (r#"{"format":1}"#, "missing field"),
        ] {
            let message = parse(json).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("kimi.json"), "{json}: {message}");
        }
        let json = r#"{"format":1,"lossless":true,"source":{"tensors":1,"bytes":2,"fingerprint":"ab"},
            "matrices":{"a.weight":{"encoding":"bf12","rows":3,"cols":4,"tile_rows":16,"dtype":"BF16"}},
            "experts":{},"files":[]}"#;
        let manifest = parse(json).unwrap();
        assert_eq!(manifest.matrices["a.weight"].encoding, "bf12");
        let again = serde_json::to_string(&manifest).unwrap();
        assert_eq!(parse(&again).unwrap(), manifest);
    }

    #[test]
    fn a_folder_without_manifest_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Manifest::read(&ModelFiles::open(dir.path()).unwrap()).unwrap().is_none());
    }
}
