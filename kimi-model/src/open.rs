//! How the files of a model are opened: as was asked for, or as suits their size and the memory.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use kimi_paging::{FileSource, ReadSettings, Readers, Source, memory_limit};

use crate::error::Error;
use crate::files::ModelFiles;
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
/// As [`Model::open`].
pub fn open(path: &Path, io: Io, ram_bytes: Option<u64>, map: MapFile) -> Result<Model, Error> {
    // What does not fit memory is read past the page cache, which would only be filled and emptied with every pass.
    let direct = match io {
        Io::Auto => {
            let ram = ram_bytes.or_else(|| memory_limit().bytes()).unwrap_or(u64::MAX);
            ModelFiles::open(path)?.tensor_bytes() > ram
        }
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
