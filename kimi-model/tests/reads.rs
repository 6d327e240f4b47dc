//! Reads that fail under a running model: the pass ends with an error, and engine and session go on when reading does.

mod support;

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kimi_model::{Engine, Error, Model, PassOptions, Session};
use kimi_paging::{Backend, Error as ReadError, FileSource, Source};
use kimi_testing::{kimi_k3_oracle, same_bits};
use support::{READERS, copy, engine, engine_of, feed, golden, ids, open_with};

fn prompt() -> Vec<u32> {
    ids(&golden(&kimi_k3_oracle())["input_ids"])[..8].to_vec()
}

/// The logits of the prompt where nothing fails.
fn expected() -> Vec<f32> {
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let mut session = engine.session().unwrap();
    feed(&mut engine, &mut session, &prompt(), 8).concat()
}

/// A pass that is expected to fail on a read.
fn failed_read(engine: &mut Engine, session: &mut Session, what: &str) -> ReadError {
    let error = engine.forward(session, &prompt(), PassOptions::default()).unwrap_err();
    assert_eq!(session.position(), 0, "{what}");
    match error {
        Error::Paging(error) => error,
        other => panic!("{what}: {other}"),
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Short,
    Io(ErrorKind),
}

/// Which reads fail: those that touch one of the ranges, as long as there are failures left.
#[derive(Debug)]
struct Faults {
    fault: Fault,
    ranges: Vec<(PathBuf, Range<u64>)>,
    left: AtomicUsize,
}

/// A file with faults.
#[derive(Debug)]
struct Faulty(FileSource, Arc<Faults>);

impl Source for Faulty {
    fn name(&self) -> &Path {
        self.0.name()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        let (path, end) = (self.name().to_path_buf(), offset + buf.len() as u64);
        let meant =
            |(file, range): &(PathBuf, Range<u64>)| *file == path && offset < range.end && range.start < end;
        let take = |left: usize| left.checked_sub(1);
        if self.1.ranges.iter().any(meant)
            && self.1.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
        {
            return Err(match self.1.fault {
                Fault::Io(kind) => ReadError::Io { operation: "read", path, source: kind.into() },
                Fault::Short => {
                    let expected = buf.len() as u64;
                    ReadError::ShortRead { path, offset, expected, found: expected / 2 }
                }
            });
        }
        self.0.read_at(offset, buf)
    }

    fn backend(&self) -> Backend {
        Backend::Pread
    }
}

/// The fixture, failing where a tensor whose name contains `part` is read.
fn faulty(part: &str, fault: Fault) -> (Arc<Model>, Arc<Faults>) {
    let healthy = support::open(&kimi_k3_oracle());
    let index = healthy.checkpoint().index();
    let tensors = index.iter().filter(|(name, _)| name.contains(part));
    let ranges = tensors.map(|(_, info)| {
        (index.source(info.source).name().to_path_buf(), info.offset..info.offset + info.bytes)
    });
    let faults = Arc::new(Faults { fault, ranges: ranges.collect(), left: AtomicUsize::new(0) });
    assert!(!faults.ranges.is_empty());
    let model = open_with(&kimi_k3_oracle(), |path| {
        Arc::new(Faulty(FileSource::open(path).unwrap(), Arc::clone(&faults)))
    });
    (model, faults)
}

/// Parts of the tape, of the experts, and the matrix that is read row by row.
const PARTS: [&str; 5] =
    ["layers.2.self_attn.o_proj", "kv_b_proj", ".experts.", "lm_head.weight", "embed_tokens.weight"];

#[test]
fn a_read_that_is_short_once_changes_nothing() {
    let expected = expected();
    for part in &PARTS[..4] {
        let (model, faults) = faulty(part, Fault::Short);
        let mut engine = engine_of(model, |_| {});
        let mut session = engine.session().unwrap();
        faults.left.store(1, Ordering::SeqCst);
        let logits = feed(&mut engine, &mut session, &prompt(), 8).concat();
        assert_eq!(faults.left.load(Ordering::SeqCst), 0, "{part} was read");
        assert!(same_bits(&logits, &expected), "{part}");
    }
}

#[test]
fn reads_that_keep_failing_are_an_error_that_engine_and_session_survive() {
    let expected = expected();
    for part in PARTS {
        for fault in [Fault::Short, Fault::Io(ErrorKind::TimedOut), Fault::Io(ErrorKind::PermissionDenied)] {
            let what = format!("{part}: {fault:?}");
            let (model, faults) = faulty(part, fault);
            let mut engine = engine_of(model, |_| {});
            let mut session = engine.session().unwrap();
            faults.left.store(usize::MAX, Ordering::SeqCst);
            if part == "lm_head.weight" {
                // Passes without logits leave it alone.
                engine.forward(&mut session, &prompt(), PassOptions::default()).unwrap();
                let mut options = PassOptions::default();
                options.logits = kimi_model::Logits::Last;
                let error = engine.forward(&mut session, &prompt(), options).unwrap_err();
                assert!(matches!(error, Error::Paging(_)), "{what}: {error}");
            } else {
                let error = failed_read(&mut engine, &mut session, &what);
                let file = match (&error, fault) {
                    (ReadError::ShortRead { path, .. }, Fault::Short) => path,
                    (ReadError::Io { path, source, .. }, Fault::Io(kind)) if source.kind() == kind => path,
                    _ => panic!("{what}: {error}"),
                };
                assert!(file.starts_with(kimi_k3_oracle()), "{what}: {error}");
            }
            faults.left.store(0, Ordering::SeqCst);
            let logits = feed(&mut engine, &mut session, &prompt(), 8).concat();
            assert!(same_bits(&logits, &expected), "{what}");
        }
    }
}

#[cfg(unix)] // Windows does not let a mapped file shrink
#[test]
fn shards_that_shrink_under_the_model_are_an_error_and_no_signal() {
    let expected = expected();
    let dir = tempfile::tempdir().unwrap();
    copy(&kimi_k3_oracle(), dir.path());
    let shards: Vec<(PathBuf, Vec<u8>)> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("model-"))
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    assert_eq!(shards.len(), 3);
    for (reader, open) in READERS {
        let mut engine = engine_of(open_with(dir.path(), open), |_| {});
        let mut session = engine.session().unwrap();
        for (path, bytes) in &shards {
            OpenOptions::new().write(true).open(path).unwrap().set_len(bytes.len() as u64 / 3).unwrap();
        }
        let error = failed_read(&mut engine, &mut session, reader);
        assert!(matches!(error, ReadError::ShortRead { .. }), "{reader}: {error}");
        for (path, bytes) in &shards {
            std::fs::write(path, bytes).unwrap();
        }
        let logits = feed(&mut engine, &mut session, &prompt(), 8).concat();
        assert!(same_bits(&logits, &expected), "{reader}");
    }
}
