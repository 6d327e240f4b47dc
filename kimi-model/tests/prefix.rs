//! Prefixes that are not computed again: which are found, what they save, and what a broken cache does not break.

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use kimi_model::prefix::{Stored, Storing};
use kimi_model::{
    Engine, EngineOptions, Error, GenerateOptions, KvFormat, PrefixCache, Session, Transcript, resume,
};
use kimi_testing::{Seeded, kimi_k3_oracle};
use support::{engine, feed, open};

const GENEROUS: u64 = 1 << 30;

fn tokens(count: usize) -> Vec<u32> {
    let mut random = Seeded::new(29);
    (0..count).map(|_| random.below(512) as u32).collect()
}

fn read(engine: &mut Engine, tokens: &[u32]) -> Session {
    let mut session = engine.session().unwrap();
    feed(engine, &mut session, tokens, 8);
    session
}

fn store(cache: &PrefixCache, engine: &mut Engine, tokens: &[u32]) -> Stored {
    let session = read(engine, tokens);
    cache.store(engine, &session, tokens).unwrap()
}

/// All states below a folder.
fn states(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    all.sort();
    all
}

fn options() -> GenerateOptions {
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.ignore_eos, options.chunk) = (6, true, 4);
    let sampler = &mut options.sampler;
    (sampler.temperature, sampler.seed, sampler.repetition_penalty) = (1.0, 3, 1.3);
    options
}

/// Generates after a prompt, with as much of it from the cache as there is; returns the ids and the reused tokens.
fn run(
    engine: &mut Engine,
    cache: Option<&PrefixCache>,
    prompt: &[u32],
    options: &GenerateOptions,
) -> (Vec<u32>, usize) {
    let (mut session, mut transcript) = (engine.session().unwrap(), Transcript::new());
    transcript.give(prompt);
    let reused = cache.map_or(0, |cache| cache.restore(engine, &mut session, prompt).unwrap());
    let (never, mut deaf) = (AtomicBool::new(false), ());
    let mut storing = Storing::new(&mut deaf, cache, &prompt[..reused]);
    let means = (None, &never);
    let generation =
        resume(engine, (&mut session, &mut transcript), &[], options, means, None, &mut storing).unwrap();
    assert!(storing.finish().is_none());
    (generation.ids, reused)
}

#[test]
fn the_longest_stored_beginning_is_found_and_it_is_shorter_than_the_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(&dir.path().join("new/folder"), GENEROUS).unwrap();
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let tokens = tokens(20);
    assert_eq!(cache.longest(&engine, &tokens).unwrap(), None);
    let mut other = tokens[..9].to_vec();
    other[8] ^= 1;
    for stored in [&tokens[..4], &tokens[..12], &tokens[..7], &other] {
        assert_eq!(store(&cache, &mut engine, stored), Stored::New);
        assert_eq!(store(&cache, &mut engine, stored), Stored::Known);
    }
    for (length, expected) in
        [(20, Some(12)), (13, Some(12)), (12, Some(7)), (8, Some(7)), (5, Some(4)), (4, None)]
    {
        assert_eq!(cache.longest(&engine, &tokens[..length]).unwrap(), expected, "{length}");
    }
    assert_eq!(cache.lengths(&engine, &tokens).unwrap(), [12, 7, 4]);
    other.push(1);
    assert_eq!(cache.lengths(&engine, &other).unwrap(), [9, 7, 4]);
    assert_eq!(cache.longest(&engine, &[tokens[0] ^ 1, 2, 3, 4, 5, 6]).unwrap(), None);
    assert_eq!(cache.longest(&engine, &[]).unwrap(), None);

    // Other formats and models do not see them.
    let other = support::engine(&kimi_k3_oracle(), |options| options.kv = KvFormat::I8);
    assert_eq!(cache.longest(&other, &tokens).unwrap(), None);
    let other = support::engine(&support::family("kimi_linear"), |_| {});
    assert_eq!(cache.longest(&other, &tokens).unwrap(), None);
    // Other memory and threads do.
    let other = support::engine(&kimi_k3_oracle(), |options| {
        (options.threads, options.ram_bytes) = (Some(1), Some(1 << 30));
    });
    assert_eq!(cache.longest(&other, &tokens).unwrap(), Some(12));

    let session = read(&mut engine, &tokens[..3]);
    let error = cache.store(&engine, &session, &tokens[..4]).unwrap_err();
    assert!(matches!(error, Error::Transcript { tokens: 4, position: 3 }), "{error}");
}

