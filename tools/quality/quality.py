#!/usr/bin/env python3
"""What each encoding costs: measures the demo model, and writes docs/quality.md from the measurements.

    cargo build --release
    python3 tools/quality/quality.py measure TEXT      # docs/quality.json, about a minute a row on two cores
    python3 tools/quality/quality.py write             # docs/quality.md and its pictures, from docs/quality.json

TEXT is a text that the model was not trained on. The program is target/release/kimi-cli, or what KIMI_CLI names.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("KIMI_CLI", str(ROOT / "target/release/kimi-cli"))
DEMO = ROOT / "kimi-cli/demo/model"
RECORD = ROOT / "docs/quality.json"

# Label, options of `pack` and `plan`, options of `eval`.
ROWS = [
    ("bf12", ["--trunk", "bf12"], []),
    ("i8:g128", ["--trunk", "i8"], []),
    ("i6:g64", ["--trunk", "i6"], []),
    ("i4:g128", ["--trunk", "i4:g128"], []),
    ("i4:g64", ["--trunk", "i4:g64"], []),
    ("i4:g32", ["--trunk", "i4"], []),
    ("i4:g32:zp", ["--trunk", "i4:g32:zp"], []),
    ("i4:g32:cb", ["--trunk", "i4:g32:cb"], []),
    ("i3:g32", ["--trunk", "i3"], []),
    ("i2:g32", ["--trunk", "i2"], []),
    ("bf12, experts i4", ["--trunk", "bf12", "--experts", "i4"], []),
    ("bf12, experts i3", ["--trunk", "bf12", "--experts", "i3"], []),
    ("bf12, experts i2", ["--trunk", "bf12", "--experts", "i2"], []),
    ("i4:g32:cb, experts i3", ["--trunk", "i4:g32:cb", "--experts", "i3"], []),
    ("bf12, latents bf16", ["--trunk", "bf12"], ["--kv", "bf16"]),
    ("bf12, fast", ["--trunk", "bf12"], ["--arith", "fast"]),
    ("i8:g128, fast", ["--trunk", "i8"], ["--arith", "fast"]),
    ("i4:g32, fast", ["--trunk", "i4"], ["--arith", "fast"]),
    ("i4:g32:cb, fast", ["--trunk", "i4:g32:cb"], ["--arith", "fast"]),
]

# Every kind of matrix alone at four bits, all others without loss: what the lists of `pack` rest on.
KINDS = {
    "KDA query, key, value": ["*.self_attn.q_proj.weight", "*.self_attn.k_proj.weight", "*.self_attn.v_proj.weight"],
    "attention gate": ["*.self_attn.g_proj.weight"],
    "attention output": ["*.self_attn.o_proj.weight"],
    "KDA decay and beta": ["*.self_attn.f_a_proj.weight", "*.self_attn.f_b_proj.weight", "*.self_attn.b_proj.weight"],
    "MLA query, low rank": ["*.self_attn.q_a_proj.weight", "*.self_attn.q_b_proj.weight"],
    "MLA latent": ["*.self_attn.kv_a_proj_with_mqa.weight"],
    "MLA keys and values": ["*.self_attn.kv_b_proj.weight*"],
    "router": ["*.block_sparse_moe.gate.weight"],
    "dense and shared experts": [
        "*.mlp.gate_proj.weight", "*.mlp.up_proj.weight", "*.mlp.down_proj.weight", "*.shared_experts.*"],
    "latent of the experts": ["*.routed_expert_down_proj.weight", "*.routed_expert_up_proj.weight"],
    "output matrix": ["*lm_head.weight"],
    "embedding": ["*embed_tokens.weight"],
}


def kimi(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def measure_row(pack, evaluate, text, folder, windows=None):
    target = pathlib.Path(folder) / "packed"
    kimi("pack", str(DEMO), str(target), "-q", *pack)
    limit = ["--windows", str(windows)] if windows else []
    found = json.loads(kimi("eval", str(target), "--text", text, "--against", "demo", "--layers", "--json", "-q",
                            *evaluate, *limit))
    for file in target.iterdir():
        file.unlink()
    target.rmdir()
    return found


def measure(text):
    record = {"text_bytes": os.path.getsize(text), "rows": [], "kinds": []}
    with tempfile.TemporaryDirectory() as folder:
        for label, pack, evaluate in ROWS:
            found = measure_row(pack, evaluate, text, folder)
            plan = json.loads(kimi("plan", "k3", "--ram", "8GB", "--kv", "bf16", "--chunk", "1", "--json", *pack))
            row = {
                "label": label, "pack": pack, "eval": evaluate, "tokens": found["tokens"],
                "nats": found["nats_per_token"], "reference_nats": found["reference_nats_per_token"],
                "divergence": found["divergence"], "first_agreement": found["first_agreement"],
                "top10_agreement": found["top10_agreement"], "logit_error": found["logit_error"],
                "layer_errors": found["layer_errors"], "k3_gb_per_token": plan["bytes_per_token_total"] / 1e9,
            }
            record["rows"].append(row)
            print(f"{label}: {row['nats'] - row['reference_nats']:+.5f} nats", flush=True)
        for label, patterns in KINDS.items():
            pack = ["--trunk", "bf12", *(part for pattern in patterns for part in ("--set", f"{pattern}=i4"))]
            found = measure_row(pack, [], text, folder, windows=40)
            record["kinds"].append({
                "label": label, "patterns": patterns, "tokens": found["tokens"],
                "nats": found["nats_per_token"] - found["reference_nats_per_token"],
                "divergence": found["divergence"]["mean"], "logit_error": found["logit_error"]})
            print(f"{label}: {record['kinds'][-1]['divergence']:.2e}", flush=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def svg(name, title, x_label, y_label, width, height, body):
    text = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="11"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="{width / 2}" y="16" text-anchor="middle" font-size="13">{title}</text>'
            f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">{x_label}</text>'
            f'<text x="12" y="{height / 2}" text-anchor="middle" transform="rotate(-90 12 {height / 2})">{y_label}</text>'
            + body + "</svg>\n")
    (ROOT / "docs" / name).write_text(text)


def draw_curve(rows):
    import math
    points = [(r["k3_gb_per_token"], max(r["divergence"]["mean"], 1e-7), r["label"]) for r in rows if not r["eval"]]
    points = [p for p in points if p[1] > 1e-7]
    left, right, top, bottom, width, height = 60, 20, 30, 40, 720, 420
    x0, x1 = min(p[0] for p in points) - 3, max(p[0] for p in points) + 3
    y0, y1 = math.floor(min(math.log10(p[1]) for p in points)), math.ceil(max(math.log10(p[1]) for p in points))
    at_x = lambda v: left + (v - x0) / (x1 - x0) * (width - left - right)
    at_y = lambda v: height - bottom - (math.log10(v) - y0) / (y1 - y0) * (height - top - bottom)
    body = ""
    for power in range(y0, y1 + 1):
        y = at_y(10 ** power)
        body += f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        body += f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>'
    for value in range(int(x0) // 10 * 10 + 10, int(x1) + 1, 10):
        x = at_x(value)
        body += f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}" stroke="#eee"/>'
        body += f'<text x="{x:.1f}" y="{height - bottom + 14}" text-anchor="middle">{value}</text>'
    for x, y, label in points:
        body += f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="4" fill="#245"/>'
        body += f'<text x="{at_x(x) + 6:.1f}" y="{at_y(y) - 5:.1f}">{label}</text>'
    svg("quality-divergence.svg", "Divergence of the demo model against bytes per token of K3 at 8 GB",
        "GB per token", "mean divergence, nats", width, height, body)


def draw_layers(rows):
    chosen = [r for r in rows if r["label"] in ("i8:g128", "i6:g64", "i4:g32", "i4:g32:cb", "i3:g32", "i2:g32")]
    left, right, top, bottom, width, height = 60, 110, 30, 40, 720, 420
    layers = len(chosen[0]["layer_errors"])
    highest = max(max(r["layer_errors"]) for r in chosen)
    at_x = lambda v: left + v / max(layers - 1, 1) * (width - left - right)
    at_y = lambda v: height - bottom - v / highest * (height - top - bottom)
    body, colours = "", ["#245", "#37a", "#2a7", "#a73", "#a37", "#733"]
    for step in range(6):
        value = highest * step / 5
        body += f'<line x1="{left}" x2="{width - right}" y1="{at_y(value):.1f}" y2="{at_y(value):.1f}" stroke="#eee"/>'
        body += f'<text x="{left - 6}" y="{at_y(value) + 4:.1f}" text-anchor="end">{value * 100:.0f} %</text>'
    for layer in range(layers):
        body += f'<text x="{at_x(layer):.1f}" y="{height - bottom + 14}" text-anchor="middle">{layer}</text>'
    for row, colour in zip(chosen, colours):
        path = " ".join(f"{at_x(i):.1f},{at_y(v):.1f}" for i, v in enumerate(row["layer_errors"]))
        body += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        end = row["layer_errors"][-1]
        body += f'<text x="{width - right + 6}" y="{at_y(end) + 4:.1f}" fill="{colour}">{row["label"]}</text>'
    svg("quality-layers.svg", "Relative error of the hidden states of the demo model", "layer", "relative error",
        width, height, body)


def write():
    record = json.loads(RECORD.read_text())
    rows = record["rows"]
    draw_curve(rows)
    draw_layers(rows)
    main = table(
        ["trunk", "nats lost", "divergence: mean", "median", "99 %", "same first", "same ten first", "logit error",
         "K3, GB per token at 8 GB"],
        [[r["label"], f"{r['nats'] - r['reference_nats']:+.5f}", f"{r['divergence']['mean']:.2e}",
          f"{r['divergence']['median']:.2e}", f"{r['divergence']['p99']:.2e}", f"{r['first_agreement'] * 100:.2f} %",
          f"{r['top10_agreement'] * 100:.2f} %", f"{r['logit_error'] * 100:.2f} %", f"{r['k3_gb_per_token']:.1f}"]
         for r in rows])
    kinds = table(
        ["at i4:g32", "nats lost", "mean divergence", "logit error"],
        [[k["label"], f"{k['nats']:+.5f}", f"{k['divergence']:.2e}", f"{k['logit_error'] * 100:.2f} %"]
         for k in record["kinds"]])
    tokens, reference = rows[0]["tokens"], rows[0]["reference_nats"]
    text = (ROOT / "tools/quality/quality.md.in").read_text()
    text = text.replace("@ROWS@", main).replace("@KINDS@", kinds).replace("@TOKENS@", f"{tokens:,}")
    text = text.replace("@REFERENCE@", f"{reference:.6f}").replace("@KIND_TOKENS@", f"{record['kinds'][0]['tokens']:,}")
    (ROOT / "docs/quality.md").write_text(text)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", text]:
            measure(text)
        case ["write"]:
            write()
        case _:
            sys.exit(__doc__)
