//! Sessions in files: what comes back, and what is refused.

mod support;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use kimi_kernels::Isa;
use kimi_model::config::AttentionKind;
use kimi_model::state::{HEADER_BYTES, Header, VERSION};
use kimi_model::{
    Arith, Engine, EngineOptions, Error, FinishReason, GenerateOptions, Generation, KvFormat, Listener,
    Observer, Session, StateProblem, Transcript, generate, resume,
};
use kimi_testing::{Seeded, kimi_k3_oracle, same_bits};
use support::{engine, engine_of, feed, open_with};
use twox_hash::XxHash3_64;

/// Tokens that fill more than one block of latents.
fn tokens(count: usize) -> Vec<u32> {
    let mut random = Seeded::new(11);
    (0..count).map(|_| random.below(512) as u32).collect()
}

fn given(tokens: &[u32]) -> Transcript {
    let mut transcript = Transcript::new();
    transcript.give(tokens);
    transcript
}

/// Saves a session that has read `tokens`, and returns it.
fn save(engine: &mut Engine, tokens: &[u32], path: &Path) -> Session {
    let mut session = engine.session().unwrap();
    feed(engine, &mut session, tokens, 7);
    let bytes = engine.save_session(&session, &given(tokens), path).unwrap();
    assert_eq!(std::fs::metadata(path).unwrap().len(), bytes);
    session
}

fn problem(loaded: Result<(Session, Transcript), Error>, path: &Path) -> StateProblem {
    match loaded.map(|_| ()) {
        Err(Error::State(error)) => {
            assert_eq!(error.path, path);
            assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
            error.problem
        }
        other => panic!("{other:?}"),
    }
}

/// Where each part of a file ends.
fn ends(engine: &Engine, kv: KvFormat, position: usize, tokens: usize) -> Vec<usize> {
    let config = engine.model().config();
    let kda = config.kda.as_ref().unwrap();
    let channels = kda.channels();
    let state = channels * kda.head_dim + 3 * (kda.short_conv_kernel_size - 1) * channels;
    let row = kv.row_bytes(config.mla.kv_lora_rank + config.mla.qk_rope_head_dim);
    let layers = |kind| config.layers.iter().filter(|layer| layer.attention == kind).count();
    let mut ends = vec![HEADER_BYTES, HEADER_BYTES + 4 * tokens + tokens.div_ceil(8) + 8];
    for part in std::iter::repeat_n(4 * state + 8, layers(AttentionKind::Kda))
        .chain(std::iter::repeat_n(position * row + 8, layers(AttentionKind::Mla)))
    {
        ends.push(ends.last().unwrap() + part);
    }
    ends
}

#[test]
fn a_loaded_session_gives_the_same_bits_in_every_format_however_it_is_run() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = tokens(100);
    for kv in KvFormat::ALL {
        // At the beginning, inside a block, at its end, and behind it.
        for position in [0, 1, 63, 64, 71] {
            let path = dir.path().join(format!("{kv}-{position}"));
            let mut saving = engine(&kimi_k3_oracle(), |options| options.kv = kv);
            let mut session = save(&mut saving, &tokens[..position], &path);
            let expected = feed(&mut saving, &mut session, &tokens[position..], 9).concat();
            let whole = ends(&saving, kv, position, position);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), *whole.last().unwrap() as u64);

            let mut others: Vec<Engine> = support::READERS
                .iter()
                .map(|(_, open)| {
                    engine_of(open_with(&kimi_k3_oracle(), open), |options| {
                        (options.kv, options.threads) = (kv, Some(1));
                        options.columns = 5;
                        options.ram_bytes = Some(1 << 30);
                    })
                })
                .collect();
            others.push(engine(&kimi_k3_oracle(), |options| {
                (options.kv, options.isa, options.positions) = (kv, Some(Isa::Scalar), 100);
            }));
            for (i, loading) in others.iter_mut().enumerate() {
                let (mut session, transcript) = loading.load_session(&path).unwrap();
                assert_eq!((session.position(), &transcript), (position, &given(&tokens[..position])));
                let chunk = [1, 5, 3, 4][i];
                let found = feed(loading, &mut session, &tokens[position..], chunk).concat();
                assert!(same_bits(&found, &expected), "{kv} at {position}, {i}");
            }
        }
    }
}

