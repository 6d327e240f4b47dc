//! The released vocabulary against what the released tokenizer makes of the same texts. The data cannot be part of
//! this project; without them each test prints a line and passes.

use std::fs;

use kimi_text::{Flagged, Specials, TextStream, TokenId, Tokenizer, Utf8Stream};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The released vocabulary under the names that a release gives to the special tokens.
fn tokenizer(names: &str) -> Option<Tokenizer> {
    let model = fs::read(kimi_testing::shared_data("tokenizer/tiktoken.model")?).unwrap();
    let config = |file: &str| {
        let path = kimi_testing::shared_data(&format!("tokenizer/{file}"))?;
        Some(json(&fs::read_to_string(path).unwrap()))
    };
    let config = match names {
        "base" => None,
        "k3" => Some(config("tokenizer_config.k3.json")?),
        "k2.6" => Some(config("tokenizer_config.k2.5.json")?),
        // K2 came before the names for media and thinking.
        "k2" => {
            let mut config = config("tokenizer_config.k2.5.json")?;
            let added = config["added_tokens_decoder"].as_object_mut().unwrap();
            added.retain(|id, _| !(163_602..163_608).contains(&id.parse().unwrap()));
            Some(config)
        }
        other => panic!("no names for {other}"),
    };
    Some(
        Tokenizer::from_bytes(&model, config.map(|config| config.to_string()).as_deref().map(str::as_bytes))
            .unwrap(),
    )
}

