//! The configurations of releases.

use serde_json::{Value, json};

/// The configuration of the release, with widths and numbers of heads divided by `divisor`.
pub(super) fn k3(divisor: usize, experts: usize) -> Value {
    let layers = 1..=93;
    let is_full = |layer: &usize| layer.is_multiple_of(4) || *layer == 93;
    let (full, kda): (Vec<usize>, Vec<usize>) = layers.partition(is_full);
    let mut text = json!({
        "model_type": "kimi_linear",
        "hidden_size": 7168 / divisor,
        "num_hidden_layers": 93,
        "vocab_size": 163_840,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1_048_576,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 12,
        "num_attention_heads": 96 / divisor,
        "num_key_value_heads": 96 / divisor,
        "q_lora_rank": 1536 / divisor,
        "kv_lora_rank": 512 / divisor,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": true,
        "mla_use_output_gate": true,
    });
    text["linear_attn_config"] = json!({
        "num_heads": 96 / divisor,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
        "use_full_rank_gate": true,
        "full_attn_layers": full,
        "kda_layers": kda,
    });
    let feed_forward = json!({
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "intermediate_size": 33_792 / divisor,
        "num_experts": experts,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "moe_intermediate_size": 3072 / divisor,
        "routed_expert_hidden_size": 3584 / divisor,
        "latent_moe_use_norm": true,
        "moe_renormalize": true,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": 1.0,
        "num_expert_group": 1,
        "topk_group": 1,
        "use_grouped_topk": true,
        "topk_method": "noaux_tc",
    });
    if let (Value::Object(text), Value::Object(feed_forward)) = (&mut text, feed_forward) {
        text.extend(feed_forward);
    }
    json!({
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "bos_token_id": 163_584,
        "eos_token_id": 163_586,
        "pad_token_id": 163_839,
        "tie_word_embeddings": false,
        "text_config": text,
    })
}

/// Kimi-Linear-48B-A3B.
pub(super) fn kimi_linear() -> Value {
    let is_full = |layer: &usize| layer.is_multiple_of(4) || *layer == 27;
    let (full, kda): (Vec<usize>, Vec<usize>) = (1..=27).partition(is_full);
    let mut config = json!({
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "bos_token_id": 163_584,
        "eos_token_id": 163_586,
        "pad_token_id": 163_839,
        "tie_word_embeddings": false,
        "hidden_size": 2304,
        "num_hidden_layers": 27,
        "vocab_size": 163_840,
        "rms_norm_eps": 1e-5,
        "model_max_length": 1_048_576,
        "hidden_act": "silu",
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "q_lora_rank": null,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": true,
        "rope_theta": 10000.0,
        "rope_scaling": null,
    });
    extend(
        &mut config,
        json!({
            "linear_attn_config": {
                "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4, "full_attn_layers": full, "kda_layers": kda,
            },
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "intermediate_size": 9216,
            "num_experts": 256,
            "num_experts_per_token": 8,
            "num_shared_experts": 1,
            "moe_intermediate_size": 1024,
            "moe_renormalize": true,
            "moe_router_activation_func": "sigmoid",
            "routed_scaling_factor": 2.446,
            "num_expert_group": 1,
            "topk_group": 1,
            "use_grouped_topk": true,
        }),
    );
    config
}

/// Moonlight-16B-A3B.
pub(super) fn moonlight() -> Value {
    let mut config = deepseek([2048, 27, 16], [64, 6, 2], [1408, 11_264]);
    extend(
        &mut config,
        json!({
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "eos_token_id": 163_586,
            "q_lora_rank": null,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "routed_scaling_factor": 2.446,
        }),
    );
    config
}

/// The text part of Kimi K2.5 and its relatives with INT4 experts.
pub(super) fn k2() -> Value {
    let mut text = deepseek([7168, 61, 64], [384, 8, 1], [2048, 18_432]);
    extend(
        &mut text,
        json!({
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "kimi_k2",
            "eos_token_id": 163_585,
            "q_lora_rank": 1536,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262_144,
            "routed_scaling_factor": 2.827,
            "rope_scaling": {
                "type": "yarn", "factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
            },
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": true, "type": "int"},
                    },
                },
                "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*"],
            },
        }),
    );
    json!({
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "bos_token_id": 163_584,
        "eos_token_id": 163_585,
        "pad_token_id": 163_839,
        "tie_word_embeddings": false,
        "text_config": text,
    })
}

/// What models of the DeepSeek-V3 shape have in common: hidden size, layers and heads; experts, those of a token and shared
/// ones; widths of experts and dense layers.
fn deepseek(
    [hidden, layers, heads]: [usize; 3],
    [experts, per_token, shared]: [usize; 3],
    [expert_width, width]: [usize; 2],
) -> Value {
    json!({
        "dtype": "bfloat16",
        "bos_token_id": 163_584,
        "tie_word_embeddings": false,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "vocab_size": 163_840,
        "hidden_act": "silu",
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rope_theta": 50000.0,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "intermediate_size": width,
        "n_routed_experts": experts,
        "num_experts_per_tok": per_token,
        "n_shared_experts": shared,
        "moe_intermediate_size": expert_width,
        "norm_topk_prob": true,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
    })
}

fn extend(config: &mut Value, more: Value) {
    if let (Value::Object(config), Value::Object(more)) = (config, more) {
        config.extend(more);
    }
}
