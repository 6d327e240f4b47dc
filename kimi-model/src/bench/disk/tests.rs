use std::fs;

use super::*;

fn quick() -> DiskOptions {
    let mut options = DiskOptions::default();
    (options.time, options.size, options.record_bytes) = (Duration::ZERO, 3 << 20, Some(100_000));
    options
}

fn entries(dir: &Path) -> Vec<String> {
    let entry = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(dir).unwrap().map(entry).collect()
}

#[test]
fn percentiles_are_the_nearest_ranks() {
    let at = |count: usize| {
        let mut waits: Vec<f64> = (1..=count).rev().map(|wait| wait as f64).collect();
        let Percentiles { count, p50, p90, p99, max } = Percentiles::new(&mut waits);
        (count, p50, p90, p99, max)
    };
    assert_eq!(at(0), (0, 0.0, 0.0, 0.0, 0.0));
    assert_eq!(at(1), (1, 1.0, 1.0, 1.0, 1.0));
    assert_eq!(at(10), (10, 5.0, 9.0, 10.0, 10.0));
    assert_eq!(at(200), (200, 100.0, 180.0, 198.0, 200.0));
}

#[test]
fn a_folder_without_a_model_gets_a_file_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "kept").unwrap();
    let progress = std::sync::Mutex::new(Vec::new());
    let report =
        measure(dir.path(), &quick(), &|at| progress.lock().unwrap().push(at), &AtomicBool::new(false));
    let report = report.unwrap();
    assert_eq!(entries(dir.path()), ["notes.txt"]);
    assert!(report.temporary && (report.files, report.bytes) == (1, 3 << 20));
    let progress = progress.into_inner().unwrap();
    assert_eq!(progress.first(), Some(&DiskProgress::Writing(0, 3 << 20)));
    let samples = (report.rows.len() * ROUNDS) as u64;
    assert_eq!(progress.last(), Some(&DiskProgress::Reading(samples, samples)));
    for row in &report.rows {
        let Percentiles { count, p50, p90, p99, max, .. } = row.wait_seconds;
        assert!(count >= ROUNDS && p50 <= p90 && p90 <= p99 && p99 <= max, "{row:?}");
        let rate = row.bytes_per_second;
        assert!(0.0 < rate.min && rate.min <= rate.median && rate.median <= rate.max, "{row:?}");
        let least = match row.pattern {
            Pattern::Row => K3_ROW_BYTES,
            // The whole file is one tile.
            Pattern::Tape => 3 << 20,
            Pattern::Experts | Pattern::Mixed => 100_000,
        };
        assert!(row.bytes >= ROUNDS as u64 * least, "{row:?}");
    }
    // Where direct reads are refused all rows are read through the page cache, which is said.
    let direct = report.rows.iter().any(|row| row.backend == Backend::Direct);
    assert_eq!(direct, !report.notes.iter().any(|note| note.contains("page cache")), "{:?}", report.notes);
    for pattern in Pattern::ALL {
        assert!(report.rows.iter().any(|row| row.pattern == pattern));
    }
}

#[test]
fn a_model_lends_its_files_and_the_size_of_its_experts() {
    let model = kimi_testing::kimi_k3_oracle();
    let mut options = quick();
    (options.record_bytes, options.patterns) = (None, vec![Pattern::Experts]);
    options.readings = vec![Reading::direct(ReadSettings::threads(2))];
    let report = measure(&model, &options, &|_| (), &AtomicBool::new(false)).unwrap();
    assert!(!report.temporary && report.rows.len() == 1);
    assert!(report.record_bytes > 0 && report.record_bytes < 100_000, "{}", report.record_bytes);
    // As many files as there are, those that no index names included.
    let shards = entries(&model).into_iter().filter(|name| name.ends_with(".safetensors")).count();
    assert_eq!(report.files, shards);
}

#[test]
fn what_cannot_be_read_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = |path: &Path, options: &DiskOptions, cancel: bool| {
        measure(path, options, &|_| (), &AtomicBool::new(cancel)).unwrap_err()
    };
    let absent = run(&dir.path().join("absent"), &quick(), false);
    assert!(matches!(absent, BenchError::Io { operation: "open", .. }), "{absent}");

    let mut options = quick();
    options.size = u64::MAX;
    let huge = run(dir.path(), &options, false);
    assert!(matches!(huge, BenchError::NoSpace { .. }) && huge.to_string().contains("--size"), "{huge}");

    let cancelled = run(dir.path(), &quick(), true);
    assert!(matches!(cancelled, BenchError::Cancelled), "{cancelled}");
    assert!(entries(dir.path()).is_empty());

    let small = dir.path().join("small");
    fs::write(&small, [1; 100]).unwrap();
    let small = run(&small, &quick(), false);
    assert!(matches!(small, BenchError::TooSmall { needed: 4096, .. }), "{small}");
}

#[test]
fn an_end_asked_for_while_it_reads_comes_between_two_samples_at_the_latest() {
    let dir = tempfile::tempdir().unwrap();
    let cancel = AtomicBool::new(false);
    let ask = |at| {
        if matches!(at, DiskProgress::Reading(2, _)) {
            cancel.store(true, Ordering::Relaxed);
        }
        assert!(!matches!(at, DiskProgress::Reading(3.., _)));
    };
    let error = measure(dir.path(), &quick(), &ask, &cancel).unwrap_err();
    assert!(matches!(error, BenchError::Cancelled), "{error}");
    assert!(entries(dir.path()).is_empty());
}
