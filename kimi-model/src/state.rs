//! Sessions in files: saved, and read back by another process.
//!
//! `docs/formats.md` describes the file byte by byte, and what its fingerprint covers.

mod header;
mod problem;
mod read;
mod write;

use std::fs::File;
use std::path::Path;

pub use header::{HEADER_BYTES, Header, MAGIC, VERSION};
pub use problem::{StateError, StateProblem};

use crate::engine::Engine;
use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::pack::writer::io_error;
use crate::session::Session;
use crate::transcript::Transcript;
use header::Sizes;

/// Bytes converted at once on the way from or to a file.
const CHUNK_BYTES: usize = 1 << 18;

impl Header {
    /// Reads the header of a file, without looking at the rest.
    ///
    /// # Errors
    /// [`Error::State`] for a file that does not begin as a saved session, and errors of the system.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(read::open(path)?.1)
    }
}

impl Engine {
    /// Saves a session and its transcript; returns the bytes of the file.
    ///
    /// The file gets its name when it is on the drive as a whole; until then one of that name stays as it was. Only its owner can
    /// read it, as it holds the conversation.
    ///
    /// # Errors
    /// [`Error::Transcript`] when the session has read more tokens than the transcript has, and errors of the system.
    ///
    /// # Panics
    /// If the session is of an engine for another model or with another format of latents.
    pub fn save_session(
        &self,
        session: &Session,
        transcript: &Transcript,
        path: &Path,
    ) -> Result<u64, Error> {
        let header = self.state_header(session.position(), transcript)?;
        write::write(&header, session, transcript, path)
    }

    /// A new session with what a file holds, and its transcript.
    ///
    /// Threads, instruction set, memory limit and readers may be others than those that it was saved with.
    ///
    /// # Errors
    /// [`Error::State`] for a file that is no saved session, is damaged, or belongs to another model, format of latents, tier
    /// of arithmetic or longer context; [`Error::Paging`] when the budget has no room for another session; errors of the system.
    pub fn load_session(&self, path: &Path) -> Result<(Session, Transcript), Error> {
        // Before memory is taken for it.
        self.open_state(path)?;
        let mut session = self.session()?;
        let transcript = self.fill_session(&mut session, path)?;
        Ok((session, transcript))
    }

    /// Fills an empty session from a file; it is empty again when that fails.
    pub(crate) fn fill_session(&self, session: &mut Session, path: &Path) -> Result<Transcript, Error> {
        assert_eq!(session.position(), 0, "only an empty session is filled");
        let (file, header) = self.open_state(path)?;
        let vocab_size = self.model.config.vocab_size;
        let read = read::read(file, &header, session, vocab_size, path);
        if read.is_err() {
            session.clear();
        }
        read
    }

    /// Opens a file that is for this engine, by its header, and has the length that the header asks for.
    pub(crate) fn open_state(&self, path: &Path) -> Result<(File, Header), Error> {
        let (file, header) = read::open(path)?;
        self.check_state(&header, path)?;
        let found = file.metadata().map_err(io_error("read", path))?.len();
        let expected = header.file_bytes().expect("checked when the header was read");
        if found != expected {
            return Err(StateProblem::Length { expected, found }.of(path));
        }
        Ok((file, header))
    }

    /// Bytes of a file for a session at `position` with as many tokens.
    pub(crate) fn state_bytes(&self, position: usize) -> u64 {
        let header = Header {
            kv: self.session_sizes().kv_format,
            arith: self.arith(),
            fingerprint: Fingerprint([0; 32]),
            position: position as u64,
            tokens: position as u64,
            random: None,
            sizes: self.state_sizes(),
        };
        header.file_bytes().unwrap_or(u64::MAX)
    }

    /// The fingerprint of the model as this engine runs it.
    pub(crate) fn fingerprint(&self) -> Result<Fingerprint, Error> {
        Fingerprint::new(&self.model, self.session_sizes().kv_format, self.arith())
    }

    fn state_header(&self, position: usize, transcript: &Transcript) -> Result<Header, Error> {
        transcript.pending(position)?;
        Ok(Header {
            kv: self.session_sizes().kv_format,
            arith: self.arith(),
            fingerprint: self.fingerprint()?,
            position: position as u64,
            tokens: transcript.tokens().len() as u64,
            random: transcript.random(),
            sizes: self.state_sizes(),
        })
    }

    fn state_sizes(&self) -> Sizes {
        let sizes = self.session_sizes();
        Sizes {
            kda_layers: sizes.kda_layers as u32,
            mla_layers: sizes.mla_layers as u32,
            state: sizes.state as u64,
            tails: (sizes.tail_columns * sizes.inputs) as u64,
            row_bytes: sizes.kv_format.row_bytes(sizes.kv_row) as u64,
        }
    }

    /// Whether a file is for this engine, before anything is allocated for it.
    fn check_state(&self, header: &Header, path: &Path) -> Result<(), Error> {
        let (kv, arith, capacity) =
            (self.session_sizes().kv_format, self.arith(), self.session_sizes().positions);
        let problem = if header.kv != kv {
            StateProblem::Kv { saved: header.kv, running: kv }
        } else if header.arith != arith {
            StateProblem::Arith { saved: header.arith, running: arith }
        } else if header.fingerprint != self.fingerprint()? {
            StateProblem::Model
        } else if header.sizes != self.state_sizes() {
            StateProblem::Damaged { part: "header: sizes of another model".to_owned() }
        } else if header.position > capacity as u64 || header.tokens > capacity as u64 + 1 {
            // The last generated token needs no place before it is read.
            StateProblem::Context { tokens: header.tokens, capacity }
        } else {
            return Ok(());
        };
        Err(problem.of(path))
    }
}