/// Asks for the end when so many passes have been made, or tokens chosen.
struct StopAfter<'a> {
    passes: usize,
    tokens: usize,
    cancel: &'a AtomicBool,
}

impl Observer for StopAfter<'_> {
    fn layer(&mut self, layer: usize, _layers: usize, _sums: &[f32]) {
        if layer == 0 {
            self.cancel.store(self.passes == 0 || self.tokens == 0, Ordering::SeqCst);
            self.passes = self.passes.saturating_sub(1);
        }
    }
}

impl Listener for StopAfter<'_> {
    fn token(&mut self, _id: u32, _text: &str) {
        self.tokens -= 1;
    }
}

fn sampling() -> GenerateOptions {
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.ignore_eos, options.chunk) = (24, true, 4);
    let sampler = &mut options.sampler;
    (sampler.temperature, sampler.top_p, sampler.seed) = (1.1, 0.97, 17);
    (sampler.repetition_penalty, sampler.frequency_penalty) = (1.2, 0.3);
    (sampler.presence_penalty, sampler.penalty_window) = (0.2, 20);
    options
}

fn go_on(
    engine: &mut Engine,
    (session, transcript): (&mut Session, &mut Transcript),
    prompt: &[u32],
    options: &GenerateOptions,
) -> Result<Generation, Error> {
    let never = AtomicBool::new(false);
    resume(engine, (session, transcript), prompt, options, (None, &never), None, &mut ())
}

#[test]
fn a_generation_in_parts_is_that_of_one_that_was_never_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let (path, prompt) = (dir.path().join("state"), tokens(14));
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let never = AtomicBool::new(false);
    let mut whole = engine.session().unwrap();
    let expected =
        generate(&mut engine, &mut whole, &prompt, &sampling(), (None, &never), None, &mut ()).unwrap().ids;
    let mut expected_tokens = prompt.clone();
    expected_tokens.extend(&expected);

    // Cut by the number of tokens.
    for first in [1, 2, 7, 23] {
        let (mut session, mut transcript) = (engine.session().unwrap(), Transcript::new());
        let mut options = sampling();
        options.max_tokens = first;
        let begun = go_on(&mut engine, (&mut session, &mut transcript), &prompt, &options).unwrap();
        assert_eq!(begun.ids, expected[..first]);
        assert_eq!(transcript.pending(session.position()).unwrap(), &begun.ids[first - 1..]);
        engine.save_session(&session, &transcript, &path).unwrap();
        drop(session);
        let (mut session, mut loaded) = engine.load_session(&path).unwrap();
        assert_eq!(loaded, transcript);
        options.max_tokens = expected.len() - first;
        let rest = go_on(&mut engine, (&mut session, &mut loaded), &[], &options).unwrap();
        assert_eq!(rest.ids, expected[first..], "cut after {first}");
        assert_eq!(loaded.tokens(), expected_tokens);
        assert!(loaded.sampled().iter().enumerate().all(|(i, &sampled)| sampled == (i >= prompt.len())));
    }

    // Cut by a cancellation: in the first pass, within the prompt, between and within tokens.
    for (passes, generated) in [(0, 99), (1, 99), (3, 99), (4, 99), (9, 99), (99, 5)] {
        let (mut session, mut transcript) = (engine.session().unwrap(), Transcript::new());
        let cancel = AtomicBool::new(false);
        let mut stop = StopAfter { passes, tokens: generated, cancel: &cancel };
        let begun = resume(
            &mut engine,
            (&mut session, &mut transcript),
            &prompt,
            &sampling(),
            (None, &cancel),
            None,
            &mut stop,
        )
        .unwrap();
        assert_eq!(begun.finish, FinishReason::Cancelled);
        assert_eq!(transcript.tokens(), &expected_tokens[..prompt.len() + begun.ids.len()]);
        engine.save_session(&session, &transcript, &path).unwrap();
        let (mut session, mut transcript) = engine.load_session(&path).unwrap();
        let mut options = sampling();
        options.max_tokens -= begun.ids.len();
        go_on(&mut engine, (&mut session, &mut transcript), &[], &options).unwrap();
        assert_eq!(transcript.tokens(), expected_tokens, "cancelled after {passes}, {generated}");
    }
}

