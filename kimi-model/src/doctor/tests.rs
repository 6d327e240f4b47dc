use std::fs;

use kimi_testing::{demo_model, kimi_k3_oracle};

use super::*;

fn options(dir: &Path) -> DoctorOptions {
    let mut options = DoctorOptions::new(dir);
    (options.drive_time, options.file_bytes) = (Duration::ZERO, 1 << 20);
    options
}

/// A copy of the small checkpoint.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(kimi_k3_oracle()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_file() && !name.starts_with("expected") {
            fs::copy(&path, dir.path().join(name)).unwrap();
        }
    }
    dir
}

fn examine_quietly(options: &DoctorOptions) -> Examination {
    examine(options, &|_| (), &AtomicBool::new(false)).unwrap()
}

fn of_model(examination: &Examination) -> Vec<&Finding> {
    examination.findings.iter().filter(|finding| finding.topic == "model").collect()
}

#[test]
fn a_sound_model_is_found_with_its_floor_and_plan() {
    let examination = examine_quietly(&options(&demo_model()));
    let model = examination.model.as_ref().unwrap();
    assert!(model.tokenizer && !model.packed && model.floor_bytes > 0);
    let plan = model.plan.as_ref().unwrap();
    assert!(plan.total_bytes() <= plan.limit_bytes);
    assert!(of_model(&examination).iter().all(|finding| finding.verdict == Verdict::Good));
    let read = plan.reads.total() as f64;
    assert_eq!(model.seconds_per_token(2.0), Some(read / 2.0));
}

#[test]
fn too_little_memory_and_a_missing_tokenizer_are_told_with_a_remedy() {
    let mut options = options(&kimi_k3_oracle());
    options.engine.ram_bytes = Some(1 << 20);
    let examination = examine_quietly(&options);
    assert!(examination.model.as_ref().unwrap().plan.is_none());
    assert_eq!(examination.verdict(), Verdict::Problem);
    let advice: Vec<_> = of_model(&examination).iter().filter_map(|found| found.advice.as_deref()).collect();
    assert!(advice[0].contains("tiktoken.model") && advice[1].contains("--ram"), "{advice:?}");
}

#[test]
fn a_broken_model_is_a_problem_that_names_the_file() {
    let dir = copy();
    let shard = dir.path().join("model-00002-of-000003.safetensors");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() / 2]).unwrap();
    let examination = examine_quietly(&options(dir.path()));
    let found = of_model(&examination);
    assert!(examination.model.is_none() && found.len() == 1);
    assert!(found[0].verdict == Verdict::Problem && found[0].found.contains("model-00002"), "{found:?}");
}

#[test]
fn a_folder_without_a_model_is_measured_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.drive_time = Duration::from_millis(1);
    let examination = examine_quietly(&options);
    assert!(examination.drive_bytes_per_second.unwrap() > 0.0);
    assert!(examination.model.is_none() && of_model(&examination).is_empty());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    for topic in ["processor", "threads", "memory", "drive"] {
        assert!(examination.findings.iter().any(|finding| finding.topic == topic), "{topic}");
    }
}

#[cfg(unix)]
#[test]
fn holes_are_noticed() {
    let dir = copy();
    // A shard of which only the header was written.
    fs::remove_file(dir.path().join("model.safetensors.index.json")).unwrap();
    let header = br#"{"x":{"dtype":"U8","shape":[67108864],"data_offsets":[0,67108864]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    let hollow = dir.path().join("model-00004-of-000004.safetensors");
    fs::write(&hollow, &bytes).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&hollow)
        .unwrap()
        .set_len(bytes.len() as u64 + 67_108_864)
        .unwrap();
    let examination = examine_quietly(&options(dir.path()));
    let found = of_model(&examination);
    assert!(found.iter().any(|finding| finding.found.contains("holes")), "{found:?}");
}
