//! The tensor index: what the safetensors crate reads, and every kind of damage.

use std::collections::BTreeMap;
use std::sync::Arc;

use kimi_paging::{Dtype, Error, IndexProblem, MemorySource, ShardProblem, Source, TensorIndex};
use kimi_testing::Seeded;
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/shards.rs"]
mod shards;

use faulty::{Fault, Faulty};
use shards::{folder, header, index_json, index_of, memory, open, shard};

/// A healthy file with tensors `a` (8 bytes) and `b` (4 bytes).
fn healthy() -> Vec<u8> {
    shard(&header(&[("a", "F32", &[2], [0, 8]), ("b", "BF16", &[1, 2], [8, 12])]), &[1; 12])
}

fn shard_problem<T: std::fmt::Debug>(result: Result<T, Error>) -> ShardProblem {
    match result {
        Err(Error::Shard { path, problem }) => {
            assert!(path.ends_with("x.safetensors"), "{path:?}");
            problem
        }
        other => panic!("{other:?}"),
    }
}

fn index_problem<T: std::fmt::Debug>(result: Result<T, Error>) -> IndexProblem {
    match result {
        Err(Error::Index { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

/// Checks an index of one file against the safetensors crate.
fn assert_agrees(index: &TensorIndex, file: &[u8]) {
    let theirs = SafeTensors::deserialize(file).unwrap();
    assert_eq!(index.len(), theirs.len());
    for (name, view) in theirs.tensors() {
        let info = index.find(&name).unwrap_or_else(|| panic!("{name}"));
        let shape: Vec<_> = view.shape().iter().map(|&n| n as u64).collect();
        assert_eq!((info.dtype.to_string(), info.shape), (view.dtype().to_string(), &shape[..]));
        let mut bytes = vec![0; info.bytes as usize];
        index.source(info.source).read_at(info.offset, &mut bytes).unwrap();
        assert!(bytes == view.data(), "{name}");
    }
}

#[test]
fn tensors_lie_where_the_safetensors_crate_finds_them() {
    let index = index_of(healthy()).unwrap();
    assert_agrees(&index, &healthy());
    assert_eq!((index.len(), index.is_empty(), index.unindexed()), (2, false, 0));
    assert!(index.find("c").is_none() && index.find("").is_none());
    let b = index.find("b").unwrap();
    assert_eq!((b.dtype, b.shape, b.bytes), (Dtype::Bf16, &[1, 2][..], 4));
    let listed: Vec<_> = index.iter().map(|(name, info)| (name, info.bytes)).collect();
    assert_eq!(listed, [("a".to_owned(), 8), ("b".to_owned(), 4)]);
}

proptest! {
    #[test]
    fn written_files_are_read_back(
        tensors in prop::collection::btree_map("[a-z]{1,3}(\\.[0-9]{1,3}){0,2}(\\.[a-z]{1,2})?", (0..6usize, prop::collection::vec(0..4usize, 0..4)), 0..20),
        seed: u64,
    ) {
        use safetensors::Dtype as Theirs;
        let kinds = [(Theirs::BF16, 2), (Theirs::F32, 4), (Theirs::U8, 1), (Theirs::I64, 8), (Theirs::F8_E8M0, 1), (Theirs::BOOL, 1)];
        let mut seeded = Seeded::new(seed);
        let tensors: BTreeMap<_, _> = tensors
            .into_iter()
            .map(|(name, (kind, shape))| {
                let (dtype, size) = kinds[kind];
                let bytes = seeded.bytes(size * shape.iter().product::<usize>());
                (name, (dtype, shape, bytes))
            })
            .collect();
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        let index = index_of(file.clone()).unwrap();
        assert_agrees(&index, &file);
    }

    /// Bytes that are not a healthy file are refused, never a panic; what the safetensors crate accepts is read alike.
    #[test]
    fn damaged_files_are_errors(changes in prop::collection::vec((0..200usize, any::<u8>()), 1..4), cut in 0..400usize) {
        let mut file = healthy();
        for (at, byte) in changes {
            if let Some(changed) = file.get_mut(at) {
                *changed = byte;
            }
        }
        file.truncate(cut);
        let ours = index_of(file.clone());
        if SafeTensors::deserialize(&file).is_ok() {
            assert_agrees(&ours.unwrap(), &file);
        }
    }

    /// The same for headers that are JSON, with values that are likely to be wrong in interesting ways.
    #[test]
    fn odd_headers_are_read_like_the_safetensors_crate_does(
        tensors in prop::collection::vec(("[ab]", prop::sample::select(vec!["U8", "F32", "F4", "F6_E2M3", "X"]), prop::collection::vec(0..5u64, 0..3), 0..20u64, 0..20u64), 0..4),
        data in 0..24usize,
    ) {
        let tensors: Vec<_> = tensors.iter().map(|(name, dtype, shape, begin, end)| (name.as_str(), *dtype, &shape[..], [*begin, *end])).collect();
        let file = shard(&header(&tensors), &vec![7; data]);
        let ours = index_of(file.clone());
        match (SafeTensors::deserialize(&file), ours) {
            (Ok(_), ours) => assert_agrees(&ours.unwrap(), &file),
            (Err(_), Err(_)) => {}
            (Err(error), Ok(index)) => {
                // Types that it does not know are listed here, and only those.
                assert!(index.iter().any(|(_, info)| info.dtype.bits().is_none()), "{error:?} {index:?}");
            }
        }
    }
}

#[test]
fn a_truncated_shard_is_named_with_its_missing_bytes() {
    let mut file = healthy();
    file.truncate(file.len() - 5);
    let error = index_of(file).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("x.safetensors") && text.contains("5 bytes are missing") && text.contains("`b`"),
        "{text}"
    );
    assert!(matches!(shard_problem(Err::<(), _>(error)), ShardProblem::Truncated { missing: 5, .. }));
}

#[test]
fn lengths_that_the_file_does_not_have_size_no_allocation() {
    let only_prefix = |length: u64| index_of(length.to_le_bytes());
    assert!(matches!(
        shard_problem(only_prefix(u64::MAX)),
        ShardProblem::HeaderPastEnd { claimed: u64::MAX, available: 0 }
    ));
    assert!(matches!(
        shard_problem(only_prefix(1)),
        ShardProblem::HeaderPastEnd { claimed: 1, available: 0 }
    ));
    assert!(matches!(shard_problem(index_of([0; 7])), ShardProblem::TooShort { found: 7 }));
    assert!(matches!(shard_problem(index_of([])), ShardProblem::TooShort { found: 0 }));
    assert!(matches!(shard_problem(only_prefix(0)), ShardProblem::Header { .. }));

    // A file that is long enough runs into the cap of the format.
    let dir = folder(&[("x.safetensors", &100_000_001u64.to_le_bytes())]);
    let path = dir.path().join("x.safetensors");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let problem = shard_problem(open(dir.path()));
    assert!(matches!(problem, ShardProblem::HeaderTooLarge { claimed: 100_000_001, limit: 100_000_000 }));
}

#[test]
fn headers_that_are_not_what_they_should_be() {
    let problem = |header: &str| shard_problem(index_of(shard(header, &[0; 8])));
    for header in [
        "",
        "[]",
        "7",
        "{",
        "{}}",
        r#"{"a":7}"#,
        r#"{"a":{"dtype":"U8","shape":[8]}}"#,
        r#"{"a":{"shape":[8],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U8","data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"shape":[8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,16]}}"#,
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}}"#,
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,1e1]}}"#,
        r#"{"a":{"dtype":8,"shape":[8],"data_offsets":[0,8]}}"#,
        "{\"a\u{0}\":",
    ] {
        assert!(matches!(problem(header), ShardProblem::Header { .. }), "{header}");
        // A header of some megabytes is parsed piece by piece.
        let long = " ".repeat(3 << 20) + header;
        assert!(matches!(problem(&long), ShardProblem::Header { .. }), "{header}");
    }
    let text = index_of(shard(r#"{"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}}"#, &[0; 8]))
        .unwrap_err()
        .to_string();
    assert!(text.contains("at tensor `a`") && text.contains("line 1 column"), "{text}");

    let not_utf8 = [&8u64.to_le_bytes()[..], b"{\"\xff\xfe\":0}"].concat();
    assert!(matches!(shard_problem(index_of(not_utf8)), ShardProblem::Header { .. }));
    // Deep nesting ends in an error, not in the stack.
    let deep = format!(r#"{{"__metadata__":{}"#, "[".repeat(100_000));
    assert!(matches!(problem(&deep), ShardProblem::Header { .. }));

    // Padding, metadata and fields of later versions are fine.
    let tolerated = r#"{"__metadata__":{"format":"pt"},"a":{"later":[{}],"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   "#;
    assert_eq!(index_of(shard(tolerated, &[0; 8])).unwrap().len(), 1);
    // So is a name that needs escapes.
    let escaped = r#"{"\u0061\"\\é":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#;
    assert!(index_of(shard(escaped, &[0; 8])).unwrap().find("a\"\\é").is_some());
}

#[test]
fn a_read_that_fails_is_no_bad_header() {
    let tensor = header(&[("a", "U8", &[8], [0, 8])]);
    for header in [tensor.clone(), " ".repeat(3 << 20) + &tensor] {
        for failing in 0..2 {
            let fail = move |number, _| {
                if number == failing { Fault::Io(std::io::ErrorKind::PermissionDenied) } else { Fault::None }
            };
            let source: Arc<dyn Source> = Arc::new(Faulty::new(shard(&header, &[0; 8]), fail));
            let error = TensorIndex::from_sources(vec![("faulty".to_owned(), source)], None).unwrap_err();
            assert!(matches!(error, Error::Io { operation: "read", .. }), "{error:?}");
        }
    }
}

#[test]
fn a_repeated_name_is_called_that() {
    // The same range twice, and neighbouring ranges: both are a repeated name first of all.
    for second in [[0, 4], [4, 8]] {
        let file = shard(&header(&[("a.1", "U8", &[4], [0, 4]), ("a.1", "U8", &[4], second)]), &[0; 8]);
        let error = index_of(file).unwrap_err();
        assert!(error.to_string().contains("duplicate tensor name `a.1`"), "{error}");
    }
    let file = shard(&header(&[("a", "U8", &[4], [0, 4]), ("a", "U8", &[4], [4, 8])]), &[0; 8]);
    let json = MemorySource::new("index.json", index_json(&[("a", "x.safetensors")]).into_bytes());
    let error = TensorIndex::from_sources(vec![memory("x.safetensors", file)], Some(&json)).unwrap_err();
    assert!(error.to_string().contains("duplicate tensor name `a`"), "{error}");

    let json =
        MemorySource::new("index.json", index_json(&[("a", "x.safetensors"), ("a", "y")]).into_bytes());
    let shards = || vec![memory("x.safetensors", healthy()), memory("y", healthy())];
    let problem = index_problem(TensorIndex::from_sources(shards(), Some(&json)));
    assert!(matches!(problem, IndexProblem::Duplicate { shards: None, .. }), "{problem}");
    let problem = index_problem(TensorIndex::from_sources(shards(), None));
    assert_eq!(problem.to_string(), "duplicate tensor name `a` in x.safetensors and y");
}

#[test]
fn overlaps_holes_and_trailing_bytes_are_refused() {
    let problem = |tensors: &[(&str, &str, &[u64], [u64; 2])], data: usize| {
        shard_problem(index_of(shard(&header(tensors), &vec![0; data]))).to_string()
    };
    let k = ("k_proj", "U8", &[8][..], [0, 8]);
    assert_eq!(
        problem(&[k, ("v_proj", "U8", &[8], [0, 8])], 8),
        "tensors `k_proj` and `v_proj` overlap by 8 bytes"
    );
    assert_eq!(problem(&[("v", "U8", &[8], [5, 13]), k], 13), "tensors `k_proj` and `v` overlap by 3 bytes");
    assert_eq!(problem(&[k, ("v", "U8", &[2], [5, 7])], 8), "tensors `k_proj` and `v` overlap by 2 bytes");
    assert_eq!(
        problem(&[k, ("v", "U8", &[2], [11, 13])], 13),
        "3 bytes before tensor `v` belong to no tensor"
    );
    assert_eq!(problem(&[("v", "U8", &[2], [1, 3])], 3), "1 bytes before tensor `v` belong to no tensor");
    let text = problem(&[k], 9);
    assert!(text.starts_with("1 bytes behind the last tensor belong to no tensor"), "{text}");
    assert!(problem(&[], 4).starts_with("4 bytes behind"));
}

#[test]
fn sizes_must_be_those_of_type_and_shape() {
    let problem = |dtype: &str, shape: &[u64], offsets: [u64; 2]| {
        shard_problem(index_of(shard(&header(&[("t", dtype, shape, offsets)]), &[0; 16])))
    };
    assert!(matches!(
        problem("F32", &[2, 2], [0, 15]),
        ShardProblem::Size { expected: Some(16), found: 15, .. }
    ));
    // The product overflows, or is no whole number of bytes.
    for (dtype, shape) in
        [("F32", &[u64::MAX, u64::MAX][..]), ("F32", &[1 << 62]), ("F4", &[3]), ("F6_E2M3", &[1])]
    {
        assert!(
            matches!(problem(dtype, shape, [0, 16]), ShardProblem::Size { expected: None, .. }),
            "{dtype} {shape:?}"
        );
    }
    assert!(matches!(problem("U8", &[4], [8, 4]), ShardProblem::Reversed { begin: 8, end: 4, .. }));
    assert!(matches!(problem("U8", &[4], [u64::MAX - 4, u64::MAX]), ShardProblem::Truncated { .. }));
}

#[test]
fn unknown_types_are_listed_but_their_ranges_count() {
    let file =
        |offsets| shard(&header(&[("t", "F3_E1M1", &[3, 5], offsets), ("u", "U8", &[4], [6, 10])]), &[0; 10]);
    let index = index_of(file([0, 6])).unwrap();
    let info = index.find("t").unwrap();
    assert_eq!((info.dtype.to_string().as_str(), info.dtype.bits(), info.bytes), ("F3_E1M1", None, 6));
    assert!(matches!(info.dtype, Dtype::Other(_)));
    // Wild offsets are no better for being of an unknown type.
    assert!(matches!(shard_problem(index_of(file([0, 600]))), ShardProblem::Truncated { .. }));
    assert!(matches!(shard_problem(index_of(file([6, 0]))), ShardProblem::Reversed { .. }));
    assert!(matches!(shard_problem(index_of(file([0, 7]))), ShardProblem::Overlap { .. }));
    let long = "F".repeat(24);
    let problem = shard_problem(index_of(shard(&header(&[("t", &long, &[4], [0, 4])]), &[0; 4])));
    assert!(matches!(problem, ShardProblem::DtypeName { .. }));
}

#[test]
fn empty_tensors_and_odd_alignment_work() {
    let tensors = [
        ("first", "F32", &[0, 4][..], [0, 0]),
        ("bytes", "U8", &[3], [0, 3]),
        ("between", "BF16", &[0], [3, 3]),
        ("floats", "F32", &[2], [3, 11]),
        ("last", "F64", &[7, 0], [11, 11]),
        ("scalar", "U8", &[], [11, 12]),
    ];
    // Headers of every length modulo eight.
    for pad in 0..8 {
        let file = shard(&(header(&tensors) + &" ".repeat(pad)), &(0..12).collect::<Vec<u8>>());
        let index = index_of(file.clone()).unwrap();
        assert_agrees(&index, &file);
        let floats = index.find("floats").unwrap();
        let view = index.source(floats.source).mapped(floats.offset, 8).unwrap();
        assert_eq!(view, Some(&[3, 4, 5, 6, 7, 8, 9, 10][..]));
    }
}

#[test]
fn folders_are_opened_by_index_file_or_by_what_is_there() {
    let a = shard(&header(&[("a", "U8", &[2], [0, 2])]), &[1, 2]);
    let b = shard(&header(&[("b", "U8", &[3], [0, 3])]), &[3, 4, 5]);
    let both = index_json(&[("b", "part-2.safetensors"), ("a", "part-1.safetensors")]);
    let read = |dir: &std::path::Path| {
        let index = open(dir).unwrap();
        let names: Vec<_> = index.iter().map(|(name, _)| name).collect();
        (names.join(" "), index.sources().len())
    };
    let name = "model.safetensors.index.json";
    // Shards count in the order of their names, whatever the index file's.
    let dir = folder(&[
        (name, both.as_bytes()),
        ("part-1.safetensors", &a),
        ("part-2.safetensors", &b),
        ("x.safetensors", b"junk"),
    ]);
    assert_eq!(read(dir.path()), ("a b".to_owned(), 2));
    let dir = folder(&[("model.safetensors", &a), ("other.safetensors", b"junk")]);
    assert_eq!(read(dir.path()), ("a".to_owned(), 1));
    assert_eq!(read(&dir.path().join("model.safetensors")), ("a".to_owned(), 1));
    let dir = folder(&[("2.safetensors", &b), ("1.safetensors", &a), ("notes.txt", b"")]);
    assert_eq!(read(dir.path()), ("a b".to_owned(), 2));
    let dir = folder(&[("notes.txt", b"")]);
    assert!(matches!(index_problem(open(dir.path())), IndexProblem::Empty));
    assert!(matches!(open(&dir.path().join("absent")), Err(Error::Io { .. })));
}

#[cfg(unix)]
#[test]
fn a_cache_of_links_with_an_odd_path_opens() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("my models/K 3 模型/snapshots/main");
    let blobs = dir.path().join("my models/K 3 模型/blobs");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join("0a1b"), healthy()).unwrap();
    std::fs::write(blobs.join("2c3d"), index_json(&[("a", "m 1.safetensors"), ("b", "m 1.safetensors")]))
        .unwrap();
    std::os::unix::fs::symlink("../../blobs/0a1b", snapshot.join("m 1.safetensors")).unwrap();
    std::os::unix::fs::symlink("../../blobs/2c3d", snapshot.join("model.safetensors.index.json")).unwrap();
    let index = open(&snapshot).unwrap();
    assert_agrees(&index, &healthy());

    // A link to nothing is a missing shard.
    std::fs::remove_file(blobs.join("0a1b")).unwrap();
    let problem = index_problem(open(&snapshot));
    assert!(
        matches!(&problem, IndexProblem::MissingShards { shards, total: 1 } if shards == &["m 1.safetensors"])
    );
}