#[test]
fn what_cannot_go_on_is_refused() {
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let (mut session, mut transcript) = (engine.session().unwrap(), Transcript::new());
    let mut options = GenerateOptions::default();
    options.max_tokens = 0;
    let error = go_on(&mut engine, (&mut session, &mut transcript), &[], &options).unwrap_err();
    assert!(matches!(error, Error::EmptyPrompt));
    go_on(&mut engine, (&mut session, &mut transcript), &[1, 2, 3], &options).unwrap();
    // Nothing is pending.
    let error = go_on(&mut engine, (&mut session, &mut transcript), &[], &options).unwrap_err();
    assert!(matches!(error, Error::EmptyPrompt));
    let mut other = given(&[1, 2]);
    let error = go_on(&mut engine, (&mut session, &mut other), &[4], &options).unwrap_err();
    assert_eq!(error.to_string(), "the session has read 3 tokens, its transcript has 2");
    let error = engine.save_session(&session, &other, Path::new("unused")).unwrap_err();
    assert!(matches!(error, Error::Transcript { tokens: 2, position: 3 }));

    // Another seed begins another stream, the same one goes on.
    let random = |seed, transcript: &Transcript| {
        let mut options = sampling();
        (options.sampler.seed, options.max_tokens) = (seed, 0);
        let mut engine = support::engine(&kimi_k3_oracle(), |_| {});
        let (mut session, mut transcript) = (engine.session().unwrap(), transcript.clone());
        go_on(&mut engine, (&mut session, &mut transcript), &[1], &options).unwrap();
        transcript.random().unwrap()
    };
    let mut drawn = Transcript::new();
    let mut options = sampling();
    options.max_tokens = 2;
    let mut session = engine.session().unwrap();
    go_on(&mut engine, (&mut session, &mut drawn), &[1], &options).unwrap();
    assert_ne!(drawn.random().unwrap().state, 17);
    assert_eq!(random(17, &drawn), drawn.random().unwrap());
    assert_eq!((random(5, &drawn).seed, random(5, &drawn).state), (5, 5));
}

