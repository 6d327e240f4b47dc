//! Configurations of small models that have every kind of layer.

use std::path::Path;

use kimi_model::synth::Geometry;
use serde_json::{Value, json};

/// Layers of both kinds, with every matrix larger than what a sparse model keeps of it.
pub(crate) fn small(layers: usize) -> Value {
    let (full, kda): (Vec<usize>, Vec<usize>) = (1..=layers).partition(|i| i % 4 == 0 || *i == layers);
    json!({
        "model_type": "kimi_k3",
        "eos_token_id": 1,
        "text_config": {
            "hidden_size": 256, "vocab_size": 320, "num_hidden_layers": layers, "rms_norm_eps": 1e-5,
            "num_attention_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16,
            "v_head_dim": 48, "mla_use_output_gate": true, "intermediate_size": 384, "hidden_act": "situ",
            "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12,
            "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 2, "moe_intermediate_size": 160,
            "routed_expert_hidden_size": 128, "latent_moe_use_norm": true, "first_k_dense_replace": 1,
            "linear_attn_config": {
                "num_heads": 4, "head_dim": 64, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
                "kda_layers": kda, "full_attn_layers": full
            }
        }
    })
}

pub(crate) fn geometry(config: &Value) -> Geometry {
    Geometry::from_json(config.to_string().as_bytes(), Path::new("config.json")).unwrap()
}

/// The shape of DeepSeek-V3 in small.
pub(crate) fn small_deepseek() -> Value {
    json!({
        "model_type": "kimi_k2", "hidden_size": 256, "vocab_size": 320, "num_hidden_layers": 4, "rms_norm_eps": 1e-6,
        "num_attention_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16,
        "v_head_dim": 48, "rope_theta": 50000.0, "intermediate_size": 384, "hidden_act": "silu", "first_k_dense_replace": 2,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 160,
        "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5
    })
}
