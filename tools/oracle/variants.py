#!/usr/bin/env python3
"""Make the fixture `kimi_k3_defaults`: the K3 graph with every optional field of its configuration absent.

    variants.py [OUTDIR]          (default: kimi-model/tests/golden; needs numpy)

What differs from `kimi_k3`: no decay bound (softplus decay), no Attention Residuals, no latent for the experts, no output gate in
MLA, a low-rank output gate in KDA, no cap on the linear branch of the activation, no renormalisation of the expert weights but
a scaling factor, the output matrix tied to the embedding, tensor names without `language_model.`, experts stored as BF16 in one
layer, `A_log` unpadded, the router in F32, the convolutions in BF16, and a single file without an index. Expected values come
from reference.py in float64.
"""
import json
import os
import shutil
import sys

import numpy as np

import generate as gen
import reference as ref

HERE = os.path.dirname(os.path.abspath(__file__))


def model(seed):
    text = {
        "model_type": "kimi_linear", "activation_situ_beta": 4.0, "hidden_act": "situ", "hidden_size": 64, "intermediate_size": 96,
        "kv_lora_rank": 24, "linear_attn_config": {"full_attn_layers": [3, 5], "kda_layers": [1, 2, 4], "head_dim": 16, "num_heads": 3,
                                                   "short_conv_kernel_size": 4},
        "moe_intermediate_size": 32, "moe_renormalize": False, "num_attention_heads": 3, "num_experts": 7, "num_experts_per_token": 2,
        "num_hidden_layers": 5, "q_lora_rank": 40, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.7, "v_head_dim": 10, "vocab_size": 384, "first_k_dense_replace": 2}
    config = {"model_type": "kimi_k3", "tie_word_embeddings": True, "text_config": text}
    m, t = gen.Maker(seed), text
    D, F = t["hidden_size"], t["moe_intermediate_size"]
    m.lin("model.embed_tokens", t["vocab_size"], D, np.sqrt(D) / 4)
    m.norm("model.norm", D)
    for i in range(t["num_hidden_layers"]):
        p = f"model.layers.{i}"
        m.norm(p + ".input_layernorm", D)
        m.norm(p + ".post_attention_layernorm", D)
        if i + 1 in t["linear_attn_config"]["kda_layers"]:
            gen.kda_tensors(m, p + ".self_attn", t, False)
        else:
            gen.mla_tensors(m, p + ".self_attn", t)
        if i < t["first_k_dense_replace"]:
            gen.mlp_tensors(m, p + ".mlp", D, t["intermediate_size"])
            continue
        b = p + ".block_sparse_moe"
        m.f32(b + ".gate.weight", m.r.normal(0, 1.5 / np.sqrt(D), (t["num_experts"], D)))
        m.f32(b + ".gate.e_score_correction_bias", 0.2 * m.r.normal(size=t["num_experts"]))
        for e in range(t["num_experts"]):
            for w, (o, n) in {"w1": (F, D), "w3": (F, D), "w2": (D, F)}.items():
                if i == 2:
                    m.lin(f"{b}.experts.{e}.{w}", o, n, 1.5)
                else:
                    m.mxfp4(f"{b}.experts.{e}.{w}", o, n, (120, 123))
    return config, m.t


def build(outdir):
    out = os.path.join(outdir, "kimi_k3_defaults")
    for seed in range(2000, 2400):
        config, tensors = model(seed)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=1)
        # The reference reads shards through an index; the fixture keeps the one file and drops the index.
        gen.write_safetensors(os.path.join(out, "model.safetensors"), tensors)
        index = os.path.join(out, "model.safetensors.index.json")
        json.dump({"weight_map": {name: "model.safetensors" for name in tensors}}, open(index, "w"))
        ids = np.random.default_rng(seed + 1).integers(0, 384, gen.PROMPT).tolist()
        r, info = gen.run_reference(out, ids)
        if info["greedy_margin"] > 0.03 and info["router_margin"] > 4e-4 and info["float32_error"] < 4e-5 and len(set(r["greedy_ids"])) > 4:
            break
    else:
        raise SystemExit("no seed with clear margins")
    os.remove(index)
    expected = {"input_ids": np.array([ids], np.int64), "logits": r["logits"][None].astype(np.float32),
                "greedy_ids": np.array(r["greedy_ids"], np.int64), "greedy_logits": r["greedy_logits"].astype(np.float32)}
    for k, v in r["trace"].items():
        if k.startswith("hidden."):
            expected[k] = v[None].astype(np.float32)
    gen.write_safetensors(os.path.join(out, "expected.safetensors"), expected)
    info.update(seed=seed, logits_std=float(r["logits"].std()))
    json.dump(info, open(os.path.join(out, "expected.json"), "w"), indent=1)
    print(info)


if __name__ == "__main__":
    build(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../../kimi-model/tests/golden"))