#[test]
fn damaged_files_are_refused_and_nothing_else_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut engine = engine(&kimi_k3_oracle(), |options| options.kv = KvFormat::I8);
    let tokens = tokens(5);
    let mut session = save(&mut engine, &tokens[..3], &path);
    let good = std::fs::read(&path).unwrap();
    let ends = ends(&engine, KvFormat::I8, 3, 3);
    assert_eq!(*ends.last().unwrap(), good.len());
    let used = engine.budget().used_bytes();

    let mut lengths: Vec<usize> =
        ends[..ends.len() - 1].iter().flat_map(|&end| [end - 1, end, end + 1]).collect();
    let mut random = Seeded::new(3);
    lengths.extend((0..40).map(|_| random.below(good.len())));
    lengths.extend([0, 1, 7, 8, good.len() - 1]);
    for length in lengths {
        std::fs::write(&path, &good[..length]).unwrap();
        let found = problem(engine.load_session(&path), &path);
        if length < HEADER_BYTES {
            assert_eq!(found, StateProblem::NotAState);
        } else {
            assert_eq!(found, StateProblem::Length { expected: good.len() as u64, found: length as u64 });
        }
    }
    std::fs::write(&path, [&good[..], &[0]].concat()).unwrap();
    assert!(matches!(problem(engine.load_session(&path), &path), StateProblem::Length { .. }));

    // The header and the tokens byte by byte, then a sample, and what lies around the ends of all parts.
    let mut places: Vec<usize> = (0..ends[1]).collect();
    places.extend((ends[1]..good.len()).step_by(1009));
    places.extend(ends[1..].iter().flat_map(|&end| [end - 9, end - 8, end - 1]));
    places.extend(ends[1..ends.len() - 1].iter().copied());
    for at in places {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << random.below(8);
        std::fs::write(&path, &bytes).unwrap();
        let found = problem(engine.load_session(&path), &path);
        let part = ends.iter().position(|&end| at < end).unwrap();
        match (part, &found) {
            (0, StateProblem::NotAState) => assert!(at < 8),
            (0, StateProblem::Version { .. }) => assert!((8..12).contains(&at)),
            (_, StateProblem::Damaged { part: named }) => {
                let layers = ends.len() - 2;
                let expected = match part {
                    0 => "header",
                    1 => "tokens",
                    _ if named.starts_with("latents") => "latents",
                    _ => "recurrent state",
                };
                assert!(named.starts_with(expected) && layers > 2, "{at}: {named}");
            }
            other => panic!("{at}: {other:?}"),
        }
        assert_eq!(engine.budget().used_bytes(), used, "the refused session is gone");
    }

    // Two parts of the same size in each other's place.
    let mut bytes = good.clone();
    let (first, second) = (ends[1]..ends[2], ends[2]..ends[3]);
    assert_eq!(first.len(), second.len());
    bytes[first.clone()].copy_from_slice(&good[second.clone()]);
    bytes[second].copy_from_slice(&good[first]);
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(problem(engine.load_session(&path), &path), StateProblem::Damaged { .. }));

    // The session of before is as it was, and the good file still loads.
    let expected = {
        let mut plain = engine.session().unwrap();
        feed(&mut engine, &mut plain, &tokens, 5)[3..].concat()
    };
    assert!(same_bits(&feed(&mut engine, &mut session, &tokens[3..], 1).concat(), &expected));
    std::fs::write(&path, &good).unwrap();
    let (mut loaded, _) = engine.load_session(&path).unwrap();
    assert!(same_bits(&feed(&mut engine, &mut loaded, &tokens[3..], 2).concat(), &expected));
}

/// Writes a changed header with a right checksum in front of the rest of a file.
fn write_changed(path: &Path, good: &[u8], change: impl FnOnce(&mut [u8])) {
    let mut bytes = good.to_vec();
    change(&mut bytes[..HEADER_BYTES - 8]);
    let sum = XxHash3_64::oneshot(&bytes[..HEADER_BYTES - 8]);
    bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn sizes_are_held_against_the_model_and_the_file_before_anything_is_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    save(&mut engine, &tokens(3), &path);
    let good = std::fs::read(&path).unwrap();
    let used = engine.budget().used_bytes();
    let peak = engine.budget().peak_bytes();
    let refused = |change: &dyn Fn(&mut [u8])| {
        write_changed(&path, &good, change);
        let found = problem(engine.load_session(&path), &path);
        assert_eq!((engine.budget().used_bytes(), engine.budget().peak_bytes()), (used, peak), "{found}");
        found
    };
    let put = |at: usize, value: u64| {
        move |bytes: &mut [u8]| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes())
    };
    assert_eq!(
        refused(&|bytes| bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes())),
        StateProblem::Version { found: VERSION + 1, known: VERSION }
    );
    for value in [u64::MAX, u64::MAX / 4, 1 << 60] {
        for at in [48, 56, 72, 80, 88] {
            assert!(
                matches!(
                    refused(&put(at, value)),
                    StateProblem::Damaged { .. } | StateProblem::Context { .. }
                ),
                "{value} at {at}"
            );
        }
    }
    // Sizes that a file could have, of another model.
    for at in [64, 72, 80, 88] {
        assert!(matches!(refused(&put(at, 7)), StateProblem::Damaged { .. }), "{at}");
    }
    // More tokens than the file holds, and than the context has room for.
    assert!(matches!(refused(&put(56, 100)), StateProblem::Length { .. }));
    assert_eq!(refused(&put(56, 130)), StateProblem::Context { tokens: 130, capacity: 128 });
}

