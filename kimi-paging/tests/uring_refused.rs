//! A system that forbids io_uring, as containers do.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "installs a filter for system calls")]

use std::sync::Arc;

use kimi_paging::{Budget, Entry, Executor, Extent, FileSource, ReadSettings, Readers, Ring, SourceId, Tape};

/// Has the system refuse `io_uring_setup` to this thread from now on; false where it has no such filters.
fn forbid_io_uring() -> bool {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call is the first field of what the filter sees.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` and the program that it points to live until the calls are over; the kernel copies them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}

#[test]
fn threads_read_where_io_uring_is_refused_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bytes");
    std::fs::write(&path, vec![3; 100_000]).unwrap();
    let refused = std::thread::spawn(move || {
        if !forbid_io_uring() {
            eprintln!("skipped: no filters for system calls here");
            return;
        }
        let readers = Readers::with_settings(&ReadSettings::uring(16, 1 << 20)).unwrap();
        assert_eq!(readers.settings(), ReadSettings::threads(Readers::DEFAULT_THREADS));
        assert_eq!(readers.settings().executor, Executor::Threads);
        let why = readers.fallback().expect("a reason");
        assert_eq!(why.kind(), std::io::ErrorKind::PermissionDenied);
        let extent = Extent { source: SourceId::new(0), offset: 1, len: 99_000 };
        let tape = Tape::new(vec![Entry::new(extent, 1000)]).unwrap();
        let source = Arc::new(FileSource::open_direct(path).unwrap());
        let mut ring =
            Ring::builder(&[source], tape).tile_bytes(10_000).build(&Budget::unlimited(), &readers).unwrap();
        ring.push(0..1);
        let mut sum = 0;
        while let Some(tile) = ring.next().unwrap() {
            sum += tile.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        }
        assert_eq!(sum, 297_000);
        // Fewer reads under way are fewer threads.
        let few = Readers::with_settings(&ReadSettings::uring(2, 1 << 20)).unwrap();
        assert_eq!(few.settings(), ReadSettings::threads(2));
    });
    refused.join().unwrap();
}
