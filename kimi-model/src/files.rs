//! What a model is stored in: a folder of files, or a single file that holds them all.
//!
//! A single file is a safetensors file in which the files beside the tensors are tensors too (`docs/formats.md`). It is
//! recognised by that, whatever it is called.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kimi_paging::{Dtype, FileSource, MAX_HEADER_BYTES, Source, TensorIndex};
use kimi_text::chat::{ChatFormat, FormatError};
use kimi_text::{LoadError, LoadErrorKind, Tokenizer};

use crate::error::Error;
use crate::pack::{io_error, write_whole};
use crate::packed::{JOURNAL_FILE, MANIFEST_FILE};
use crate::tuning::TUNING_FILE;

/// What a file is called among the tensors of a single file: this and its name.
const FILE_PREFIX: &str = "__file__/";

/// The largest file beside the tensors that belongs to a model.
const LARGEST_FILE: u64 = 64 << 20;

const CONFIG_FILE: &str = "config.json";
const VOCABULARY_FILE: &str = "tiktoken.model";
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// The files of a model.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    path: PathBuf,
    single: Option<Single>,
}

#[derive(Debug, Clone)]
struct Single {
    source: Arc<dyn Source>,
    /// Where each file begins, and its size.
    files: BTreeMap<String, (u64, u64)>,
}

impl ModelFiles {
    /// Looks at what is at `path`. Of a folder nothing is read; of a file the header.
    ///
    /// # Errors
    /// [`Error::NoModel`] for what is neither a folder nor a single file of a model, saying what it is;
    /// [`Error::Paging`] for a safetensors file that is damaged, [`Error::Tensor`] for one that holds files which cannot be.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let refuse = |found: String| Error::NoModel { path: path.to_path_buf(), found };
        if path.is_dir() {
            return Ok(Self { path: path.to_path_buf(), single: None });
        }
        if !path.is_file() {
            // Reading what is no regular file could wait for ever.
            let found = if path.exists() { "is neither a folder nor a file" } else { "does not exist" };
            return Err(refuse(found.to_owned()));
        }
        let source: Arc<dyn Source> = Arc::new(FileSource::open(path)?);
        if let Some(found) = foreign(&*source)? {
            return Err(refuse(found));
        }
        let shards = vec![(path.display().to_string(), Arc::clone(&source))];
        let mut files = BTreeMap::new();
        for (tensor, info) in TensorIndex::from_sources(shards, None)?.iter() {
            let Some(name) = tensor.strip_prefix(FILE_PREFIX) else { continue };
            let reason = if !is_file_name(name) {
                "is not the name of a file"
            } else if info.dtype != Dtype::U8 {
                "a file is stored as U8"
            } else if info.bytes > LARGEST_FILE {
                "is larger than any file of a model beside its weights"
            } else {
                files.insert(name.to_owned(), (info.offset, info.bytes));
                continue;
            };
            return Err(Error::Tensor { dir: path.to_path_buf(), tensor, reason: reason.to_owned() });
        }
        if !files.contains_key(CONFIG_FILE) {
            let found =
                "is a safetensors file without the configuration of a model; give the folder that it lies in";
            return Err(refuse(found.to_owned()));
        }
        Ok(Self { path: path.to_path_buf(), single: Some(Single { source, files }) })
    }

    /// The folder, or the single file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for a single file.
    pub fn is_single(&self) -> bool {
        self.single.is_some()
    }

    /// True when there is a file of this name.
    pub fn has(&self, name: &str) -> bool {
        match &self.single {
            Some(single) => single.files.contains_key(name),
            None => self.path.join(name).is_file(),
        }
    }

    /// The bytes of a file beside the tensors; `None` where there is none.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(single) = &self.single else {
            return match std::fs::read(self.path.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                read => read.map(Some),
            };
        };
        let Some(&(offset, len)) = single.files.get(name) else { return Ok(None) };
        let mut bytes = vec![0; len as usize];
        single.source.read_at(offset, &mut bytes).map_err(io::Error::other)?;
        Ok(Some(bytes))
    }

    /// The configuration.
    pub(crate) fn config_json(&self) -> Result<Vec<u8>, Error> {
        let failed = |source| Error::Config { path: self.path.join(CONFIG_FILE), source };
        self.read(CONFIG_FILE).map_err(failed)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
    }

    /// The tokenizer; `None` for a model without a `tiktoken.model`, which takes ids.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        if !self.has(VOCABULARY_FILE) {
            return Ok(None);
        }
        if self.single.is_none() {
            return Ok(Some(Tokenizer::from_dir(&self.path)?));
        }
        let read = |name: &str| {
            self.read(name)
                .map_err(|error| LoadError { file: self.path.join(name), kind: LoadErrorKind::Io(error) })
        };
        let vocabulary = read(VOCABULARY_FILE)?.unwrap_or_default();
        let config = read(TOKENIZER_CONFIG_FILE)?;
        Ok(Some(Tokenizer::from_bytes(&vocabulary, config.as_deref())?))
    }

    /// The format of the model's conversations.
    ///
    /// # Errors
    /// As [`ChatFormat::of_dir`].
    pub fn chat_format(&self, tokenizer: &Tokenizer) -> Result<ChatFormat, FormatError> {
        match self.single {
            None => ChatFormat::of_dir(&self.path, tokenizer),
            Some(_) => ChatFormat::of_files(&self.path, &|name| self.read(name), tokenizer),
        }
    }

    /// The names of all files that belong to the model beside its tensors and what this crate wrote: configuration, tokenizer,
    /// templates. Sorted.
    pub(crate) fn others(&self) -> Result<Vec<String>, Error> {
        let mut names: Vec<String> = match &self.single {
            Some(single) => single.files.keys().cloned().collect(),
            None => {
                let mut names = Vec::new();
                for entry in std::fs::read_dir(&self.path).map_err(io_error("list", &self.path))? {
                    let path = entry.map_err(io_error("list", &self.path))?.path();
                    // Links, as in a download cache, are followed.
                    let metadata = std::fs::metadata(&path).map_err(io_error("read", &path))?;
                    let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
                    names.extend(name.filter(|_| metadata.is_file() && metadata.len() <= LARGEST_FILE));
                }
                names
            }
        };
        names.retain(|name| {
            let tensors = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
            !tensors && ![MANIFEST_FILE, JOURNAL_FILE, TUNING_FILE].contains(&name.as_str())
        });
        names.sort_unstable();
        Ok(names)
    }

    /// Copies the [`others`](Self::others) into a folder.
    pub(crate) fn copy_others(&self, target: &Path) -> Result<(), Error> {
        for name in self.others()? {
            let bytes = self.read(&name).map_err(io_error("read", &self.path.join(&name)))?;
            write_whole(&target.join(&name), &bytes.unwrap_or_default())?;
        }
        Ok(())
    }

    /// Bytes of the files with tensors. What cannot be read is reported when it is opened.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        if let Some(single) = &self.single {
            return single.source.len();
        }
        let files = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let shards =
            files.filter(|file| file.path().extension().is_some_and(|extension| extension == "safetensors"));
        // Through links, as the shards of a download cache are.
        shards.filter_map(|file| Some(std::fs::metadata(file.path()).ok()?.len())).sum()
    }
}

