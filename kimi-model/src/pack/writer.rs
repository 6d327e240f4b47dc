//! Safetensors files that exist under their name only when they are whole.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::packed::BLOCK;

/// What unfinished files are called, behind their name.
pub(crate) const PARTIAL: &str = ".partial";

/// Characters of a header entry beside the name, at most: type, four dimensions and two offsets of 20 digits.
const ENTRY_BYTES: usize = 256;

/// How the header of a single file begins: behind it comes the SHA-256 of the file, itself as zeros, in 64 digits.
pub(crate) const SINGLE: &str =
    "{\"__metadata__\":{\"format\":\"pt\",\"kimi_single_file\":\"1\",\"sha256\":\"";

/// Where that is.
pub(crate) const DIGEST: Range<u64> = {
    let start = 8 + SINGLE.len() as u64;
    start..start + 64
};

/// The header of a safetensors file under construction.
#[derive(Debug)]
pub(crate) struct Header {
    text: String,
    /// Bytes kept free for the header, its length included.
    reserve: usize,
    /// Where the last tensor ends.
    end: u64,
}

impl Header {
    /// A header with room for tensors of these names.
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let bytes: usize = names.map(|name| name.len() + ENTRY_BYTES).sum();
        let reserve = (bytes + ENTRY_BYTES).next_multiple_of(BLOCK);
        Self { text: "{\"__metadata__\":{\"format\":\"pt\"}".to_owned(), reserve, end: 0 }
    }

    /// The header of a single file, its digest zeros.
    pub(crate) fn single() -> Self {
        Self { text: format!("{SINGLE}{:064}\"}}", 0), reserve: 0, end: 0 }
    }

    /// The bytes of a header that is as large as its text, and those of the file.
    pub(crate) fn exact(mut self) -> (Vec<u8>, u64) {
        self.reserve = (8 + self.text.len() + 1).next_multiple_of(BLOCK);
        (self.bytes(), self.file_bytes())
    }

    /// Adds a tensor behind the last one.
    pub(crate) fn add(&mut self, name: &str, dtype: &str, shape: &[u64], bytes: u64) {
        let begin = self.end;
        self.end += bytes;
        let (name, end) = (serde_json::Value::from(name), self.end);
        write!(
            self.text,
            ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
        )
        .expect("a string takes any text");
    }

    /// The bytes in front of the data: length, text, and spaces up to what was kept free.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let room = self.reserve - 8;
        assert!(self.text.len() < room, "the names were counted");
        let mut bytes = (room as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(self.text.as_bytes());
        bytes.push(b'}');
        bytes.resize(self.reserve, b' ');
        bytes
    }

    /// Bytes of the file, once all tensors are added.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.reserve as u64 + self.end
    }
}

/// A safetensors file under construction: tensors are written one after another, the header at last.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    header: Header,
    /// Bytes of data so far.
    written: u64,
    /// Leave out blocks of zeros.
    holes: bool,
    /// Bytes at the end of what is written that were left out.
    skipped: u64,
}