fn golden(file: &str) -> Option<String> {
    Some(fs::read_to_string(kimi_testing::shared_data(file)?).unwrap())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn ids_of(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// The ids joined by commas: how the goldens hash lists that are too long to store.
fn line(ids: &[TokenId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_recorded_text_has_its_ids() {
    let Some(rows) = golden("tokenizer/goldens_kimi.jsonl") else { return };
    let mut checked = 0;
    for names in ["base", "k2", "k2.6", "k3"] {
        let tokenizer = tokenizer(names).unwrap();
        for row in rows.lines().map(json).filter(|row| row["vocab"] == names) {
            let specials = match text_of(&row["mode"]) {
                "ordinary" => Specials::AsText,
                "special" => Specials::Parse,
                other => panic!("no mode {other}"),
            };
            let (text, expected) = (text_of(&row["text"]), ids_of(&row["ids"]));
            assert_eq!(tokenizer.encode(text, specials), expected, "row {}: {text:?} ({names})", row["n"]);
            assert_eq!(tokenizer.decode_lossy(&expected, Flagged::Show).unwrap(), text, "row {}", row["n"]);
            checked += 1;
        }
    }
    assert_eq!(checked, 820);
}

#[test]
fn every_recorded_id_has_its_bytes() {
    let Some(rows) = golden("tokenizer/goldens_decode.jsonl") else { return };
    let mut checked = 0;
    for names in ["k2.6", "k3"] {
        let tokenizer = tokenizer(names).unwrap();
        for row in rows.lines().map(json).filter(|row| row["vocab"] == names) {
            let ids = ids_of(&row["ids"]);
            let (bytes, text) = (text_of(&row["bytes_hex"]), text_of(&row["text_lossy"]));
            assert_eq!(hex(&tokenizer.decode_bytes(&ids, Flagged::Show).unwrap()), bytes, "{row}");
            assert_eq!(tokenizer.decode_lossy(&ids, Flagged::Show).unwrap(), text, "{row}");
            let mut stream = TextStream::new(&tokenizer, Flagged::Show);
            let mut streamed = String::new();
            for id in ids {
                streamed.push_str(stream.push(id).unwrap());
            }
            streamed.push_str(stream.finish());
            assert_eq!(streamed, text, "{row}");
            checked += 1;
        }
    }
    assert_eq!(checked, 361);
}

#[test]
fn lone_surrogates_are_replaced() {
    let Some(cases) = golden("tokenizer/goldens_surrogates.json") else { return };
    let tokenizer = tokenizer("base").unwrap();
    for case in json(&cases)["cases"].as_array().unwrap() {
        let units: Vec<u16> = case["codepoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|code| u16::from_str_radix(text_of(code).trim_start_matches("0x"), 16).unwrap())
            .collect();
        let text = String::from_utf16_lossy(&units);
        assert_eq!(text, text_of(&case["decoded"]));
        let ids = tokenizer.encode(&text, Specials::AsText);
        assert_eq!(ids, ids_of(&case["ids"]));
        assert_eq!(tokenizer.decode_lossy(&ids, Flagged::Show).unwrap(), text);
    }
}

#[test]
fn every_product_of_boundary_strings_has_its_ids() {
    let Some(bulk) = golden("tokenizer/goldens_bulk.json").map(|bulk| json(&bulk)) else { return };
    let tokenizer = tokenizer("base").unwrap();
    let classes: Vec<&str> = bulk["classes"].as_array().unwrap().iter().map(text_of).collect();
    let mut texts = vec![String::new()];
    for digest in bulk["digests"].as_array().unwrap() {
        texts =
            texts.iter().flat_map(|text| classes.iter().map(move |class| format!("{text}{class}"))).collect();
        let mut sha = Sha256::new();
        let mut total = 0;
        for text in &texts {
            let ids = tokenizer.encode(text, Specials::AsText);
            total += ids.len();
            sha.update(line(&ids));
            sha.update("\n");
        }
        assert_eq!(total as u64, digest["total_ids"].as_u64().unwrap());
        assert_eq!(hex(&sha.finalize()), text_of(&digest["sha256"]), "products of {}", digest["repeat"]);
    }
}

#[test]
fn very_long_texts_have_their_ids() {
    let Some(bulk) = golden("tokenizer/goldens_bulk.json").map(|bulk| json(&bulk)) else { return };
    let tokenizer = tokenizer("base").unwrap();
    for case in bulk["big"].as_array().unwrap() {
        let unit = case["unit"].as_str().map_or_else(
            || {
                assert_eq!(case["unit_spec"], "24999*'x' + ' '");
                format!("{} ", "x".repeat(24_999))
            },
            str::to_string,
        );
        let text = unit.repeat(case["repeat"].as_u64().unwrap() as usize);
        assert_eq!(text.chars().count() as u64, case["chars"].as_u64().unwrap());
        let ids = tokenizer.encode(&text, Specials::AsText);
        assert_eq!(ids.len() as u64, case["n_ids_kimi_chunked"].as_u64().unwrap(), "{case}");
        assert_eq!(hex(&Sha256::digest(line(&ids))), text_of(&case["sha256_kimi_chunked"]), "{case}");
    }
}

#[test]
fn the_released_class_agrees() {
    let Some(recorded) = golden("oracle/tokenizer/cases.json").map(|cases| json(&cases)) else { return };
    assert_eq!(text_of(&recorded["pattern"]), kimi_text::SPLIT_PATTERN);
    let (k3, k2) = (tokenizer("k3").unwrap(), tokenizer("k2.6").unwrap());
    for (names, tokenizer) in [("special_tokens_k3", &k3), ("special_tokens_k2_5", &k2)] {
        for (name, id) in recorded[names].as_object().unwrap() {
            let id = TokenId(id.as_u64().unwrap() as u32);
            assert_eq!(tokenizer.special_id(name), Some(id));
            assert_eq!(tokenizer.special_name(id), Some(&**name));
        }
    }
    for case in recorded["cases"].as_array().unwrap() {
        let text = text_of(&case["text"]);
        assert_eq!(k3.encode(text, Specials::AsText), ids_of(&case["ids"]), "{text:?}");
        assert_eq!(k2.encode(text, Specials::AsText), ids_of(&case["ids"]), "{text:?}");
        assert_eq!(k3.encode(text, Specials::Parse), ids_of(&case["ids_markup"]), "{text:?}");
        let k2_markup = case.get("ids_markup_k2").unwrap_or(&case["ids_markup"]);
        assert_eq!(k2.encode(text, Specials::Parse), ids_of(k2_markup), "{text:?}");
    }
    for case in recorded["long"].as_array().unwrap() {
        let text = text_of(&case["unit"]).repeat(case["times"].as_u64().unwrap() as usize);
        let ids = k3.encode(&text, Specials::AsText);
        assert_eq!(ids.len() as u64, case["count"].as_u64().unwrap(), "{case}");
        assert_eq!(ids[..16], ids_of(&case["first"]), "{case}");
        assert_eq!(ids[ids.len() - 16..], ids_of(&case["last"]), "{case}");
        assert_eq!(
            ids.iter().map(|id| u64::from(id.0)).sum::<u64>(),
            case["sum"].as_u64().unwrap(),
            "{case}"
        );
    }
}

#[test]
fn the_released_names_and_flags_are_read() {
    let Some(k3) = tokenizer("k3") else { return };
    let k2 = tokenizer("k2.6").unwrap();
    assert_eq!((k3.vocabulary().len(), k3.vocab_size()), (163_584, 163_840));
    assert_eq!((k3.bos_id(), k3.eos_id()), (Some(TokenId(163_584)), Some(TokenId(163_585))));
    let end = TokenId(163_586);
    assert_eq!((k3.special_name(end), k2.special_name(end)), (Some("<|end_of_msg|>"), Some("<|im_end|>")));
    assert_eq!(k3.special_id("<|reserved_token_163592|>"), Some(TokenId(163_592)));
    // What structures a K3 message is not flagged, and must be seen by whoever reads the structure.
    let ids = k3.encode("[BOS]<|open|>think<|sep|>a<|close|><|end_of_msg|>", Specials::Parse);
    assert_eq!(k3.decode_lossy(&ids, Flagged::Hide).unwrap(), "<|open|>think<|sep|>a<|close|>");
}

#[test]
fn the_released_vocabulary_is_compact() {
    let Some(tokenizer) = tokenizer("k3") else { return };
    let (vocabulary, all) = (tokenizer.vocabulary().heap_bytes(), tokenizer.heap_bytes());
    println!("vocabulary {vocabulary} bytes, with special tokens {all} bytes");
    assert!(all <= 4_000_000, "{all} bytes");
}

#[test]
fn a_family_of_emoji_and_han_streams_whole() {
    let Some(tokenizer) = tokenizer("k3") else { return };
    let text = "👨‍👩‍👧 汉字 𠀀𠮷";
    let ids = tokenizer.encode(text, Specials::AsText);
    let mut stream = TextStream::new(&tokenizer, Flagged::Show);
    let mut utf8 = Utf8Stream::default();
    let (mut by_token, mut by_byte) = (String::new(), String::new());
    for id in ids {
        by_token.push_str(stream.push(id).unwrap());
        assert!(!by_token.contains('\u{fffd}') && text.starts_with(&by_token));
        for byte in tokenizer.token_bytes(id).unwrap() {
            utf8.push(&[*byte], &mut by_byte);
        }
    }
    assert_eq!((by_token, stream.finish()), (text.to_string(), ""));
    assert_eq!((by_byte, utf8.held_bytes()), (text.to_string(), 0));
}
