//! How the files of a model are opened: as was asked for, or as suits their size and the memory.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use kimi_paging::{FileSource, ReadSettings, Readers, Source, memory_limit};

use crate::error::Error;
use crate::model::Model;

/// Reads under way with io_uring, and their size (`docs/paging.md`).
const URING: ReadSettings = ReadSettings::uring(16, 1 << 20);

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::exhaustive_enums, reason = "a face that offers these offers all of them")]
pub enum Io {
    /// Direct for models larger than the memory, else pread.
    #[default]
    Auto,
    /// The files are mapped into memory. Nobody may change them meanwhile.
    Mmap,
    /// Positioned reads by a few threads, through the page cache.
    Pread,
    /// The same past the page cache, where the file system allows it.
    Direct,
    /// Direct reads by io_uring (Linux).
    Uring,
}

impl Io {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Mmap, Self::Pread, Self::Direct, Self::Uring];

    /// The name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mmap => "mmap",
            Self::Pread => "pread",
            Self::Direct => "direct",
            Self::Uring => "uring",
        }
    }

    /// Who reads, and how many reads are under way at once. [`Auto`](Self::Auto) is what nothing is known for;
    /// [`tuning::read_settings`](crate::tuning::read_settings) measures it.
    pub const fn read_settings(self) -> ReadSettings {
        match self {
            Self::Uring => URING,
            Self::Auto | Self::Mmap | Self::Pread | Self::Direct => {
                ReadSettings::threads(Readers::DEFAULT_THREADS)
            }
        }
    }
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of [`Io::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown way to read `{0}`; known: auto, mmap, pread, direct, uring")]
pub struct UnknownIo(String);

impl FromStr for Io {
    type Err = UnknownIo;

    fn from_str(name: &str) -> Result<Self, UnknownIo> {
        Self::ALL.into_iter().find(|io| io.name() == name).ok_or_else(|| UnknownIo(name.to_owned()))
    }
}

/// Maps a file. Mapping is only sound while nobody changes the file, so whoever offers [`Io::Mmap`] brings this function.
pub type MapFile = fn(&Path) -> Result<Arc<dyn Source>, kimi_paging::Error>;

/// Opens the model at `path`. `ram_bytes` is the memory that the process may take, by default what the machine or its control
/// group allows; only [`Io::Auto`] asks for it.
///
/// # Errors
/// [`Error::NoModel`] for a path that holds no model, and as [`Model::open`].
pub fn open(path: &Path, io: Io, ram_bytes: Option<u64>, map: MapFile) -> Result<Model, Error> {
    check_folder(path)?;
    // What does not fit memory is read past the page cache, which would only be filled and emptied with every pass.
    let direct = match io {
        Io::Auto => shard_bytes(path) > ram_bytes.or_else(|| memory_limit().bytes()).unwrap_or(u64::MAX),
        Io::Direct | Io::Uring => true,
        Io::Pread | Io::Mmap => false,
    };
    Model::open(path, &mut |file| {
        Ok(match io {
            Io::Mmap => map(file)?,
            _ if direct => Arc::new(FileSource::open_direct(file)?),
            _ => Arc::new(FileSource::open(file)?),
        })
    })
}

/// Checks that a path is a folder, and says what else is there.
///
/// # Errors
/// [`Error::NoModel`].
pub fn check_folder(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Ok(());
    }
    let found = match path.exists() {
        false => "does not exist",
        true if is_gguf(path) => "is a GGUF file",
        true => "is no folder",
    };
    Err(Error::NoModel { path: path.to_path_buf(), found: found.to_owned() })
}

fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    // Reading what is no regular file could wait for ever.
    let read = path.is_file() && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok();
    read && &magic == b"GGUF"
}

/// Bytes of all safetensors files in a folder. What cannot be read is reported when it is opened.
fn shard_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let shards =
        files.filter(|file| file.path().extension().is_some_and(|extension| extension == "safetensors"));
    // Through links, as the shards of a download cache are.
    shards.filter_map(|file| Some(std::fs::metadata(file.path()).ok()?.len())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_they_are_written() {
        for io in Io::ALL {
            assert_eq!(io.to_string().parse(), Ok(io));
        }
        let message = "fast".parse::<Io>().unwrap_err().to_string();
        assert!(Io::ALL.iter().all(|io| message.contains(io.name())), "{message}");
    }
}
