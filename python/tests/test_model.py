"""Models and tokenizers."""

from __future__ import annotations

import pytest
from conftest import DEMO, PROMPT, REPOSITORY, single_file

import kimi_k3
from kimi_k3 import Model, Tokenizer, _library


@pytest.mark.parametrize("text", ["", PROMPT, "naïve 你好 😀", "a\0b", "a [BOS] b"])
def test_text_comes_back(model, text):
    ids = model.encode(text)
    assert model.decode(ids) == text
    with Tokenizer(DEMO) as tokenizer:
        assert tokenizer.encode(text) == ids


def test_control_tokens_are_text_unless_asked_for(model):
    bos = model.special_token("[BOS]")
    assert model.encode("[BOS]", parse_special=True) == [bos]
    assert bos not in model.encode("[BOS]")
    assert model.decode([bos]) == "[BOS]"
    assert model.decode([bos], hide_special=True) == ""
    with pytest.raises(kimi_k3.InvalidArgument, match="no control token"):
        model.special_token("[NONE]")


def test_reports_are_objects(model):
    assert model.info["context"] == 256
    assert model.plan["total_bytes"] == sum(item["bytes"] for item in model.plan["items"])
    model.generate(PROMPT, max_tokens=2)
    assert model.stats["passes"] == 2
    assert model.stats["threads"] == 2


def test_options_reach_the_engine():
    with Model(DEMO, threads=1, isa="scalar", kv="bf16", kv_bytes=10**9, chunk=3, ram_bytes=10**9) as model:
        stats = model.stats
        assert (stats["threads"], stats["isa"], stats["kv"]) == (1, "scalar", "bf16")
        assert (stats["columns"], stats["budget_bytes"]) == (3, 10**9)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ram_bytes": 1000}, kimi_k3.DoesNotFit, "recurrent state"),
        ({"ram_bytes": 2**80}, ValueError, "out of range"),
        ({"threads": 0}, kimi_k3.InvalidArgument, "threads"),
        ({"kv": "q8"}, ValueError, "q8"),
        ({"kv": "f\0"}, ValueError, "NUL"),
    ],
)
def test_options_that_cannot_be(options, error, message):
    with pytest.raises(error, match=message):
        Model(DEMO, **options)


def test_a_single_file_is_the_folder(tmp_path):
    file = tmp_path / "kimi-k3-4bit-8b.gguf"
    single_file(DEMO, file)
    with Model(DEMO) as folder, Model(file) as model, Tokenizer(file) as tokenizer:
        assert tokenizer.encode(PROMPT) == folder.encode(PROMPT) == model.encode(PROMPT)
        assert model.eos_token_ids == folder.eos_token_ids
        for options in ({}, {"temperature": 0.8, "seed": 5}):
            expected = folder.generate(PROMPT, max_tokens=20, **options)
            assert model.generate(PROMPT, max_tokens=20, **options).ids == expected.ids


def test_a_token_costs_the_same_at_every_position(model):
    tokens = model.encode(PROMPT)
    new = len(tokens)
    while len(tokens) < 200:
        before = model.stats
        array = _library.ints(tokens)
        token = _library.check(_library.lib.kimi_generate_next_token(model, array, len(tokens)))
        after = model.stats
        assert (after["tokens"] - before["tokens"], after["passes"] - before["passes"]) == (new, 1)
        tokens.append(token)
        new = 1


def test_what_is_no_model(tmp_path):
    with pytest.raises(kimi_k3.InvalidArgument, match="does not exist"):
        Model(tmp_path / "nowhere")
    (tmp_path / "model.gguf").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(kimi_k3.InvalidArgument, match="GGUF"):
        Model(tmp_path / "model.gguf")
    with pytest.raises(kimi_k3.CorruptModel, match="config.json"):
        Model(tmp_path)


def test_closing_is_final_and_may_be_repeated():
    model = Model(DEMO)
    session = model.session()
    model.close()
    model.close()
    assert model.closed
    with pytest.raises(kimi_k3.InvalidHandle, match="freed"):
        model.encode("text")
    with pytest.raises(kimi_k3.InvalidHandle, match="freed"):
        model.session()
    session.feed([1, 2, 3])
    session.close()
    with pytest.raises(kimi_k3.InvalidHandle, match="a session"):
        session.feed([1])


def test_a_model_without_a_vocabulary_takes_ids():
    with Model(REPOSITORY / "kimi-model/tests/golden/kimi_k3", context=64) as model:
        assert not model.has_tokenizer
        with pytest.raises(kimi_k3.NoTokenizer):
            model.encode("text")
        generation = model.generate([3, 1, 4, 1, 5], max_tokens=4)
        assert len(generation.ids) > 0 and generation.text == ""
        with pytest.raises(kimi_k3.NoTokenizer):
            model.generate([3, 1, 4], stop="x")