impl TensorFile {
    /// Begins a file for tensors of these names.
    pub(crate) fn create<'a>(path: PathBuf, names: impl Iterator<Item = &'a str>) -> Result<Self, Error> {
        let partial = path
            .with_file_name(format!("{}{PARTIAL}", path.file_name().unwrap_or_default().to_string_lossy()));
        let file = File::create(&partial).map_err(io_error("create", &partial))?;
        let header = Header::new(names);
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.seek(SeekFrom::Start(header.reserve as u64)).map_err(io_error("write", &partial))?;
        Ok(Self { path, partial, file, header, written: 0, holes: false, skipped: 0 })
    }

    /// Leaves out blocks of zeros where the file system stores holes.
    pub(crate) fn with_holes(mut self) -> Self {
        self.holes = true;
        self
    }

    /// Begins a tensor of `bytes` bytes, which [`write`](Self::write) must bring.
    pub(crate) fn tensor(&mut self, name: &str, dtype: &str, shape: &[u64], bytes: u64) {
        assert_eq!(self.written, self.header.end, "the tensor before is whole");
        self.header.add(name, dtype, shape, bytes);
    }

    /// Appends bytes of the tensor that was begun last.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let at = self.written;
        self.written += bytes.len() as u64;
        assert!(self.written <= self.header.end, "a tensor holds what it was begun for");
        let written = if self.holes { self.write_around(at, bytes) } else { self.file.write_all(bytes) };
        written.map_err(io_error("write", &self.partial))
    }

    /// Writes bytes that belong at `at` block by block; blocks of zeros are skipped.
    fn write_around(&mut self, at: u64, mut bytes: &[u8]) -> io::Result<()> {
        let mut room = BLOCK - (at % BLOCK as u64) as usize;
        while !bytes.is_empty() {
            let (block, rest) = bytes.split_at(room.min(bytes.len()));
            if is_zero(block) {
                self.skipped += block.len() as u64;
            } else {
                if self.skipped > 0 {
                    let skipped = i64::try_from(self.skipped).map_err(io::Error::other)?;
                    self.file.seek(SeekFrom::Current(skipped))?;
                    self.skipped = 0;
                }
                self.file.write_all(block)?;
            }
            (bytes, room) = (rest, BLOCK);
        }
        Ok(())
    }

    /// Appends zeros.
    pub(crate) fn pad(&mut self, bytes: usize) -> Result<(), Error> {
        const ZEROS: [u8; BLOCK] = [0; BLOCK];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(BLOCK);
            self.write(&ZEROS[..part])?;
            left -= part;
        }
        Ok(())
    }

    /// Writes the header, puts everything on the drive and gives the file its name. Returns its size.
    pub(crate) fn finish(mut self) -> Result<u64, Error> {
        assert_eq!(self.written, self.header.end, "the last tensor is whole");
        let header = self.header.bytes();
        let done = (|| {
            self.file.flush()?;
            let file = self.file.get_mut();
            // What was left out at the end belongs to the file too.
            file.set_len(self.header.file_bytes())?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
            file.sync_all()
        })();
        done.map_err(io_error("write", &self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(io_error("rename", &self.partial))?;
        sync_dir(&self.path)?;
        Ok(self.header.file_bytes())
    }
}

/// True for zeros only.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Without a way out in the middle, which would keep the loop from being vectorised.
    bytes.iter().fold(0, |or, byte| or | byte) == 0
}

/// Writes a small file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let partial =
        path.with_file_name(format!("{}{PARTIAL}", path.file_name().unwrap_or_default().to_string_lossy()));
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(io_error("write", &partial))?;
    fs::rename(&partial, path).map_err(io_error("rename", &partial))?;
    sync_dir(path)
}

/// Puts the names of a folder on the drive; other systems than Unix cannot open one.
pub(crate) fn sync_dir(file: &Path) -> Result<(), Error> {
    if cfg!(unix) {
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", dir))?;
    }
    Ok(())
}

/// An error of the system about one path.
pub(crate) fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Paging(kimi_paging::Error::Io { operation, path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_holes_has_the_bytes_of_one_without() {
        let dir = tempfile::tempdir().unwrap();
        let mut pieces = vec![vec![0; 3 * BLOCK], vec![7; 10], vec![0; BLOCK - 10], vec![0; 5 * BLOCK]];
        pieces.extend([vec![1; BLOCK + 1], vec![0; 2 * BLOCK - 1], vec![0; 2 * BLOCK]]);
        let size = pieces.iter().map(Vec::len).sum::<usize>() as u64;
        let make = |name: &str, holes: bool| {
            let mut file = TensorFile::create(dir.path().join(name), ["a"].into_iter()).unwrap();
            file = if holes { file.with_holes() } else { file };
            file.tensor("a", "U8", &[size], size);
            pieces.iter().for_each(|piece| file.write(piece).unwrap());
            file.finish().unwrap();
            fs::read(dir.path().join(name)).unwrap()
        };
        assert!(make("holes", true) == make("plain", false));
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole_and_any_reader_opens_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let names = ["first \"name\"", "second"];
        let mut file = TensorFile::create(path.clone(), names.into_iter()).unwrap();
        file.tensor(names[0], "U8", &[2, 4096], 8192);
        file.write(&[1; 100]).unwrap();
        file.pad(8092).unwrap();
        file.tensor(names[1], "F32", &[], 4);
        file.write(&2.5f32.to_le_bytes()).unwrap();
        assert!(!path.exists());
        let size = file.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, size);
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor(names[0]).unwrap().shape(), [2, 4096]);
        let offset = tensors.tensor(names[0]).unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert!(offset.is_multiple_of(BLOCK));
        assert_eq!(tensors.tensor(names[1]).unwrap().data(), 2.5f32.to_le_bytes());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
