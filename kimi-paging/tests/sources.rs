//! One suite over every reader.

use std::fs;
#[cfg(all(feature = "mmap", target_os = "linux"))]
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

#[cfg(target_os = "linux")]
use kimi_paging::FileSource;
use kimi_paging::{Backend, Error, MemorySource, Source};
use kimi_testing::Seeded;

#[path = "support/sources.rs"]
mod sources;

#[cfg(target_os = "linux")]
use sources::direct;
use sources::every_backend;
#[cfg(all(feature = "mmap", target_os = "linux"))]
use sources::mapped;

/// Every source over the same bytes; those that read files read `path`.
fn every_source(path: &Path, bytes: &[u8]) -> Vec<Arc<dyn Source>> {
    fs::write(path, bytes).unwrap();
    let mut sources = every_backend(path);
    sources.push(Arc::new(MemorySource::new(path, bytes.to_vec())));
    sources.push(Arc::new(MemorySource::shared(path, bytes.into())));
    sources
}

/// True for sources that have views of all their bytes.
fn has_views(source: &dyn Source) -> bool {
    matches!(source.backend(), Backend::Mmap | Backend::Memory)
}

fn short_read(result: Result<impl std::fmt::Debug, Error>) -> (u64, u64, u64) {
    match result {
        Err(Error::ShortRead { offset, expected, found, .. }) => (offset, expected, found),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_range_is_read_and_nothing_behind_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Seeded::new(1).bytes(200_003);
    for source in every_source(&dir.path().join("bytes"), &bytes) {
        let name = source.backend();
        assert_eq!((source.len(), source.is_empty()), (bytes.len() as u64, false), "{name}");
        let mut seeded = Seeded::new(2);
        for _ in 0..300 {
            let start = seeded.below(bytes.len() + 1);
            let len = seeded.below((bytes.len() - start).min(70_000) + 1);
            let mut buf = vec![0; len];
            source.will_need(start as u64, len as u64);
            source.read_at(start as u64, &mut buf).unwrap();
            assert!(buf == bytes[start..start + len], "{name}: {start} + {len}");
            let mut once = vec![0; len];
            source.read_once(start as u64, &mut once).unwrap();
            assert!(once == buf, "{name}: {start} + {len}");
            if let Some(view) = source.mapped(start as u64, len).unwrap() {
                assert!(has_views(&*source));
                assert!(view == &bytes[start..start + len], "{name}: {start} + {len}");
                // Bytes that were released can be read again, also by who still looks at them.
                source.release(start as u64, len as u64);
                assert!(view == &bytes[start..start + len], "{name}: {start} + {len}");
            } else {
                assert!(!has_views(&*source));
                source.release(start as u64, len as u64);
            }
        }
        let len = bytes.len() as u64;
        assert_eq!(short_read(source.read_at(len - 3, &mut [0; 4])), (len - 3, 4, 3), "{name}");
        assert_eq!(short_read(source.read_at(len, &mut [0])), (len, 1, 0), "{name}");
        assert_eq!(short_read(source.read_at(u64::MAX, &mut [0; 2])), (u64::MAX, 2, 0), "{name}");
        assert_eq!(short_read(source.read_once(len - 3, &mut [0; 4])), (len - 3, 4, 3), "{name}");
        source.read_at(len, &mut []).unwrap();
        if has_views(&*source) {
            assert_eq!(short_read(source.mapped(len - 3, 4)), (len - 3, 4, 3), "{name}");
        }
        // Hints about what is not there do nothing.
        source.will_need(u64::MAX, 1);
        source.release(len, u64::MAX);
        source.release(0, 0);
    }
}

#[test]
fn an_empty_file_is_a_source() {
    let dir = tempfile::tempdir().unwrap();
    for source in every_source(&dir.path().join("empty"), &[]) {
        assert!(source.is_empty());
        source.read_at(0, &mut []).unwrap();
        assert_eq!(short_read(source.read_at(0, &mut [0])), (0, 1, 0));
        source.release(0, 100);
    }
}

#[test]
fn threads_read_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Seeded::new(3).bytes(1 << 20);
    for source in every_source(&dir.path().join("bytes"), &bytes) {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (source, bytes) = (&source, &bytes);
                scope.spawn(move || {
                    let mut seeded = Seeded::new(thread);
                    let mut buf = vec![0; 5000];
                    for _ in 0..200 {
                        let start = seeded.below(bytes.len() - buf.len());
                        source.read_at(start as u64, &mut buf).unwrap();
                        assert!(buf == bytes[start..start + buf.len()]);
                    }
                });
            }
        });
    }
}