#[test]
fn all_missing_shards_are_listed_at_once() {
    let json = index_json(&[("a", "1.safetensors"), ("b", "2.safetensors"), ("c", "3.safetensors")]);
    let a = shard(&header(&[("a", "U8", &[2], [0, 2])]), &[1, 2]);
    let dir = folder(&[("model.safetensors.index.json", json.as_bytes()), ("2.safetensors", &a)]);
    let error = open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("2 of 3 shards are missing: 1.safetensors, 3.safetensors"), "{error}");
    let json = MemorySource::new("index.json", json.into_bytes());
    let error = TensorIndex::from_sources(vec![memory("2.safetensors", a)], Some(&json)).unwrap_err();
    assert!(error.to_string().contains("2 of 3 shards are missing"), "{error}");
}

#[test]
fn index_and_headers_must_agree() {
    let open = |pairs: &[(&str, &str)], shards: Vec<(String, Arc<dyn Source>)>| {
        let json = MemorySource::new("index.json", index_json(pairs).into_bytes());
        TensorIndex::from_sources(shards, Some(&json))
    };
    let x = || memory("x.safetensors", healthy());
    let y = || memory("y.safetensors", shard(&header(&[("c", "U8", &[2], [0, 2])]), &[1, 2]));

    // A promise that no header keeps.
    let names: Vec<_> = (0..7).map(|n| format!("lost.{n}")).collect();
    let mut pairs = vec![("a", "x.safetensors"), ("b", "x.safetensors")];
    pairs.extend(names.iter().map(|name| (name.as_str(), "x.safetensors")));
    let problem = index_problem(open(&pairs, vec![x()]));
    let IndexProblem::MissingTensors { tensors, count: 7 } = &problem else { panic!("{problem}") };
    assert_eq!((tensors.len(), tensors[0].as_str()), (5, "lost.0 (x.safetensors)"));
    assert!(problem.to_string().ends_with("lost.4 (x.safetensors), …"), "{problem}");

    // A tensor in another shard than promised.
    let pairs = [("a", "x.safetensors"), ("b", "y.safetensors"), ("c", "y.safetensors")];
    let problem = index_problem(open(&pairs, vec![x(), y()]));
    assert!(matches!(problem, IndexProblem::Misplaced { .. }), "{problem}");
    // One that two shards have.
    let pairs = [("a", "x.safetensors"), ("b", "x.safetensors"), ("c", "y.safetensors")];
    let twice = memory(
        "y.safetensors",
        shard(&header(&[("b", "U8", &[1], [0, 1]), ("c", "U8", &[2], [1, 3])]), &[1; 3]),
    );
    let problem = index_problem(open(&pairs, vec![x(), twice]));
    assert_eq!(problem.to_string(), "duplicate tensor name `b` in x.safetensors and y.safetensors");

    // Tensors that only a header has are found and counted; a shard that the index does not name is left alone.
    let index = open(&[("a", "x.safetensors")], vec![y(), x()]).unwrap();
    assert_eq!((index.len(), index.unindexed(), index.sources().len()), (2, 1, 1));
    assert!(index.find("b").is_some() && index.find("c").is_none());
    assert_agrees(&index, &healthy());
}

