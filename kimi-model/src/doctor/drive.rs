//! Where a model lies or would lie: kind of file system, room, speed, reads past the page cache.

use std::sync::atomic::AtomicBool;

use kimi_paging::{Backend, ReadSettings};

use super::{DoctorOptions, Finding, file_system, size};
use crate::bench::BenchError;
use crate::bench::disk::{self, DiskOptions, DiskProgress, DiskReport, Pattern, Reading};
use crate::drive::free_bytes;

/// The released checkpoint of K3, and the same packed without loss.
const K3_BYTES: u64 = 1_560_936_091_448;
const K3_PACKED_BYTES: u64 = 1_532_000_000_000;

/// What a full-size model should be read with at least, in bytes a second: a token of K3 takes two minutes then.
const SLOW: f64 = 1e9;

pub(super) fn examine(
    options: &DoctorOptions,
    progress: &dyn Fn(DiskProgress),
    cancel: &AtomicBool,
) -> Result<(Vec<Finding>, Option<f64>), BenchError> {
    let dir = &options.dir;
    let mut findings = Vec::new();
    if let Some(found) = file_system(dir) {
        let text = format!("{} lies on {} ({})", dir.display(), found.kind, found.device);
        findings.push(if found.is_remote() {
            let advice =
                "bytes come over a network or through a process; put the model on a drive of this machine";
            Finding::warning("drive", text, advice)
        } else if found.is_memory() {
            Finding::warning("drive", text, "a model there takes the memory that it is to run in")
        } else {
            Finding::good("drive", text)
        });
    }
    let free = free_bytes(dir).ok().flatten();
    findings.extend(free.map(room));
    if options.drive_time.is_zero() {
        return Ok((findings, None));
    }
    let mut bench = DiskOptions::default();
    bench.patterns = vec![Pattern::Tape];
    bench.readings =
        vec![Reading::direct(ReadSettings::threads(4)), Reading::direct(ReadSettings::uring(16, 1 << 20))];
    bench.time = options.drive_time / bench.readings.len() as u32;
    bench.size = options.file_bytes.min(free.unwrap_or(u64::MAX) / 2);
    match disk::measure(dir, &bench, progress, cancel) {
        Ok(report) => {
            let speed = fastest(&report);
            findings.extend(speeds(&report, speed));
            Ok((findings, Some(speed)))
        }
        Err(BenchError::Cancelled) => Err(BenchError::Cancelled),
        Err(error) => {
            let why = std::error::Error::source(&error).map_or_else(String::new, |why| format!(": {why}"));
            let advice = "check that the folder exists and can be written to, or name the folder of a model";
            findings.push(Finding::warning("drive", format!("not measured: {error}{why}"), advice));
            Ok((findings, None))
        }
    }
}

fn room(free: u64) -> Finding {
    let text = format!("{} free", size(free));
    match free {
        K3_BYTES.. => Finding::good("drive", format!("{text}: room for the released K3")),
        K3_PACKED_BYTES.. => Finding::good("drive", format!("{text}: room for a packed K3")),
        _ => Finding::good("drive", format!("{text}: K3 takes {} as released", size(K3_BYTES))),
    }
}

fn fastest(report: &DiskReport) -> f64 {
    report.rows.iter().map(|row| row.bytes_per_second.median).fold(0.0, f64::max)
}

fn speeds(report: &DiskReport, speed: f64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let direct = report.rows.iter().all(|row| row.backend == Backend::Direct);
    for note in &report.notes {
        let advice = match direct {
            true => "threads read instead; nothing is lost but a little speed",
            false => {
                "use a file system with direct I/O (ext4, xfs, btrfs): reads through the page cache crowd other memory out"
            }
        };
        findings.push(Finding::warning("drive", note.clone(), advice));
    }
    let how = if direct { "past the page cache" } else { "through the page cache, dropped first" };
    let text = format!("reads {:.2} GB/s, {how}", speed / 1e9);
    findings.push(match speed {
        SLOW.. => Finding::good("drive", text),
        _ => Finding::warning(
            "drive",
            text,
            "a token of a model larger than the memory takes its bytes by that speed; a faster drive helps more than anything else",
        ),
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn room_is_compared_with_the_model() {
        for (free, expected) in [(u64::MAX, "released"), (K3_PACKED_BYTES, "packed"), (5, "takes 1.56 TB")] {
            let found = room(free);
            assert!(found.verdict == Verdict::Good && found.found.contains(expected), "{found:?}");
        }
    }

    #[test]
    fn an_unwritable_place_is_a_finding_and_no_speed() {
        let mut options = DoctorOptions::new("/no such folder".as_ref());
        options.file_bytes = 1 << 20;
        let (findings, speed) = examine(&options, &|_| (), &AtomicBool::new(false)).unwrap();
        assert_eq!(speed, None);
        assert!(findings.iter().any(|found| found.found.contains("not measured")), "{findings:?}");
    }

    #[test]
    fn an_end_asked_for_is_the_only_error() {
        let dir = tempfile::tempdir().unwrap();
        let options = DoctorOptions::new(dir.path());
        let error = examine(&options, &|_| (), &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(error, BenchError::Cancelled), "{error}");
    }
}
