//! Sessions of token sequences that come again: a folder of states, each found by the tokens it has read.
//!
//! `FOLDER/<fingerprint>/<tokens>-<hash>.state`: the fingerprint is that of the model as it is run, the hash a SHA-256 of the tokens,
//! both cut to 128 bits. Several processes may use one folder: a state gets its name when it is whole, and is checked when it is read.

mod evict;
mod storing;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

pub use storing::Storing;

use crate::engine::Engine;
use crate::error::Error;
use crate::fingerprint::hex;
use crate::pack::writer::io_error;
use crate::session::Session;
use crate::state::StateProblem;
use crate::transcript::Transcript;

/// How the name of a state ends.
const EXTENSION: &str = ".state";

/// Hexadecimal digits of a fingerprint or hash in a name.
const DIGITS: usize = 32;

/// A folder of sessions, found by the tokens that they have read.
#[derive(Debug, Clone)]
pub struct PrefixCache {
    dir: PathBuf,
    limit_bytes: u64,
}

/// What became of a session that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stored {
    /// It was written.
    New,
    /// It was there already, and counts as used now.
    Known,
    /// It is larger than the cache may be.
    TooLarge,
}

impl PrefixCache {
    /// The size of a cache when nobody says another.
    pub const DEFAULT_LIMIT_BYTES: u64 = 8_000_000_000;

    /// The cache in a folder, which is made if it does not exist.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(dir: &Path, limit_bytes: u64) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        Ok(Self { dir: dir.to_path_buf(), limit_bytes })
    }

    /// The lengths of the stored beginnings of `tokens`, the longest first. They are shorter than `tokens`: the last token is always
    /// computed, as it gives the logits.
    ///
    /// # Errors
    /// Those of the system.
    pub fn lengths(&self, engine: &Engine, tokens: &[u32]) -> Result<Vec<usize>, Error> {
        let folder = self.folder(engine)?;
        let mut names = BTreeSet::new();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("list", &folder)(error)),
        };
        for entry in entries {
            let name = entry.map_err(io_error("list", &folder))?.file_name();
            if let Some((length, hash)) = name.to_str().and_then(parse_name)
                && length < tokens.len()
            {
                names.insert((length, hash.to_owned()));
            }
        }
        let (mut hash, mut hashed, mut found) = (Sha256::new(), 0, Vec::new());
        // Ascending, so that every token is hashed once.
        for (length, name) in names {
            add(&mut hash, &tokens[hashed..length]);
            hashed = length;
            if name == digits(&hash.clone().finalize()) {
                found.push(length);
            }
        }
        found.reverse();
        Ok(found)
    }

    /// The longest stored beginning of `tokens`; see [`lengths`](Self::lengths).
    ///
    /// # Errors
    /// Those of the system.
    pub fn longest(&self, engine: &Engine, tokens: &[u32]) -> Result<Option<usize>, Error> {
        Ok(self.lengths(engine, tokens)?.first().copied())
    }

    /// Fills an empty session with the longest stored beginning of `tokens` and returns how many tokens it has read: 0 when nothing
    /// fits. A state that is damaged is deleted, one that cannot be read is passed over.
    ///
    /// # Errors
    /// When the folder or the model cannot be read.
    ///
    /// # Panics
    /// If the session is not empty.
    pub fn restore(&self, engine: &Engine, session: &mut Session, tokens: &[u32]) -> Result<usize, Error> {
        for length in self.lengths(engine, tokens)? {
            let path = self.path(engine, &tokens[..length])?;
            match engine.fill_session(session, &path) {
                Ok(transcript)
                    if transcript.tokens() == &tokens[..length] && session.position() == length =>
                {
                    touch(&path);
                    return Ok(length);
                }
                // Not what its name says.
                Ok(_) => {
                    session.clear();
                    remove(&path);
                }
                Err(Error::State(error)) if !matches!(error.problem, StateProblem::Context { .. }) => {
                    remove(&path);
                }
                // Too long for this session, gone meanwhile, not readable, or without room in memory: a shorter one may do.
                Err(Error::State(_) | Error::ContextFull { .. } | Error::Paging(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(0)
    }

    /// Stores a session that has read `tokens`, and makes room for it.
    ///
    /// # Errors
    /// [`Error::Transcript`] when it has read another number of tokens; errors of the system.
    pub fn store(&self, engine: &Engine, session: &Session, tokens: &[u32]) -> Result<Stored, Error> {
        if session.position() != tokens.len() {
            return Err(Error::Transcript { tokens: tokens.len(), position: session.position() });
        }
        let path = self.path(engine, tokens)?;
        // What is not whole is written anew.
        if engine.open_state(&path).is_ok() {
            touch(&path);
            return Ok(Stored::Known);
        }
        let bytes = engine.state_bytes(tokens.len());
        if bytes > self.limit_bytes {
            return Ok(Stored::TooLarge);
        }
        evict::make_room(&self.dir, self.limit_bytes - bytes, SystemTime::now())?;
        let folder = self.folder(engine)?;
        fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
        let mut transcript = Transcript::new();
        transcript.give(tokens);
        engine.save_session(session, &transcript, &path)?;
        Ok(Stored::New)
    }

    fn folder(&self, engine: &Engine) -> Result<PathBuf, Error> {
        Ok(self.dir.join(digits(&engine.fingerprint()?.0)))
    }

    fn path(&self, engine: &Engine, tokens: &[u32]) -> Result<PathBuf, Error> {
        let mut hash = Sha256::new();
        add(&mut hash, tokens);
        let name = format!("{}-{}{EXTENSION}", tokens.len(), digits(&hash.finalize()));
        Ok(self.folder(engine)?.join(name))
    }
}

fn add(hash: &mut Sha256, tokens: &[u32]) {
    tokens.iter().for_each(|id| hash.update(id.to_le_bytes()));
}

fn digits(hash: &[u8]) -> String {
    hex(&hash[..DIGITS / 2])
}

fn is_digits(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The number of tokens and the hash in the name of a state.
fn parse_name(name: &str) -> Option<(usize, &str)> {
    let (length, hash) = name.strip_suffix(EXTENSION)?.split_once('-')?;
    let number = length.parse().ok().filter(|&number: &usize| number > 0 && number.to_string() == length)?;
    is_digits(hash).then_some((number, hash))
}

/// Marks a state as used now. One that cannot be marked is only evicted earlier.
fn touch(path: &Path) {
    let marked = File::options().append(true).open(path);
    let _ = marked.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Deletes a state; one that is gone already, or that may not be deleted, is no reason to stop.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}
