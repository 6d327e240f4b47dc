//! Which file system a path lies on.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Its kind, as the system calls it: `ext4`.
    pub(crate) kind: String,
    /// What is mounted: `/dev/nvme0n1p2`.
    pub(crate) device: String,
}

impl FileSystem {
    /// Bytes that come over a network, through a user's process or out of memory, not from a drive of this machine.
    pub(crate) fn is_remote(&self) -> bool {
        const REMOTE: [&str; 9] =
            ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "glusterfs", "fuse"];
        REMOTE.contains(&self.kind.as_str()) || self.kind.starts_with("fuse.")
    }

    /// Bytes that lie in memory.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.kind.as_str(), "tmpfs" | "ramfs" | "hugetlbfs")
    }
}

/// The file system of a file or folder; `None` where the system does not tell.
pub(crate) fn file_system(path: &Path) -> Option<FileSystem> {
    let path = fs::canonicalize(path).ok()?;
    find(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
}

/// The mount of the longest path that `path` lies below; of several at one path the last, which covers the others.
fn find(mountinfo: &str, path: &Path) -> Option<FileSystem> {
    let mounts = mountinfo.lines().filter_map(parse).filter(|(at, _)| path.starts_with(at));
    mounts.max_by_key(|(at, _)| at.components().count()).map(|(_, found)| found)
}

/// A line like `36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/sda rw`: behind the dash kind and device.
fn parse(line: &str) -> Option<(PathBuf, FileSystem)> {
    let (mount, about) = line.split_once(" - ")?;
    let at = PathBuf::from(unescape(mount.split(' ').nth(4)?)?);
    let mut about = about.split(' ');
    Some((at, FileSystem { kind: about.next()?.to_owned(), device: about.next()?.to_owned() }))
}

/// Spaces and the like are written as `\040`.
fn unescape(text: &str) -> Option<OsString> {
    let mut bytes = Vec::new();
    let mut parts = text.split('\\');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        let code = u8::from_str_radix(part.get(..3)?, 8).ok()?;
        bytes.push(code);
        bytes.extend(part[3..].bytes());
    }
    Some(String::from_utf8(bytes).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
30 22 0:26 / /tmp rw,nosuid - tmpfs tmpfs rw
31 22 0:30 / /mnt/my\\040models rw master:3 - fuse.sshfs host:/x rw
32 22 0:31 / /mnt/data rw shared:1 master:2 - xfs /dev/old rw
33 22 0:32 / /mnt/data rw shared:1 - nfs4 server:/data rw
a broken line
34 22 0:33 / /mnt/bad\\9 rw - ext4 x rw
";

    #[test]
    fn the_longest_mount_wins_and_the_last_of_equals() {
        let kind = |path: &str| find(MOUNTS, Path::new(path)).map(|found| found.kind);
        for (path, expected) in [
            ("/", "ext4"),
            ("/tmpfile", "ext4"),
            ("/tmp/x", "tmpfs"),
            ("/mnt/my models/k3", "fuse.sshfs"),
            ("/mnt/data", "nfs4"),
        ] {
            assert_eq!(kind(path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(find("", Path::new("/")), None);
        let remote = |path: &str| find(MOUNTS, Path::new(path)).unwrap().is_remote();
        assert!(remote("/mnt/my models") && remote("/mnt/data") && !remote("/"));
        assert!(find(MOUNTS, Path::new("/tmp")).unwrap().is_memory());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_folder_lies_on_something() {
        assert!(file_system(Path::new(".")).is_some());
        assert_eq!(file_system(Path::new("/no such folder")), None);
    }
}
