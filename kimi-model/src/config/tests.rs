use super::*;
use serde_json::json;

fn parse(value: &Value) -> Result<Config, ConfigError> {
    Config::parse(value.to_string().as_bytes(), Path::new("config.json"))
}

/// The released shape in small.
fn small() -> Value {
    json!({
        "model_type": "kimi_k3", "eos_token_id": 9, "vision_config": {"patch_size": 14},
        "text_config": {
            "model_type": "kimi_linear", "hidden_size": 8, "vocab_size": 16, "num_hidden_layers": 4, "rms_norm_eps": 1e-5,
            "num_attention_heads": 2, "q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2,
            "v_head_dim": 2, "mla_use_nope": true, "mla_use_output_gate": true, "intermediate_size": 8,
            "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
            "attn_res_block_size": 2, "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1,
            "moe_intermediate_size": 32, "routed_expert_hidden_size": 32, "latent_moe_use_norm": true,
            "first_k_dense_replace": 1, "novel_field": [1, 2],
            "linear_attn_config": {
                "num_heads": 2, "head_dim": 4, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
                "kda_layers": [1, 2, 3], "full_attn_layers": [4], "odd": true
            }
        }
    })
}

fn text(config: &mut Value) -> &mut Map<String, Value> {
    config["text_config"].as_object_mut().unwrap()
}

#[test]
fn the_nested_text_part_is_read_and_the_rest_is_kept() {
    let config = parse(&small()).unwrap();
    assert_eq!(config.layers[3].attention, AttentionKind::Mla);
    assert_eq!(config.layers[0].feed_forward, FeedForwardKind::Dense);
    assert_eq!(config.layers[1].feed_forward, FeedForwardKind::Moe);
    assert_eq!(config.eos_token_ids, [9]);
    assert_eq!(config.kda.unwrap().decay, Decay::Bounded { lower_bound: -5.0 });
    let expected = json!({
        "vision_config": {"patch_size": 14},
        "text_config": {"model_type": "kimi_linear", "novel_field": [1, 2], "linear_attn_config": {"odd": true}}
    });
    assert_eq!(Value::Object(config.unknown), expected);
}

#[test]
fn an_absent_bound_selects_the_other_decay() {
    let mut value = small();
    text(&mut value)["linear_attn_config"].as_object_mut().unwrap().remove("gate_lower_bound");
    assert_eq!(parse(&value).unwrap().kda.unwrap().decay, Decay::Softplus);
    text(&mut value)["linear_attn_config"]["gate_lower_bound"] = Value::Null;
    assert_eq!(parse(&value).unwrap().kda.unwrap().decay, Decay::Softplus);
}

#[test]
fn optional_fields_have_their_documented_meaning() {
    let mut value = small();
    for field in [
        "activation_situ_linear_beta",
        "attn_res_block_size",
        "routed_expert_hidden_size",
        "latent_moe_use_norm",
        "mla_use_output_gate",
        "hidden_act",
        "num_shared_experts",
    ] {
        text(&mut value).remove(field);
    }
    let config = parse(&value).unwrap();
    let moe = config.moe.unwrap();
    let situ = kimi_kernels::Situ { beta: 4.0, linear_beta: None };
    assert_eq!(config.activation, Activation::Situ(situ));
    assert_eq!((config.attn_res_block_size, moe.latent_size, moe.latent_norm), (None, None, false));
    assert_eq!((config.mla.output_gate, moe.num_shared_experts, moe.renormalize), (false, 0, true));
    assert_eq!(moe.routed_scaling_factor, 1.0);
}

#[test]
fn a_missing_field_is_named() {
    for field in ["hidden_size", "kv_lora_rank", "num_experts_per_token", "intermediate_size", "rms_norm_eps"]
    {
        let mut value = small();
        text(&mut value).remove(field);
        let message = parse(&value).unwrap_err().to_string();
        assert_eq!(message, format!("config.json: required field `text_config.{field}` is missing"));
    }
    let mut value = small();
    text(&mut value)["linear_attn_config"].as_object_mut().unwrap().remove("head_dim");
    let message = parse(&value).unwrap_err().to_string();
    assert!(message.contains("`text_config.linear_attn_config.head_dim` is missing"), "{message}");
}

