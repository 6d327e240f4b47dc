//! What opening the index of the released Kimi K3 costs: bytes held, memory needed on the way, seconds.
//!
//! Builds the 96 shards of the release as sparse files (headers only; 1.56 TB of holes take no space) with an index file in a
//! temporary folder, or in FOLDER where they stay for the next run, then opens them; with `direct` past the page cache.
//! `cargo run --release -p kimi-paging --example index_cost [FOLDER [direct]]`

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kimi_paging::{FileSource, Source, TensorIndex, current_rss_bytes, peak_rss_bytes};

#[path = "../tests/support/k3.rs"]
mod k3;

const INDEX_FILE: &str = "model.safetensors.index.json";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Building happens in another process, so that its memory does not hide the peak of opening.
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let [flag, dir] = &args[..]
        && flag == "--build"
    {
        return Ok(build(Path::new(dir))?);
    }
    let temporary = tempfile::tempdir()?;
    let dir = args.first().map_or(temporary.path(), Path::new);
    if !dir.join(INDEX_FILE).exists() {
        let built = std::process::Command::new(std::env::current_exe()?).arg("--build").arg(dir).status()?;
        if !built.success() {
            return Err("building the shards failed".into());
        }
    }

    let before = current_rss_bytes();
    let start = Instant::now();
    let direct = args.get(1).is_some_and(|word| word == "direct");
    let index = TensorIndex::open(dir, &mut |path| {
        let file = if direct { FileSource::open_direct(path)? } else { FileSource::open(path)? };
        Ok(Arc::new(file) as Arc<dyn Source>)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let template =
        index.template("language_model.model.layers.{}.block_sparse_moe.experts.{}.w2.weight_scale");
    let template = template.ok_or("no experts")?;
    let found = (1..93).flat_map(|layer| (0..896).map(move |expert| [layer, expert]));
    let found = found.filter(|numbers| index.at(template, numbers).is_some()).count();
    let lookup_ns = start.elapsed().as_nanos() as f64 / f64::from(92 * 896);

    println!("tensors             {:>12}", index.len());
    println!("experts found       {found:>12}");
    println!("heap of the index   {:>12} bytes", index.heap_bytes());
    println!("seconds to open     {seconds:>12.3}");
    println!("ns per look-up      {lookup_ns:>12.0}");
    if let (Some(before), Some(now), Some(peak)) = (before, current_rss_bytes(), peak_rss_bytes()) {
        println!("resident before     {before:>12} bytes");
        println!("resident after      {now:>12} bytes");
        println!("peak while opening  {:>12} bytes above before", peak.saturating_sub(before));
    }
    Ok(())
}

fn build(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    for shard in 0..k3::SHARDS {
        let (header, data) = k3::header(shard);
        let mut file = File::create(dir.join(k3::shard_name(shard)))?;
        file.write_all(&header)?;
        file.set_len(header.len() as u64 + data)?;
    }
    std::fs::write(dir.join(INDEX_FILE), k3::index_json())
}
