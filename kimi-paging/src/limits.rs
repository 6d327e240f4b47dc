//! How much memory there is to plan with.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The memory that the system grants this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryLimit {
    /// Memory of the machine; `None` where the system does not tell.
    pub physical_bytes: Option<u64>,
    /// The tightest limit of a control group that this process is in, and the file that sets it.
    pub group: Option<(u64, PathBuf)>,
}

impl MemoryLimit {
    /// The smaller of both, if anything is known.
    pub fn bytes(&self) -> Option<u64> {
        let group = self.group.as_ref().map(|group| group.0);
        [self.physical_bytes, group].into_iter().flatten().min()
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bytes(), &self.group) {
            (None, _) => f.write_str("unknown"),
            (Some(bytes), Some((group, path))) if bytes == *group => {
                write!(f, "{bytes} bytes ({})", path.display())
            }
            (Some(bytes), _) => write!(f, "{bytes} bytes (physical memory)"),
        }
    }
}

/// Reads the limit: physical memory, and on Linux `memory.max` and `memory.high` (cgroup v2) or `memory.limit_in_bytes` (v1)
/// of the control group of this process and of all its ancestors. Other systems report nothing.
pub fn memory_limit() -> MemoryLimit {
    if cfg!(any(target_os = "linux", target_os = "android")) {
        memory_limit_below(Path::new("/"))
    } else {
        MemoryLimit::default()
    }
}

/// As [`memory_limit`], with `root` in place of `/`.
fn memory_limit_below(root: &Path) -> MemoryLimit {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let groups = parse_groups(&read("proc/self/cgroup"));
    let limits = groups.into_iter().flat_map(|group| {
        let files = group.version.files();
        let mounts = group.version.mounts().iter().map(|mount| root.join(mount));
        // Inside a container the path is often that of the host, while the mount begins at the container's own group: the
        // mount itself, the last ancestor, is then the one that counts.
        let folders = mounts.flat_map(move |mount| {
            let path = group.path.clone();
            path.ancestors().map(|ancestor| mount.join(ancestor)).collect::<Vec<_>>()
        });
        folders.flat_map(move |folder| files.iter().map(move |file| folder.join(file)))
    });
    let limits = limits.filter_map(|file| Some((parse_limit(&fs::read_to_string(&file).ok()?)?, file)));
    MemoryLimit {
        physical_bytes: parse_meminfo(&read("proc/meminfo")),
        group: limits.min_by_key(|limit| limit.0),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// Where systems mount the hierarchy. The second form of v2 is the hybrid one, beside v1.
    fn mounts(self) -> &'static [&'static str] {
        match self {
            Self::V1 => &["sys/fs/cgroup/memory"],
            Self::V2 => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
        }
    }

    fn files(self) -> &'static [&'static str] {
        match self {
            Self::V1 => &["memory.limit_in_bytes"],
            Self::V2 => &["memory.max", "memory.high"],
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    /// Relative to the mount.
    path: PathBuf,
}

/// The groups that count memory, from `/proc/self/cgroup`: lines of `id:controllers:path`.
fn parse_groups(text: &str) -> Vec<Group> {
    let group = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match (id, controllers) {
            ("0", "") => Version::V2,
            _ if controllers.split(',').any(|name| name == "memory") => Version::V1,
            _ => return None,
        };
        // A group outside of the visible hierarchy reads `/../name`.
        let path = path.trim_start_matches('/').split('/').filter(|part| *part != "..");
        Some(Group { version, path: path.collect() })
    };
    text.lines().filter_map(group).collect()
}

/// A limit in bytes; `None` for `max` or no limit.
fn parse_limit(text: &str) -> Option<u64> {
    /// Version 1 writes the largest multiple of a page that fits an i64 for "no limit".
    const UNLIMITED: u64 = 1 << 62;
    text.trim().parse().ok().filter(|&bytes| bytes < UNLIMITED)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn parse_meminfo(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384 kB\nMemFree:         1000 kB\n";

    /// A root folder with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn limit(files: &[(&str, &str)]) -> (Option<u64>, Option<u64>) {
        let found = memory_limit_below(root(files).path());
        (found.bytes(), found.group.map(|group| group.0))
    }

    #[test]
    fn without_groups_physical_memory_counts() {
        assert_eq!(limit(&[("proc/meminfo", MEMINFO)]), (Some(16 << 20), None));
        assert_eq!(limit(&[]), (None, None));
        assert_eq!(
            limit(&[("proc/meminfo", "MemTotal: lots\n"), ("proc/self/cgroup", "nonsense\n::\n0:")]),
            (None, None)
        );
    }

    #[test]
    fn every_ancestor_of_a_v2_group_counts() {
        let mut files = vec![
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/user.slice/session.scope\n"),
            ("sys/fs/cgroup/user.slice/session.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/session.scope/memory.high", "9000000\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "8000000\n"),
            ("sys/fs/cgroup/user.slice/memory.high", "max\n"),
            ("sys/fs/cgroup/other.slice/memory.max", "1\n"),
        ];
        assert_eq!(limit(&files), (Some(8_000_000), Some(8_000_000)));
        files[3].1 = "7000000\n";
        assert_eq!(limit(&files), (Some(7_000_000), Some(7_000_000)));
        // A group may allow more than there is.
        files[0].1 = "MemTotal: 1000 kB\n";
        assert_eq!(limit(&files), (Some(1_024_000), Some(7_000_000)));
    }

    #[test]
    fn v1_and_containers_are_understood() {
        let v1 = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory,hugetlb:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n"),
        ];
        assert_eq!(limit(&v1), (Some(4_000_000), Some(4_000_000)));
        let unlimited =
            [v1[0], v1[1], ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(limit(&unlimited), (Some(16 << 20), None));
        let v2 = [
            v1[0],
            ("proc/self/cgroup", "0::/../../docker/abc\n"),
            ("sys/fs/cgroup/memory.max", "5000000\n"),
        ];
        assert_eq!(limit(&v2), (Some(5_000_000), Some(5_000_000)));
        let hybrid =
            [v1[0], ("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/unified/a/memory.max", "6000000\n")];
        assert_eq!(limit(&hybrid), (Some(6_000_000), Some(6_000_000)));
    }

    #[test]
    fn it_says_where_the_limit_comes_from() {
        assert_eq!(MemoryLimit::default().to_string(), "unknown");
        let physical = MemoryLimit { physical_bytes: Some(5), group: Some((7, "memory.max".into())) };
        assert_eq!(physical.to_string(), "5 bytes (physical memory)");
        let group = MemoryLimit { physical_bytes: Some(9), ..physical };
        assert_eq!(group.to_string(), "7 bytes (memory.max)");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory() {
        assert!(memory_limit().bytes().unwrap() > 1 << 20);
    }
}