#[test]
fn values_out_of_range_or_of_another_type_are_refused() {
    for (field, bad) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-1)),
        ("hidden_size", json!("8")),
        ("hidden_size", json!(1u64 << 62)),
        ("num_hidden_layers", json!(1u64 << 40)),
        ("num_experts_per_token", json!(5)),
        ("rms_norm_eps", json!(0.0)),
        ("rms_norm_eps", json!(1e-60)),
        ("activation_situ_beta", json!(-4.0)),
        ("hidden_act", json!("gelu")),
        ("num_expert_group", json!(8)),
        ("num_expert_group", json!(3)),
        ("topk_group", json!(2)),
        ("scoring_func", json!("softmax")),
        ("topk_method", json!("greedy")),
        ("moe_router_activation_func", json!("softmax")),
    ] {
        let mut value = small();
        text(&mut value).insert(field.into(), bad.clone());
        let message = parse(&value).unwrap_err().to_string();
        assert!(message.contains(field), "{field} = {bad}: {message}");
    }
}

/// Whatever stands in a field, or if nothing does: the configuration is read, or the message says where to look.
#[test]
fn any_field_may_be_missing_or_hold_anything() {
    let anything = [
        Value::Null,
        json!(0),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!("x"),
        json!([]),
        json!([0]),
        json!({}),
        json!(true),
    ];
    let mut of_text = small();
    let mut fields: Vec<_> = text(&mut of_text).keys().map(|field| (false, field.clone())).collect();
    let linear = of_text["text_config"]["linear_attn_config"].as_object().unwrap();
    fields.extend(linear.keys().map(|field| (true, field.clone())));
    for (nested, field) in fields {
        for value in anything.iter().map(Some).chain([None]) {
            let mut config = small();
            let mut map = text(&mut config);
            if nested {
                map = map["linear_attn_config"].as_object_mut().unwrap();
            }
            match value {
                Some(value) => map.insert(field.clone(), value.clone()),
                None => map.remove(&field),
            };
            if let Err(error) = parse(&config) {
                let message = error.to_string();
                let says = message.contains(&field) || message.contains("layer");
                assert!(says, "{field}: {value:?}: {message}");
            }
        }
    }
}

#[test]
fn any_field_of_the_other_spelling_may_be_missing_or_hold_anything() {
    let anything =
        [json!(0), json!(-1), json!(1e300), json!(u64::MAX), json!("x"), json!([0]), json!({}), json!(true)];
    let mut whole = deepseek();
    whole["rope_scaling"] = json!({
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096
    });
    whole["quantization_config"] = json!({"weight_block_size": [128, 128]});
    assert!(parse(&whole).is_ok());
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let top = names(&whole).into_iter().map(|field| (None, field));
    let nested = ["rope_scaling", "quantization_config"].into_iter();
    let nested = nested.flat_map(|of| names(&whole[of]).into_iter().map(move |field| (Some(of), field)));
    for (of, field) in top.chain(nested) {
        for value in anything.iter().map(Some).chain([None]) {
            let mut config = whole.clone();
            let map = match of {
                Some(of) => config[of].as_object_mut().unwrap(),
                None => config.as_object_mut().unwrap(),
            };
            match value {
                Some(value) => map.insert(field.clone(), value.clone()),
                None => map.remove(&field),
            };
            match parse(&config) {
                Ok(config) => {
                    let rope = config.mla.rope.unwrap();
                    let numbers = rope.frequencies.iter().chain([&rope.magnitude, &rope.attention_scale]);
                    assert!(numbers.into_iter().all(|number| number.is_finite()), "{field}: {value:?}");
                }
                Err(error) => {
                    let message = error.to_string();
                    // Numbers of experts and groups have to fit each other.
                    let related = ["experts", "topk_group"];
                    let says =
                        message.contains(&field) || related.iter().any(|other| message.contains(other));
                    assert!(says, "{field}: {value:?}: {message}");
                }
            }
        }
    }
}