/// An engine with the least memory that one can have.
fn smallest() -> Engine {
    let mut options = EngineOptions::default();
    (options.positions, options.columns) = (64, 8);
    // The floor moves with the process, which other tests share.
    for ram_bytes in (1u64 << 20..1 << 30).step_by(1 << 18) {
        options.ram_bytes = Some(ram_bytes);
        match Engine::new(open(&kimi_k3_oracle()), &options) {
            Err(Error::DoesNotFit { .. }) => {}
            engine => return engine.unwrap(),
        }
    }
    panic!("a gigabyte is enough");
}

#[test]
fn nothing_is_read_for_the_tokens_of_a_prefix_and_the_answer_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(dir.path(), GENEROUS).unwrap();
    let (mut engine, prompt) = (smallest(), tokens(40));
    let mut options = options();
    options.max_tokens = 1;
    let mut bytes = |cache: Option<&PrefixCache>, prompt: &[u32]| {
        let before = engine.bytes_read();
        let found = run(&mut engine, cache, prompt, &options);
        let after = engine.bytes_read();
        (found, after.trunk - before.trunk, after.other - before.other)
    };
    // What stays in memory is read with the first pass.
    bytes(None, &prompt[..4]);
    let (_, pass, rows) = bytes(None, &prompt[..4]);
    assert!(pass > 0 && rows > 0, "a pass reads from the trunk");
    let (expected, trunk, other) = bytes(None, &prompt);
    assert_eq!((trunk, other), (10 * pass, 10 * rows));

    let ((_, reused), trunk, _) = bytes(Some(&cache), &prompt[..36]);
    assert_eq!((reused, trunk), (0, 9 * pass));
    let ((ids, reused), trunk, other) = bytes(Some(&cache), &prompt);
    assert_eq!((ids, reused), (expected.0, 36));
    assert_eq!((trunk, other), (pass, rows), "one pass of 4 tokens is left of 10");
}

#[test]
fn checkpoints_are_stored_where_they_were_asked_for_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(dir.path(), GENEROUS).unwrap();
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let prompt = tokens(23);
    let mut options = options();
    let (expected, _) = run(&mut engine, None, &prompt, &options);
    options.checkpoints = vec![5, 9, 0, 23, 99];
    options.checkpoint_every = 10;
    assert_eq!(run(&mut engine, Some(&cache), &prompt, &options), (expected.clone(), 0));
    let mut longer = prompt.clone();
    longer.push(1);
    assert_eq!(cache.lengths(&engine, &longer).unwrap(), [23, 20, 10, 9, 5]);
    // The same prompt again goes on from the last checkpoint before its end.
    assert_eq!(run(&mut engine, Some(&cache), &prompt, &options), (expected, 20));
    // A prompt that leaves the first one behind position 12.
    let mut other = prompt;
    other[12] ^= 1;
    let plain = run(&mut engine, None, &other, &options).0;
    assert_eq!(run(&mut engine, Some(&cache), &other, &options), (plain, 10));
}

#[test]
fn broken_states_are_deleted_and_shorter_ones_used() {
    let dir = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(dir.path(), GENEROUS).unwrap();
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let prompt = tokens(20);
    let expected = run(&mut engine, None, &prompt, &options()).0;
    for length in [4, 8, 12, 16] {
        store(&cache, &mut engine, &prompt[..length]);
    }
    let path = |length: usize| {
        let begins =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{length}-"));
        states(dir.path()).into_iter().find(begins).unwrap()
    };
    let (longest, second, third) = (path(16), path(12), path(8));
    // Cut off, changed in the middle, and a state of other tokens under a wrong name.
    let bytes = fs::read(&longest).unwrap();
    fs::write(&longest, &bytes[..bytes.len() / 2]).unwrap();
    let mut bytes = fs::read(&second).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&second, bytes).unwrap();
    fs::copy(path(4), &third).unwrap();
    let used = engine.budget().used_bytes();
    let mut session = engine.session().unwrap();
    assert_eq!(cache.restore(&engine, &mut session, &prompt).unwrap(), 4);
    drop(session);
    assert_eq!(engine.budget().used_bytes(), used);
    assert!(!longest.exists() && !second.exists() && !third.exists());
    assert_eq!(run(&mut engine, Some(&cache), &prompt, &options()), (expected.clone(), 4));

    // Nothing at all is left of a cache of empty files, and the answer is the same.
    for path in states(dir.path()) {
        File::create(path).unwrap();
    }
    assert_eq!(run(&mut engine, Some(&cache), &prompt, &options()), (expected.clone(), 0));
    let mut longer = prompt;
    longer.push(1);
    // The one of the whole prompt was written anew.
    let mut session = engine.session().unwrap();
    assert_eq!(cache.restore(&engine, &mut session, &longer).unwrap(), 20);
}

