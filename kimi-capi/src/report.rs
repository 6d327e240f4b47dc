//! What a model is, how its memory is split and what it did, as JSON. Keys that `kimi-cli run --json` has too mean the same.

use std::sync::PoisonError;

use kimi_model::BytesRead;
use kimi_model::inspect::Summary;
use kimi_paging::peak_rss_bytes;
use serde_json::{Map, Value, json};

use crate::model::LoadedModel;

/// What the model is.
pub(crate) fn info(loaded: &LoadedModel) -> Value {
    let mut info = serde_json::to_value(Summary::new(&loaded.model)).unwrap_or_default();
    let config = loaded.model.config();
    let more = json!({
        "model": loaded.path.display().to_string(),
        "context": loaded.facts.plan.positions,
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": loaded.eos_token_ids,
        "has_tokenizer": loaded.has_tokenizer(),
        "encodings": encodings(loaded),
    });
    if let (Value::Object(info), Value::Object(more)) = (&mut info, more) {
        info.extend(more);
    }
    info
}

/// How its memory is split.
pub(crate) fn plan(loaded: &LoadedModel) -> Value {
    let plan = &loaded.facts.plan;
    let items: Vec<_> =
        plan.items.iter().map(|item| json!({"what": item.what, "bytes": item.bytes})).collect();
    json!({
        "limit_bytes": plan.limit_bytes,
        "total_bytes": plan.total_bytes(),
        "items": items,
        "columns": plan.columns,
        "positions": plan.positions,
        "tile_bytes": plan.tile_bytes,
        "ring_depth": plan.ring_depth,
        "expert_slots": plan.expert_slots,
        "pinned_bytes": plan.pinned_bytes,
        "all_pinned": plan.all_pinned,
        "tape_bytes": plan.tape_bytes,
    })
}

/// What it did: bytes up to now, the rest up to the end of the last call.
pub(crate) fn stats(loaded: &LoadedModel) -> Value {
    let facts = &loaded.facts;
    let work = *loaded.work.lock().unwrap_or_else(PoisonError::into_inner);
    let BytesRead { trunk, experts, head, kv, other, .. } = facts.counter.bytes();
    let (tape, urgent) = (work.reads.tape, work.reads.urgent);
    json!({
        "model": loaded.path.display().to_string(),
        "passes": work.passes,
        "tokens": work.tokens,
        "bytes_read": {"trunk": trunk, "experts": experts, "head": head, "kv": kv, "other": other},
        "io": {
            "backend": facts.backend.to_string(),
            "executor": facts.executor.as_str(),
            "fallbacks": facts.fallbacks,
            "reads": tape.reads + urgent.reads,
            "wait_seconds": (tape.wait_ns + urgent.wait_ns) as f64 * 1e-9,
            "active_seconds": work.reads.active_ns as f64 * 1e-9,
        },
        "budget_bytes": facts.budget.limit_bytes(),
        "ledger_peak_bytes": facts.budget.peak_bytes(),
        "peak_rss_bytes": peak_rss_bytes(),
        "columns": facts.plan.columns,
        "threads": facts.threads,
        "isa": facts.isa.name(),
        "arith": facts.arith.name(),
        "kv": facts.kv.name(),
        "encodings": encodings(loaded),
    })
}

fn encodings(loaded: &LoadedModel) -> Map<String, Value> {
    loaded.model.encodings().into_iter().map(|(part, names)| (part.to_owned(), names.into())).collect()
}