#[test]
fn files_of_other_models_formats_and_contexts_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let tokens = tokens(20);
    let mut first = engine(&kimi_k3_oracle(), |_| {});
    save(&mut first, &tokens, &path);

    let refused = |engine: Engine| problem(engine.load_session(&path), &path);
    let with = |change: fn(&mut EngineOptions)| engine(&kimi_k3_oracle(), change);
    let found = refused(with(|options| options.kv = KvFormat::Bf16));
    assert_eq!(found, StateProblem::Kv { saved: KvFormat::F32, running: KvFormat::Bf16 });
    assert_eq!(found.to_string(), "was saved with latents in f32, this run has bf16; use `--kv f32`");
    let found = refused(with(|options| options.arith = Arith::Fast));
    assert_eq!(found, StateProblem::Arith { saved: Arith::Exact, running: Arith::Fast });
    let found = refused(with(|options| options.positions = 18));
    assert_eq!(found, StateProblem::Context { tokens: 20, capacity: 18 });
    assert_eq!(refused(engine(&support::family("kimi_linear"), |_| {})), StateProblem::Model);

    // The same shapes, one byte of a big matrix, one of a norm.
    let changed = |name: &str, tensor: &str| -> PathBuf {
        let to = dir.path().join(name);
        support::copy(&kimi_k3_oracle(), &to);
        change_byte(&to, tensor);
        to
    };
    for (name, tensor) in [("embedding", "embed_tokens.weight"), ("norm", "layers.2.input_layernorm.weight")]
    {
        assert_eq!(refused(engine(&changed(name, tensor), |_| {})), StateProblem::Model, "{name}");
    }
    // Fields that change no number make no other model.
    let same = dir.path().join("same");
    support::copy(&kimi_k3_oracle(), &same);
    let config = std::fs::read_to_string(same.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["a_field_of_later"] = 3.into();
    std::fs::write(same.join("config.json"), config.to_string()).unwrap();
    engine(&same, |_| {}).load_session(&path).unwrap();

    std::fs::write(&path, b"{}").unwrap();
    assert_eq!(refused(with(|_| {})), StateProblem::NotAState);
    let nowhere = dir.path().join("nowhere");
    let error = first.load_session(&nowhere).unwrap_err();
    assert!(matches!(error, Error::Paging(_)) && error.to_string().contains("nowhere"), "{error}");
}

/// Changes the lowest bit of the first value of a tensor in the files of a checkpoint.
fn change_byte(dir: &Path, tensor: &str) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("expected.safetensors")
            || path.extension().is_none_or(|extension| extension != "safetensors")
        {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let at = {
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let named = tensors.tensors().into_iter().find(|(name, _)| name.ends_with(tensor));
            named.map(|(_, view)| view.data().as_ptr() as usize - bytes.as_ptr() as usize)
        };
        if let Some(at) = at {
            bytes[at] ^= 1;
            return std::fs::write(&path, bytes).unwrap();
        }
    }
    panic!("{tensor} is nowhere");
}

#[test]
fn a_file_has_its_name_only_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = engine(&kimi_k3_oracle(), |_| {});
    let path = dir.path().join("state");
    let session = save(&mut engine, &tokens(3), &path);
    let before = std::fs::read(&path).unwrap();
    // Saving over it gives the same bytes, and leaves nothing else behind.
    engine.save_session(&session, &given(&tokens(3)), &path).unwrap();
    assert!(std::fs::read(&path).unwrap() == before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // A folder cannot be replaced.
    let taken = dir.path().join("taken");
    std::fs::create_dir_all(taken.join("inside")).unwrap();
    let error = engine.save_session(&session, &given(&tokens(3)), &taken).unwrap_err();
    assert!(error.to_string().contains("taken"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    let error = engine.save_session(&session, &given(&tokens(3)), &dir.path().join("no/where")).unwrap_err();
    assert!(matches!(error, Error::Paging(_)), "{error}");
    let header = Header::open(&path).unwrap();
    assert_eq!((header.position(), header.tokens(), header.seed()), (3, 3, None));
    assert_eq!((header.kv(), header.arith()), (KvFormat::F32, Arith::Exact));
}