#[test]
fn index_files_that_are_not_what_they_should_be() {
    let open = |json: &str| {
        let json = MemorySource::new("index.json", json.as_bytes().to_vec());
        TensorIndex::from_sources(vec![memory("x.safetensors", healthy())], Some(&json))
    };
    for json in [
        "",
        "[]",
        "{}",
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{"a":1}}"#,
        r#"{"weight_map":{},"weight_map":{}}"#,
        r#"{"weight_map":{"a":"x.safetensors"}} x"#,
        r#"{"weight_map":{"a":"x.safetensors","#,
    ] {
        assert!(matches!(index_problem(open(json)), IndexProblem::Json { .. }), "{json}");
    }
    for shard in ["../x.safetensors", "/etc/passwd", "sub/x", "..", ".", "", "C:x", "a\\\\b", "a\\u0000b"] {
        let json = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
        assert!(matches!(index_problem(open(&json)), IndexProblem::ShardName { .. }), "{shard}");
    }
    assert!(open(r#"{"metadata":{"deep":[[[1]]]},"weight_map":{"a":"x.safetensors"},"more":null}"#).is_ok());
}

#[test]
fn templates_find_without_names() {
    let tensors = [
        ("layers.0.w", "U8", &[1][..], [0, 1]),
        ("layers.12.w", "U8", &[2], [1, 3]),
        ("layers.12.experts.7.w", "U8", &[3], [3, 6]),
        ("layers.70000.w", "U8", &[4], [6, 10]),
        ("layers.{}.w", "U8", &[5], [10, 15]),
        ("embed", "U8", &[6], [15, 21]),
        ("a.1.2.3.4", "U8", &[7], [21, 28]),
    ];
    let index = index_of(shard(&header(&tensors), &[0; 28])).unwrap();
    for (name, _, shape, _) in tensors {
        assert_eq!(index.find(name).unwrap().shape, shape, "{name}");
    }
    let bytes = |pattern: &str, numbers: &[u32]| Some(index.at(index.template(pattern)?, numbers)?.bytes);
    assert_eq!(bytes("layers.{}.w", &[0]), Some(1));
    assert_eq!(bytes("layers.{}.w", &[12]), Some(2));
    assert_eq!(bytes("layers.{}.experts.{}.w", &[12, 7]), Some(3));
    assert_eq!(bytes("layers.{}.w", &[70_000]), Some(4));
    assert_eq!(bytes("embed", &[]), Some(6));
    assert_eq!(bytes("a.{}.{}.{}.4", &[1, 2, 3]), Some(7));
    for (pattern, numbers) in [
        ("layers.{}.w", &[1][..]),
        ("layers.{}.w", &[]),
        ("layers.{}.w", &[0, 0]),
        ("layers.{}.w", &[u32::MAX]),
        ("layers.{}", &[0]),
        ("layers.0.w", &[]),
    ] {
        assert_eq!(bytes(pattern, numbers), None, "{pattern} {numbers:?}");
    }
}

#[test]
fn more_shapes_than_sixteen_bits_count() {
    let mut tensors = String::new();
    let mut end = 0u64;
    for n in 0..140_000u64 {
        // Names without numbers as components, so each is a template of its own, and each shape is new as well.
        let (begin, bytes) = (end, n % 2);
        let shape = if bytes == 0 { format!("[0,{n}]") } else { "[1]".to_owned() };
        end += bytes;
        tensors += &format!(r#""name{n}":{{"dtype":"U8","shape":{shape},"data_offsets":[{begin},{end}]}},"#);
    }
    let file = shard(&format!("{{{}}}", tensors.trim_end_matches(',')), &vec![0; end as usize]);
    let index = index_of(file).unwrap();
    assert_eq!(index.len(), 140_000);
    assert_eq!(index.find("name139998").unwrap().shape, &[0, 139_998]);
    assert_eq!(index.find("name139999").unwrap().bytes, 1);
}

#[test]
fn the_committed_checkpoint_opens() {
    let index = open(&kimi_testing::kimi_k3_oracle()).unwrap();
    assert_eq!((index.sources().len(), index.unindexed()), (3, 0));
    for source in index.sources() {
        let file = std::fs::read(source.name()).unwrap();
        let theirs = SafeTensors::deserialize(&file).unwrap();
        for (name, view) in theirs.tensors() {
            let info = index.find(&name).unwrap();
            let mut bytes = vec![0; info.bytes as usize];
            index.source(info.source).read_at(info.offset, &mut bytes).unwrap();
            assert!(bytes == view.data(), "{name}");
        }
    }
}
