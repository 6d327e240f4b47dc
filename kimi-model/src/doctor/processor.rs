//! What Linux tells about the processor. Elsewhere nothing is known, and nothing depends on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What the system tells about the processor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Processor {
    /// The name that it gives itself.
    pub(crate) name: Option<String>,
    /// Logical processors that are switched on.
    pub(crate) online: Option<usize>,
    /// Those that this process may use.
    pub(crate) allowed: Option<usize>,
    /// Bytes of the last level of caches, all of its caches together.
    pub(crate) cache_bytes: Option<u64>,
}

impl Processor {
    pub(crate) fn here() -> Self {
        if cfg!(any(target_os = "linux", target_os = "android")) {
            Self::below(Path::new("/"))
        } else {
            Self::default()
        }
    }

    /// As [`here`](Self::here), with `root` in place of `/`.
    fn below(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let field = |text: String, name: &str| {
            let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        };
        Self {
            name: read("proc/cpuinfo").and_then(|text| field(text, "model name")),
            online: read("sys/devices/system/cpu/online").and_then(|text| count(&text)),
            allowed: read("proc/self/status")
                .and_then(|text| field(text, "Cpus_allowed_list"))
                .and_then(|list| count(&list)),
            cache_bytes: last_level(&root.join("sys/devices/system/cpu")),
        }
    }
}

/// How many processors a list like `0-3,8` names.
fn count(list: &str) -> Option<usize> {
    let span = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').map(span).try_fold(0usize, |sum, part| sum.checked_add(part?))
}

/// The sum over the caches of the highest level; one that several processors share counts once.
fn last_level(cpus: &Path) -> Option<u64> {
    let mut caches = BTreeMap::new();
    for cpu in fs::read_dir(cpus).ok()?.flatten() {
        for cache in fs::read_dir(cpu.path().join("cache")).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(cache.path().join(name)).ok();
            let described = || {
                let level: u32 = read("level")?.trim().parse().ok()?;
                let kib: u64 = read("size")?.trim().strip_suffix('K')?.parse().ok()?;
                let instruction = read("type")?.trim() == "Instruction";
                (!instruction).then_some((level, read("shared_cpu_list")?, kib.checked_mul(1024)?))
            };
            if let Some((level, shared, bytes)) = described() {
                caches.insert((level, shared), bytes);
            }
        }
    }
    let last = caches.keys().map(|(level, _)| *level).max()?;
    Some(caches.iter().filter(|((level, _), _)| *level == last).map(|(_, bytes)| bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, expected) in [
            ("0-3,8\n", Some(5)),
            ("7", Some(1)),
            ("", None),
            ("3-1", None),
            ("0-", None),
            ("a", None),
            ("0-18446744073709551615", None),
        ] {
            assert_eq!(count(list), expected, "{list:?}");
        }
    }

    #[test]
    fn a_described_processor_is_understood_and_nothing_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Processor::below(dir.path()), Processor::default());
        let cache = |cpu: usize, index: usize, level: u32, kind: &str, size: &str, shared: &str| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
            [
                ("level", level.to_string()),
                ("type", kind.into()),
                ("size", size.into()),
                ("shared_cpu_list", shared.into()),
            ]
            .map(|(file, text)| (format!("{path}/{file}"), text))
        };
        let mut files = vec![
            ("proc/cpuinfo".to_owned(), "processor\t: 0\nmodel name\t: Some: processor\n".to_owned()),
            ("sys/devices/system/cpu/online".to_owned(), "0-3\n".to_owned()),
            ("proc/self/status".to_owned(), "Name:\tx\nCpus_allowed_list:\t1,3\n".to_owned()),
        ];
        for cpu in 0..4 {
            let shared = if cpu < 2 { "0-1" } else { "2-3" };
            files.extend(cache(cpu, 0, 1, "Data", "32K", &cpu.to_string()));
            files.extend(cache(cpu, 1, 3, "Unified", "1024K", shared));
            files.extend(cache(cpu, 2, 4, "Instruction", "1024K", shared));
            files.extend(cache(cpu, 3, 5, "Unified", "lots", shared));
        }
        for (path, text) in &files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let expected = Processor {
            name: Some("Some: processor".to_owned()),
            online: Some(4),
            allowed: Some(2),
            cache_bytes: Some(2 << 20),
        };
        assert_eq!(Processor::below(dir.path()), expected);
    }
}
