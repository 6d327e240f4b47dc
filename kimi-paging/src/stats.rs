//! What the process holds, as the system sees it.

/// The most memory that this process ever had resident, or `None` where the system does not tell.
///
/// On Linux the `VmHWM` of `/proc/self/status`; that file counts in KiB, the result is in bytes.
pub fn peak_rss_bytes() -> Option<u64> {
    status_bytes(&status()?, "VmHWM")
}

/// The memory that this process has resident now, or `None` where the system does not tell.
pub fn current_rss_bytes() -> Option<u64> {
    status_bytes(&status()?, "VmRSS")
}

fn status() -> Option<String> {
    if cfg!(any(target_os = "linux", target_os = "android")) {
        std::fs::read_to_string("/proc/self/status").ok()
    } else {
        None
    }
}

/// A field of `/proc/self/status` such as `VmHWM:     1234 kB`.
fn status_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_kibibytes() {
        let status = "Name:\tVmHWM\nVmHWMX:\t7 kB\nVmHWM:\t    1234 kB\nVmRSS:\t12 kB\nVmBad:\tmany kB\n";
        assert_eq!(status_bytes(status, "VmHWM"), Some(1234 * 1024));
        assert_eq!(status_bytes(status, "VmRSS"), Some(12 * 1024));
        assert_eq!((status_bytes(status, "VmBad"), status_bytes(status, "VmSwap")), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_touched_shows() {
        let before = current_rss_bytes().unwrap();
        let held = vec![1u8; 64 << 20];
        assert!(current_rss_bytes().unwrap() >= before + (60 << 20));
        assert!(peak_rss_bytes().unwrap() >= current_rss_bytes().unwrap());
        drop(held);
    }
}