#[test]
fn a_state_that_is_longer_than_the_context_stays() {
    let dir = tempfile::tempdir().unwrap();
    let cache = PrefixCache::open(dir.path(), GENEROUS).unwrap();
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let prompt = tokens(20);
    store(&cache, &mut engine, &prompt[..15]);
    store(&cache, &mut engine, &prompt[..6]);
    let small = support::engine(&kimi_k3_oracle(), |options| options.positions = 10);
    let mut session = small.session().unwrap();
    assert_eq!(cache.restore(&small, &mut session, &prompt).unwrap(), 6);
    assert_eq!(states(dir.path()).len(), 2);
}

#[test]
fn the_size_is_kept_by_deleting_what_was_used_longest_ago() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let prompt = tokens(20);
    let generous = PrefixCache::open(dir.path(), GENEROUS).unwrap();
    for length in [8, 9, 10] {
        store(&generous, &mut engine, &prompt[..length]);
    }
    let size = |paths: &[PathBuf]| paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>();
    let before = states(dir.path());
    let total = size(&before);
    for path in &before {
        let old = SystemTime::now() - Duration::from_secs(10_000);
        File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
    }
    // The one of 8 tokens saves the least per byte, but is used now.
    let mut session = engine.session().unwrap();
    assert_eq!(generous.restore(&engine, &mut session, &prompt[..9]).unwrap(), 8);
    let tight = PrefixCache::open(dir.path(), total).unwrap();
    assert_eq!(store(&tight, &mut engine, &prompt[..7]), Stored::New);
    assert_eq!(tight.lengths(&engine, &prompt).unwrap(), [10, 8, 7]);
    assert!(size(&states(dir.path())) <= total);

    let tiny = PrefixCache::open(dir.path(), 1000).unwrap();
    assert_eq!(store(&tiny, &mut engine, &prompt[..5]), Stored::TooLarge);
    assert_eq!(states(dir.path()).len(), 3, "nothing is deleted for what does not fit anyway");
}

#[test]
fn several_may_store_and_restore_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = tokens(20);
    let expected = run(&mut engine(&kimi_k3_oracle(), |_| {}), None, &prompt, &options()).0;
    // Room for about three states, so that they are deleted while others are read.
    let one = {
        let mut engine = engine(&kimi_k3_oracle(), |_| {});
        let session = read(&mut engine, &prompt);
        let mut transcript = Transcript::new();
        transcript.give(&prompt);
        engine.save_session(&session, &transcript, &dir.path().join("one")).unwrap()
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (dir, prompt, expected) = (dir.path(), &prompt, &expected);
            scope.spawn(move || {
                let mut engine = engine(&kimi_k3_oracle(), |_| {});
                let cache = PrefixCache::open(dir, 3 * one).unwrap();
                let mut options = options();
                options.checkpoint_every = 3 + thread;
                for _ in 0..6 {
                    assert_eq!(&run(&mut engine, Some(&cache), prompt, &options).0, expected);
                }
            });
        }
    });
    fs::remove_file(dir.path().join("one")).unwrap();
    // Whole files only, all of which load.
    let engine = engine(&kimi_k3_oracle(), |_| {});
    assert!(!states(dir.path()).is_empty());
    for path in states(dir.path()) {
        assert!(path.extension().is_some_and(|extension| extension == "state"), "{}", path.display());
        engine.load_session(&path).unwrap();
    }
}