#[test]
fn more_blocks_than_a_mix_can_take_are_refused() {
    let mut value = small();
    text(&mut value)["num_hidden_layers"] = json!(64);
    text(&mut value)["linear_attn_config"]["kda_layers"] = (1..64).collect();
    text(&mut value)["linear_attn_config"]["full_attn_layers"] = json!([64]);
    assert_eq!(parse(&value).unwrap().attn_res_block_size, Some(2));
    text(&mut value)["attn_res_block_size"] = json!(1);
    let message = parse(&value).unwrap_err().to_string();
    assert!(message.contains("attn_res_block_size") && message.contains("64 layers"), "{message}");
}

/// The shape of DeepSeek-V3 in small, in its spelling.
fn deepseek() -> Value {
    json!({
        "model_type": "kimi_k2", "hidden_size": 8, "vocab_size": 16, "num_hidden_layers": 4, "rms_norm_eps": 1e-6,
        "num_attention_heads": 2, "q_lora_rank": null, "kv_lora_rank": 4, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2,
        "v_head_dim": 2, "rope_theta": 50000.0, "intermediate_size": 8, "hidden_act": "silu", "first_k_dense_replace": 3,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 16,
        "norm_topk_prob": false, "n_group": 4, "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "eos_token_id": [3, 4]
    })
}

/// DeepSeek's names of the fields, and features that K3 has not.
#[test]
fn the_other_spelling_selects_the_other_paths() {
    let value = deepseek();
    let config = parse(&value).unwrap();
    assert_eq!((config.activation, config.kda, config.attn_res_block_size), (Activation::Silu, None, None));
    assert_eq!((config.mla.q_lora_rank, config.mla.output_gate), (None, false));
    assert_eq!(config.mla.rope.unwrap().frequencies, [1.0]);
    let kinds: Vec<_> = config.layers.iter().map(|layer| layer.feed_forward).collect();
    assert_eq!(kinds[..3], [FeedForwardKind::Dense; 3]);
    assert_eq!(kinds[3], FeedForwardKind::Moe);
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.num_experts_per_token, moe.num_shared_experts), (8, 3, 2));
    assert_eq!((moe.renormalize, moe.num_groups, moe.topk_groups), (false, 4, 2));
    assert_eq!(config.eos_token_ids, [3, 4]);
    assert_eq!(Value::Object(config.unknown), json!({}));

    for (field, bad) in [
        ("rope_theta", Value::Null),
        ("n_group", json!(3)),
        // Two groups of two do not hold so many.
        ("num_experts_per_tok", json!(5)),
        ("topk_group", json!(5)),
        ("scoring_func", json!("softmax")),
    ] {
        let mut value = value.clone();
        value[field] = bad;
        let message = parse(&value).unwrap_err().to_string();
        assert!(message.contains(field), "{message}");
    }
}

#[test]
fn an_unknown_type_is_refused_with_the_list_of_known_ones() {
    let json = br#"{"model_type": "kimi_k9"}"#;
    let message = Config::parse(json, Path::new("config.json")).unwrap_err().to_string();
    assert!(MODEL_TYPES.iter().all(|known| message.contains(known)), "{message}");
    assert!(message.contains("`kimi_k9`"), "{message}");
}

#[test]
fn layer_lists_count_from_one_and_share_out_all_layers() {
    for (kda, mla, expected) in [
        (json!([0, 1, 2]), json!([3]), "layer 0"),
        (json!([1, 2]), json!([4]), "layer 3"),
        (json!([1, 2, 3]), json!([3, 4]), "layer 3"),
        (json!([1, 2, 3]), json!([5]), "layer 5"),
    ] {
        let mut value = small();
        text(&mut value)["linear_attn_config"]["kda_layers"] = kda;
        text(&mut value)["linear_attn_config"]["full_attn_layers"] = mla;
        let message = parse(&value).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn other_models_are_refused_by_name() {
    for (json, expected) in [
        (r#"{"model_type": "llama"}"#, "`llama`"),
        (r#"{"architectures": []}"#, "`model_type` is missing"),
        ("[1]", "object"),
        ("{\"model_type\": ", "not valid JSON"),
        ("\u{feff}", "not valid JSON"),
    ] {
        let message = Config::parse(json.as_bytes(), Path::new("x/config.json")).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("x/config.json"), "{message}");
    }
    assert!(Config::parse(b"{\"model_type\": \"\xff\"}", Path::new("c")).is_err());
}