#[test]
fn names_with_spaces_and_other_scripts_work() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("my models/K 3 — 模型 é");
    fs::create_dir_all(&folder).unwrap();
    for source in every_source(&folder.join("wöights 01.bin"), b"bytes") {
        let mut buf = [0; 5];
        source.read_at(0, &mut buf).unwrap();
        assert_eq!(&buf, b"bytes");
        assert!(source.name().ends_with("wöights 01.bin"));
    }
}

#[cfg(unix)]
#[test]
fn links_lead_to_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("model.safetensors");
    fs::write(dir.path().join("blob"), b"the whole file").unwrap();
    std::os::unix::fs::symlink("blob", &link).unwrap();
    for source in every_backend(&link) {
        let mut bytes = [0; 5];
        source.read_at(4, &mut bytes).unwrap();
        assert_eq!((source.len(), &bytes), (14, b"whole"));
    }
}

#[cfg(unix)]
#[test]
fn offsets_have_64_bits() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let file = fs::File::create(&path).unwrap();
    let far = (5 << 30) + 123;
    file.write_at(b"far away", far).unwrap();
    drop(file);
    for source in every_backend(&path) {
        let mut buf = [0; 10];
        assert_eq!(source.len(), far + 8);
        source.will_need(far, 8);
        source.read_at(far - 2, &mut buf).unwrap();
        assert_eq!(&buf, b"\0\0far away");
        source.release(far, 8);
    }
}

#[cfg(unix)] // Windows does not let a mapped file shrink
#[test]
fn a_file_that_shrinks_is_an_error_and_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shrinking");
    let bytes = Seeded::new(4).bytes(50_000);
    let sources = every_source(&path, &bytes);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(10_000).unwrap();
    for source in sources.iter().filter(|source| source.backend() != Backend::Memory) {
        let name = source.backend();
        let mut buf = vec![0; 5000];
        source.read_at(5000, &mut buf).unwrap();
        assert!(buf == bytes[5000..10_000], "{name}");
        assert_eq!(short_read(source.read_at(9000, &mut buf)), (9000, 5000, 1000), "{name}");
        assert_eq!(short_read(source.read_at(20_000, &mut buf)), (20_000, 5000, 0), "{name}");
        assert_eq!(short_read(source.read_once(9000, &mut buf)), (9000, 5000, 1000), "{name}");
        if source.backend() == Backend::Mmap {
            assert_eq!(short_read(source.mapped(9000, 5000)), (9000, 5000, 1000), "{name}");
            assert!(source.mapped(0, 10_000).unwrap().is_some());
        }
        source.release(0, 50_000);
    }
}

#[cfg(all(feature = "mmap", target_os = "linux"))]
#[test]
fn released_pages_leave_the_process() {
    const LEN: usize = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large");
    // Small writes make small folios in the page cache; large ones may be mapped, and released, as a whole.
    let mut file = fs::File::create(&path).unwrap();
    for _ in 0..LEN / 4096 {
        file.write_all(&[1; 4096]).unwrap();
    }
    let source = mapped(&path);
    let view = source.mapped(0, LEN).unwrap().unwrap();
    let sum = |view: &[u8]| view.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    // Other tests of this binary run at the same time, so only this mapping is looked at.
    let resident = || {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
        let rss = mapping.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    };
    assert_eq!(sum(view), LEN as u64);
    assert_eq!(resident(), LEN);
    // Ranges that begin and end anywhere, one after another, leave nothing behind.
    for start in (0..LEN).step_by(1_000_003) {
        source.release(start as u64, 1_000_003);
    }
    assert_eq!(resident(), 0);
    // A fault maps its neighbours, which belong to the same window.
    assert_eq!(sum(&view[5_000_000..5_000_100]), 100);
    assert!(resident() > 0);
    source.release(5_000_000, 100);
    assert_eq!(resident(), 0);
}

/// What a file system does with the flag, whatever it is, is said.
#[cfg(target_os = "linux")]
#[test]
fn direct_reads_are_either_there_or_their_absence_has_a_reason() {
    // Files of `/proc` take no flag for direct reads.
    let source = FileSource::open_direct("/proc/self/status").unwrap();
    assert_eq!((source.backend(), source.alignment()), (Backend::Pread, 1));
    let why = source.fallback().expect("a reason");
    assert!(!why.to_string().is_empty());

    let dir = tempfile::tempdir().unwrap();
    for len in [0, 1, 4095, 4096, 4097, 70_000] {
        let path = dir.path().join(len.to_string());
        let bytes = Seeded::new(len).bytes(len as usize);
        fs::write(&path, &bytes).unwrap();
        let source = direct(&path);
        let is_direct = source.backend() == Backend::Direct;
        assert_eq!((is_direct, source.alignment() > 1), (source.fallback().is_none(), is_direct));
        let mut read = vec![0; len as usize];
        source.read_at(0, &mut read).unwrap();
        assert!(read == bytes);
    }
}
