//! The tensors of the released Kimi K3: names, types and shapes, without their data.

/// The files of the release.
pub(crate) const SHARDS: usize = 96;

/// The tensors of the release.
pub(crate) const TENSORS: usize = 497_220;

/// The bytes of all tensors of the language model, vision tower and projector, as the index of the release says.
pub(crate) const TOTAL_BYTES: u64 = 1_560_860_324_864;

/// The name of a shard, counted from 0.
pub(crate) fn shard_name(shard: usize) -> String {
    format!("model-{:05}-of-{:06}.safetensors", shard + 1, SHARDS)
}

/// Gives every tensor of one shard to `each`: name, type, shape.
pub(crate) fn shard_tensors(shard: usize, mut each: impl FnMut(&str, &str, &[u64])) {
    match shard {
        0..93 => layer(shard, &mut |name, dtype, shape| {
            each(&format!("language_model.model.layers.{shard}.{name}"), dtype, shape);
        }),
        93 => {
            let mut each = |name: &str, shape: &[u64]| each(&format!("language_model.{name}"), "BF16", shape);
            each("model.embed_tokens.weight", &[163_840, 7168]);
            each("lm_head.weight", &[163_840, 7168]);
            each("model.norm.weight", &[7168]);
            each("model.output_attn_res_norm.weight", &[7168]);
            each("model.output_attn_res_proj.weight", &[1, 7168]);
        }
        94 => {
            each("mm_projector.proj.0.weight", "BF16", &[1, 2]);
            each("mm_projector.proj.2.weight", "BF16", &[1, 2]);
            each("mm_projector.post_norm.weight", "BF16", &[2]);
        }
        _ => {
            each("vision_tower.patch_embed.proj.weight", "BF16", &[1, 2]);
            each("vision_tower.patch_embed.pos_emb.weight", "BF16", &[1, 2]);
            for block in 0..27 {
                for part in ["norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1"] {
                    each(&format!("vision_tower.encoder.blocks.{block}.{part}.weight"), "BF16", &[1, 2]);
                }
            }
            each("vision_tower.encoder.final_layernorm.weight", "BF16", &[2]);
        }
    }
}

fn layer(layer: usize, each: &mut dyn FnMut(&str, &str, &[u64])) {
    for name in ["input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"] {
        each(&format!("{name}.weight"), "BF16", &[7168]);
    }
    for name in ["self_attention_res_proj", "mlp_res_proj"] {
        each(&format!("{name}.weight"), "BF16", &[1, 7168]);
    }
    each("self_attn.g_proj.weight", "BF16", &[12288, 7168]);
    each("self_attn.o_proj.weight", "BF16", &[7168, 12288]);
    if layer % 4 == 3 || layer == 92 {
        each("self_attn.q_a_proj.weight", "BF16", &[1536, 7168]);
        each("self_attn.q_a_layernorm.weight", "BF16", &[1536]);
        each("self_attn.q_b_proj.weight", "BF16", &[18432, 1536]);
        each("self_attn.kv_a_proj_with_mqa.weight", "BF16", &[576, 7168]);
        each("self_attn.kv_a_layernorm.weight", "BF16", &[512]);
        each("self_attn.kv_b_proj.weight", "BF16", &[24576, 512]);
    } else {
        for part in ["q", "k", "v"] {
            each(&format!("self_attn.{part}_proj.weight"), "BF16", &[12288, 7168]);
            each(&format!("self_attn.{part}_conv1d.weight"), "F32", &[12288, 1, 4]);
        }
        each("self_attn.f_a_proj.weight", "BF16", &[128, 7168]);
        each("self_attn.f_b_proj.weight", "BF16", &[12288, 128]);
        each("self_attn.b_proj.weight", "BF16", &[96, 7168]);
        each("self_attn.A_log", "F32", &[128]);
        each("self_attn.dt_bias", "F32", &[12288]);
        each("self_attn.o_norm.weight", "F32", &[128]);
    }
    if layer == 0 {
        each("mlp.gate_proj.weight", "BF16", &[33792, 7168]);
        each("mlp.up_proj.weight", "BF16", &[33792, 7168]);
        each("mlp.down_proj.weight", "BF16", &[7168, 33792]);
        return;
    }
    each("block_sparse_moe.gate.weight", "BF16", &[896, 7168]);
    each("block_sparse_moe.gate.e_score_correction_bias", "F32", &[896]);
    each("block_sparse_moe.routed_expert_down_proj.weight", "BF16", &[3584, 7168]);
    each("block_sparse_moe.routed_expert_up_proj.weight", "BF16", &[7168, 3584]);
    each("block_sparse_moe.routed_expert_norm.weight", "BF16", &[3584]);
    each("block_sparse_moe.shared_experts.gate_proj.weight", "BF16", &[6144, 7168]);
    each("block_sparse_moe.shared_experts.up_proj.weight", "BF16", &[6144, 7168]);
    each("block_sparse_moe.shared_experts.down_proj.weight", "BF16", &[7168, 6144]);
    for expert in 0..896 {
        for (part, rows, cols) in [("w1", 3072, 1792), ("w2", 3584, 1536), ("w3", 3072, 1792)] {
            let name = format!("block_sparse_moe.experts.{expert}.{part}");
            each(&format!("{name}.weight_packed"), "U8", &[rows, cols]);
            each(&format!("{name}.weight_scale"), "U8", &[rows, cols / 16]);
        }
    }
}

/// The header of one shard with its length before it, and the bytes of data that follow.
pub(crate) fn header(shard: usize) -> (Vec<u8>, u64) {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut end = 0;
    shard_tensors(shard, |name, dtype, shape| {
        let size = match dtype {
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let begin = end;
        end += size * shape.iter().product::<u64>();
        json += &format!(
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}"
        );
    });
    json.push('}');
    // Writers pad the header so that data begin on eight bytes.
    json.extend(std::iter::repeat_n(' ', (8 - json.len() % 8) % 8));
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json.as_bytes());
    (file, end)
}

/// The `model.safetensors.index.json` of the release, tensors sorted by name as its writer does.
pub(crate) fn index_json() -> Vec<u8> {
    let mut pairs = Vec::with_capacity(TENSORS);
    for shard in 0..SHARDS {
        shard_tensors(shard, |name, _, _| pairs.push((name.to_owned(), shard)));
    }
    pairs.sort_unstable();
    let mut json = format!("{{\"metadata\": {{\"total_size\": {TOTAL_BYTES}}},\n  \"weight_map\": {{\n");
    for (at, (name, shard)) in pairs.iter().enumerate() {
        let comma = if at + 1 < pairs.len() { "," } else { "" };
        json += &format!("    \"{name}\": \"{}\"{comma}\n", shard_name(*shard));
    }
    json += "  }\n}\n";
    json.into_bytes()
}
