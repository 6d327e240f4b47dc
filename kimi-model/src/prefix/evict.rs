//! Which states go when room is needed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{is_digits, parse_name, remove};
use crate::error::Error;
use crate::pack::writer::{PARTIAL, io_error};

/// After this time nobody writes to an unfinished file any more.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A state of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    path: PathBuf,
    bytes: u64,
    tokens: usize,
    used: SystemTime,
}

impl Entry {
    /// How little it is worth: the time since its last use, over the tokens that each of its bytes saves.
    fn staleness(&self, now: SystemTime) -> f64 {
        let age = now.duration_since(self.used).unwrap_or_default().as_secs_f64() + 1.0;
        age * self.bytes as f64 / self.tokens as f64
    }
}

/// Deletes states until all together have at most `limit_bytes`, and what interrupted processes left behind.
pub(super) fn make_room(dir: &Path, limit_bytes: u64, now: SystemTime) -> Result<(), Error> {
    let entries = list(dir, now)?;
    chosen(entries, limit_bytes, now).iter().for_each(|entry| remove(&entry.path));
    Ok(())
}

/// The states to delete so that the others have at most `limit_bytes`.
fn chosen(mut entries: Vec<Entry>, limit_bytes: u64, now: SystemTime) -> Vec<Entry> {
    entries.sort_by(|a, b| b.staleness(now).total_cmp(&a.staleness(now)).then_with(|| a.path.cmp(&b.path)));
    let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let count = entries
        .iter()
        .take_while(|entry| {
            let over = total > limit_bytes;
            total -= if over { entry.bytes } else { 0 };
            over
        })
        .count();
    entries.truncate(count);
    entries
}

/// All states, of all models. Other files are left alone.
fn list(dir: &Path, now: SystemTime) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    for folder in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let folder = folder.map_err(io_error("list", dir))?;
        if !folder.file_name().to_str().is_some_and(is_digits) || !folder.path().is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path()).map_err(io_error("list", &folder.path()))? {
            let file = file.map_err(io_error("list", &folder.path()))?;
            let (path, name) = (file.path(), file.file_name());
            let Some(name) = name.to_str() else { continue };
            let found = file.metadata().and_then(|found| Ok((found.len(), found.modified()?)));
            let (bytes, used) = match found {
                Ok(found) => found,
                // Another process was faster.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("read", &path)(error)),
            };
            if let Some((tokens, _)) = parse_name(name) {
                entries.push(Entry { path, bytes, tokens, used });
            } else if name.starts_with('.')
                && name.ends_with(PARTIAL)
                && now.duration_since(used).is_ok_and(|age| age > ABANDONED)
            {
                remove(&path);
            }
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, bytes: u64, tokens: usize, used: u64) -> Entry {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(used);
        Entry { path: name.into(), bytes, tokens, used }
    }

    fn names(entries: &[Entry], limit_bytes: u64) -> Vec<String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let chosen = chosen(entries.to_vec(), limit_bytes, now);
        chosen.iter().map(|entry| entry.path.display().to_string()).collect()
    }

    #[test]
    fn the_oldest_go_first_and_only_as_many_as_needed() {
        let entries = [entry("new", 10, 5, 900), entry("old", 10, 5, 100), entry("middle", 10, 5, 500)];
        assert!(names(&entries, 30).is_empty());
        assert_eq!(names(&entries, 29), ["old"]);
        assert_eq!(names(&entries, 20), ["old"]);
        assert_eq!(names(&entries, 19), ["old", "middle"]);
        assert_eq!(names(&entries, 0), ["old", "middle", "new"]);
    }

    #[test]
    fn of_two_equally_old_the_one_that_saves_more_per_byte_stays() {
        let entries = [entry("long", 12, 100, 500), entry("short", 10, 10, 500)];
        assert_eq!(names(&entries, 12), ["short"]);
        // Ten times the tokens outweigh twice the age, and not a hundred times.
        let entries = [entry("long", 10, 100, 0), entry("short", 10, 10, 500)];
        assert_eq!(names(&entries, 10), ["short"]);
        let entries = [entry("long", 10, 100, 0), entry("short", 10, 10, 995)];
        assert_eq!(names(&entries, 10), ["long"]);
    }

    #[test]
    fn a_use_that_lies_in_the_future_is_one_of_now() {
        let entries = [entry("future", 10, 5, 5000), entry("old", 10, 5, 100)];
        assert_eq!(names(&entries, 10), ["old"]);
    }

    #[test]
    fn foreign_files_are_left_alone_and_abandoned_ones_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("0123456789abcdef0123456789abcdef");
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str| fs::write(folder.join(name), [0; 10]).unwrap();
        let state = format!("12-{}.state", "ab".repeat(16));
        [&state, "notes.txt", ".12.state.x.partial", "12-short.state"].into_iter().for_each(write);
        fs::write(dir.path().join("readme"), "mine").unwrap();
        let now = SystemTime::now();
        make_room(dir.path(), 10, now).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 4);
        make_room(dir.path(), 9, now + 2 * ABANDONED).unwrap();
        let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["12-short.state", "notes.txt"]);
        assert!(dir.path().join("readme").exists());
    }
}
