//! Every way in which a tokenizer file can be wrong is an error that says where.

use std::error::Error;
use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kimi_text::{LoadError, LoadErrorKind, Specials, TokenId, Tokenizer, Vocabulary};

/// A line for each of these tokens, with ranks from 0.
fn model<T: AsRef<[u8]>>(tokens: impl IntoIterator<Item = T>) -> String {
    (0..).zip(tokens).map(|(rank, token): (u32, T)| line(rank, token)).collect()
}

fn line(rank: u32, token: impl AsRef<[u8]>) -> String {
    format!("{} {rank}\n", STANDARD.encode(token))
}

/// The 256 bytes: lines 1 to 256.
fn bytes() -> String {
    model((0..=u8::MAX).map(|byte| [byte]))
}

fn vocabulary_error(file: impl AsRef<[u8]>) -> LoadError {
    Vocabulary::from_tiktoken(file.as_ref()).unwrap_err()
}

fn config_error(config: impl AsRef<[u8]>) -> LoadError {
    Tokenizer::from_bytes(bytes().as_bytes(), Some(config.as_ref())).unwrap_err()
}

/// An `added_tokens_decoder` with these keys and names.
fn added(entries: &[(&str, &str)]) -> String {
    let entries: Vec<String> =
        entries.iter().map(|(key, name)| format!(r#""{key}": {{"content": "{name}"}}"#)).collect();
    format!(r#"{{"added_tokens_decoder": {{{}}}}}"#, entries.join(", "))
}

/// The message, and whether a cause is below it.
#[track_caller]
fn assert_message(error: LoadError, message: &str, has_source: bool) {
    assert_eq!(error.to_string(), message);
    assert_eq!(error.source().is_some(), has_source, "{:?}", error.source());
}

#[test]
fn lines() {
    let with = |line: &str| vocabulary_error(bytes() + line);
    let is = |error, message: &str, has_source| {
        assert_message(error, &format!("tiktoken.model: {message}"), has_source)
    };
    is(with("YWI="), "line 257: expected a token in base64 and its rank, found \"YWI=\"", false);
    is(with("YWI= 256 7"), "line 257: expected a token in base64 and its rank, found \"YWI= 256 7\"", false);
    is(with(" 256"), "line 257: expected a token in base64 and its rank, found \" 256\"", false);
    is(with("YW*= 256"), "line 257: expected padded base64, found \"YW*=\"", true);
    is(with("YWI 256"), "line 257: expected padded base64, found \"YWI\"", true);
    let long = "A".repeat(1001);
    is(
        with(&format!("{long} 256")),
        &format!("line 257: expected padded base64, found \"{}…\"", &long[..40]),
        true,
    );
    for rank in ["-1", "+256", "256.0", "0x100", "4294967296"] {
        let expected = format!("line 257: expected a rank of at most 4294967295, found \"{rank}\"");
        is(with(&format!("YWI= {rank}")), &expected, false);
    }
    is(
        vocabulary_error(b"\xff\xfe\n"),
        "line 1: expected a token in base64 and its rank, found \"\u{fffd}\u{fffd}\"",
        false,
    );
}

#[test]
fn ranks_and_tokens() {
    let with = |line: String| vocabulary_error(bytes() + &line);
    let is = |error, message: &str| assert_message(error, &format!("tiktoken.model: {message}"), false);
    is(with(line(7, "ab")), "line 257: rank 7 is taken by line 8");
    is(with(line(257, "ab")), "line 257: expected rank 256 to come next, found 257");
    is(with(line(u32::MAX, "ab")), "line 257: expected rank 256 to come next, found 4294967295");
    is(with(line(256, "a")), "the tokens of ranks 97 and 256 have the same bytes");
    let long = "as long as it takes";
    is(with(line(256, long) + &line(257, long)), "the tokens of ranks 256 and 257 have the same bytes");
    is(vocabulary_error(model(["a", "b"])), "expected every byte to be a token, but 0x00 is none");
    is(vocabulary_error(""), "expected every byte to be a token, but 0x00 is none");
    is(Vocabulary::from_tokens(["a", ""]).unwrap_err(), "the token of rank 1 is empty");
    is(
        Vocabulary::from_tokens(["a", "b", "a"]).unwrap_err(),
        "the tokens of ranks 0 and 2 have the same bytes",
    );
}

#[test]
fn sizes() {
    let limit = 64 << 20;
    assert_message(
        vocabulary_error(vec![b'\n'; limit + 1]),
        "tiktoken.model: expected at most 67108864 bytes, found 67108865",
        false,
    );
    let half = vec![0; limit / 2];
    assert_message(
        Vocabulary::from_tokens([&half[..], &half[..], b"a"]).unwrap_err(),
        "tiktoken.model: expected at most 67108864 bytes, found 67108865",
        false,
    );
    assert_message(
        config_error(vec![b' '; (4 << 20) + 1]),
        "tokenizer_config.json: expected at most 4194304 bytes, found 4194305",
        false,
    );
    let tokens = (0..1u32 << 24).map(|number| number.to_le_bytes()[..3].to_vec());
    assert_message(
        Vocabulary::from_tokens(tokens).unwrap_err(),
        "tiktoken.model: expected at most 16777215 tokens",
        false,
    );
}

#[test]
fn configurations() {
    let is = |config: &str, message: &str| {
        assert_message(config_error(config), &format!("tokenizer_config.json: {message}"), false);
    };
    assert_message(
        config_error(b"{\"a\": \"\xff\"}"),
        "tokenizer_config.json: offset 7: expected UTF-8, found byte 0xff",
        false,
    );
    let key = "added_tokens_decoder: expected an id, found";
    is(&added(&[("x", "[A]")]), &format!("{key} \"x\""));
    is(&added(&[("-1", "[A]")]), &format!("{key} \"-1\""));
    is(
        &added(&[("255", "[A]")]),
        "added_tokens_decoder: \"[A]\" has id 255, expected 256 or more: lower ids are ranks",
    );
    for id in ["512", "4294967552", "18446744073709551615"] {
        is(
            &added(&[(id, "[A]")]),
            &format!("added_tokens_decoder: \"[A]\" has id {id}, expected at most 511, the last slot"),
        );
    }
    is(
        &added(&[("300", "[A]"), ("300", "[B]")]),
        "added_tokens_decoder: id 300 is named \"[A]\" and \"[B]\"",
    );
    is(
        &added(&[("300", "[A]"), ("0300", "[A]")]),
        "added_tokens_decoder: id 300 is named \"[A]\" and \"[A]\"",
    );
    is(
        &added(&[("301", "[A]"), ("300", "[A]")]),
        "added_tokens_decoder: ids 300 and 301 are both named \"[A]\"",
    );
    is(
        &added(&[("300", "<|reserved_token_256|>")]),
        "added_tokens_decoder: ids 256 and 300 are both named \"<|reserved_token_256|>\"",
    );
    let length = "added_tokens_decoder: expected a name of 1 to 256 bytes for id 300, found";
    is(&added(&[("300", "")]), &format!("{length} 0"));
    is(&added(&[("300", &"a".repeat(257))]), &format!("{length} 257"));
    for field in ["bos_token", "eos_token"] {
        let expected = format!("{field}: expected the name of a special token, found \"[A]\"");
        is(&format!(r#"{{"{field}": "[A]"}}"#), &expected);
        is(&format!(r#"{{"{field}": {{"content": "[A]"}}}}"#), &expected);
    }
}

#[test]
fn json() {
    let nested = "[".repeat(100_000);
    for (config, line, cause) in [
        ("", 1, "EOF"),
        ("[]", 1, "an object"),
        ("{} x", 1, "trailing characters"),
        ("{\n\"bos_token\": 7}", 2, "the name of a token"),
        (r#"{"added_tokens_decoder": []}"#, 1, "an object"),
        (r#"{"added_tokens_decoder": {"300": {}}}"#, 1, "missing field `content`"),
        (r#"{"added_tokens_decoder": {"300": ["a", true]}}"#, 1, "an object"),
        (r#"{"added_tokens_decoder": {"300": {"content": "a", "special": 1}}}"#, 1, "a boolean"),
        (r#"{"bos_token": ["a"]}"#, 1, "the name of a token"),
        (r#"{"bos_token": "a", "bos_token": "b"}"#, 1, "duplicate field"),
        (&nested, 1, "an object"),
        (&format!("{{\"x\": {nested}"), 1, "EOF"),
    ] {
        let error = config_error(config);
        let source = error.source().unwrap().to_string();
        assert!(source.contains(cause), "{config:.60}: {source}");
        match error.kind {
            LoadErrorKind::Json { line: found, .. } => assert_eq!(found, line, "{config:.60}: {source}"),
            other => panic!("{config:.60}: {other}"),
        }
    }
}

#[test]
fn what_a_configuration_may_leave_out() {
    let of = |config: &str| Tokenizer::from_bytes(bytes().as_bytes(), Some(config.as_bytes())).unwrap();
    for config in ["{}", r#"{"added_tokens_decoder": null, "bos_token": null, "model_max_length": 1e30}"#] {
        let tokenizer = of(config);
        assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (None, None));
        assert_eq!(tokenizer.special_name(TokenId(300)), Some("<|reserved_token_300|>"));
        assert_eq!(tokenizer.vocab_size(), 512);
    }
    let config = r#"{"added_tokens_decoder": {"257": {"content": "[B]"}, "256": {"content": "[A]", "special": true}},
                     "bos_token": {"content": "[B]", "lstrip": false}, "eos_token": "[A]"}"#;
    let tokenizer = of(config);
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(TokenId(257)), Some(TokenId(256))));
    assert_eq!((tokenizer.is_flagged(TokenId(256)), tokenizer.is_flagged(TokenId(257))), (true, false));
}

#[test]
fn of_names_that_begin_alike_the_longest_is_taken() {
    let config = added(&[("256", "<a>"), ("257", "<a><b>"), ("258", "<b>")]);
    let tokenizer = Tokenizer::from_bytes(bytes().as_bytes(), Some(config.as_bytes())).unwrap();
    let ids = tokenizer.encode("<a><b><b><a>", Specials::Parse);
    assert_eq!(ids, [257, 258, 256].map(TokenId));
}

#[test]
fn folders() {
    let folder = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_dir(folder.path()).unwrap_err();
    let model = folder.path().join("tiktoken.model");
    assert_message(error, &format!("{}: cannot be read", model.display()), true);

    fs::write(&model, bytes()).unwrap();
    assert_eq!(Tokenizer::from_dir(folder.path()).unwrap().eos_id(), None);
    let config = folder.path().join("tokenizer_config.json");
    fs::write(&config, added(&[("300", "")])).unwrap();
    let error = Tokenizer::from_dir(folder.path()).unwrap_err();
    let expected = format!(
        "{}: added_tokens_decoder: expected a name of 1 to 256 bytes for id 300, found 0",
        config.display()
    );
    assert_message(error, &expected, false);

    // A file that is no file is not taken for one that is absent.
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    assert!(matches!(Tokenizer::from_dir(folder.path()).unwrap_err().kind, LoadErrorKind::Io(_)));

    fs::write(&model, vec![b'\n'; (64 << 20) + 9]).unwrap();
    let error = Tokenizer::from_dir(folder.path()).unwrap_err();
    let expected = format!("{}: expected at most 67108864 bytes, found 67108865", model.display());
    assert_message(error, &expected, false);
}