/// The name of a file among the tensors of a single file.
pub(crate) fn file_tensor(name: &str) -> String {
    format!("{FILE_PREFIX}{name}")
}

/// True for a tensor that is a file.
pub(crate) fn is_file_tensor(tensor: &str) -> bool {
    tensor.starts_with(FILE_PREFIX)
}

/// True for names that stay in their folder on every system.
fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

/// What a file is that cannot be safetensors; `None` where its header has to tell.
fn foreign(source: &dyn Source) -> Result<Option<String>, Error> {
    const HEAD: usize = 16;
    let mut head = vec![0; source.len().min(HEAD as u64) as usize];
    source.read_at(0, &mut head)?;
    if head.starts_with(b"GGUF") {
        return Ok(Some("is a GGUF file".to_owned()));
    }
    let length = head.first_chunk().map(|length| u64::from_le_bytes(*length));
    if head.get(8) == Some(&b'{') && length.is_some_and(|length| length <= MAX_HEADER_BYTES) {
        return Ok(None);
    }
    let known: [(&[u8], &str); 4] = [
        (b"PK\x03\x04", "is a ZIP archive, as PyTorch writes them"),
        (b"\x80", "is a Python pickle, as PyTorch wrote them"),
        (b"\x89HDF", "is an HDF5 file"),
        (b"\x1f\x8b", "is a gzip archive"),
    ];
    let found = match known.into_iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, found)) => found.to_owned(),
        None if head.is_empty() => "is an empty file".to_owned(),
        None => match std::str::from_utf8(&head) {
            Ok(text) if !text.contains(|c: char| c.is_control() && !c.is_whitespace()) => {
                format!("is a file that begins with {text:?}")
            }
            _ => format!("is a file that begins with the bytes {head:02x?}"),
        },
    };
    Ok(Some(found))
}
