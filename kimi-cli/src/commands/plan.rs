//! `kimi-cli plan`.

use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kimi_model::open::Io;
use kimi_model::{BytesRead, Error, Model, Plan};
use kimi_paging::{Budget, TuneLimits, tune};
use serde_json::{Value, json};

use crate::args::PlanArgs;
use crate::exit::Exit;
use crate::source;
use crate::status::bytes;

/// What measuring the drive may cost.
const MEASUREMENT: TuneLimits = TuneLimits { bytes: 2_000_000_000, time: Duration::from_millis(500) };

/// Memory for the reads of the measurement.
const MEASUREMENT_BYTES: u64 = 256 << 20;

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<Exit> {
    let on_drive = source::is_model(&args.model);
    let mut model = if on_drive {
        source::model(Some(&args.model), Io::Direct, None)?
    } else {
        Arc::new(Model::outline(&source::geometry(&args.model)?)?)
    };
    let speed = match args.speed {
        Some(speed) => Some(speed * 1e9),
        None if on_drive => measure(&model)?,
        None => None,
    };
    if let Some(recipe) = args.packed.recipe() {
        model = Arc::new(model.outline_packed(&recipe)?);
    }

    let mut options = args.engine.options();
    options.positions = args.engine.context.min(model.config().max_position_embeddings);
    let floor = Plan::floor(&model, &options)?.total_bytes();
    let plan = match Plan::new(&model, &options) {
        Err(Error::DoesNotFit { needed, plan }) if args.output.json => {
            let mut json = describe(&args.model, &plan, needed, speed);
            json["fits"] = false.into();
            writeln!(stdout(), "{json:#}")?;
            return Ok(Exit::DoesNotFit);
        }
        plan => plan?,
    };
    if args.output.json {
        let mut json = describe(&args.model, &plan, floor, speed);
        json["fits"] = true.into();
        json["encodings"] = model
            .encodings()
            .into_iter()
            .map(|(part, names)| (part.to_owned(), Value::from(names)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        writeln!(stdout(), "{json:#}")?;
    } else {
        tell(&model, &plan, floor, speed)?;
    }
    Ok(Exit::Ok)
}

/// Bytes per second of the model's drive; `None` where nothing can be measured.
fn measure(model: &Model) -> anyhow::Result<Option<f64>> {
    let sources = model.checkpoint().index().sources();
    let tuning = tune(sources, &Budget::new(MEASUREMENT_BYTES), MEASUREMENT)?;
    Ok((tuning.bytes_per_second > 0).then_some(tuning.bytes_per_second as f64))
}

fn describe(model: &Path, plan: &Plan, floor: u64, speed: Option<f64>) -> Value {
    let BytesRead { trunk, experts, head, kv, other, .. } = plan.reads;
    let items: Vec<_> =
        plan.items.iter().map(|item| json!({ "what": item.what, "bytes": item.bytes })).collect();
    json!({
        "model": model.display().to_string(),
        "limit_bytes": plan.limit_bytes,
        "floor_bytes": floor,
        "total_bytes": plan.total_bytes(),
        "items": items,
        "columns": plan.columns,
        "positions": plan.positions,
        "tile_bytes": plan.tile_bytes,
        "ring_depth": plan.ring_depth,
        "expert_slots": plan.expert_slots,
        "tape_bytes": plan.tape_bytes,
        "bytes_per_token": { "trunk": trunk, "experts": experts, "head": head, "kv": kv, "other": other },
        "bytes_per_token_total": plan.reads.total(),
        "drive_bytes_per_second": speed,
        "seconds_per_token": speed.map(|speed| plan.reads.total() as f64 / speed),
    })
}

fn tell(model: &Model, plan: &Plan, floor: u64, speed: Option<f64>) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{plan}")?;
    writeln!(out, "{:>12.1} MB  at least", floor as f64 / 1e6)?;
    writeln!(out)?;
    let BytesRead { trunk, experts, head, kv, other, .. } = plan.reads;
    for (name, part) in
        [("trunk", trunk), ("experts", experts), ("head", head), ("latents", kv), ("embedding", other)]
    {
        let encodings = model.encodings().into_iter().find(|(of, _)| *of == name);
        let encodings = encodings.map_or_else(String::new, |(_, names)| format!(" ({})", names.join(", ")));
        if part > 0 {
            writeln!(out, "{:>12.3} GB  {name}{encodings}", part as f64 / 1e9)?;
        }
    }
    writeln!(out, "{:>12.3} GB  read per token", plan.reads.total() as f64 / 1e9)?;
    match speed {
        Some(speed) => writeln!(
            out,
            "{:>12.3} s   per token, for a drive that reads {} a second",
            plan.reads.total() as f64 / speed,
            bytes(speed as u64)
        )?,
        None => writeln!(out, "              --speed GB/s tells the seconds per token")?,
    }
    Ok(())
}
