"""Sessions and generations."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

import pytest
from conftest import DEMO, PROMPT

import kimi_k3
from kimi_k3 import Model, _library
from kimi_k3 import session as session_module


def generate_in_c(model, prompt, options):
    """What ``kimi_session_generate`` makes of the same options: ids, text and the reason why it ended."""
    ids, parts, finish = [], [], ctypes.c_int()

    @_library.TOKEN_FUNCTION
    def hear(_user, token, text, size):
        parts.append(ctypes.string_at(text, size))
        if token >= 0:
            ids.append(token)
        return 0

    given = _library.ints(model.encode(prompt))
    with _library.Options(_library.lib.kimi_generate_options_new, options) as handle, model.session() as session:
        _library.check(
            _library.lib.kimi_session_generate(session, given, len(given), handle, hear, None, ctypes.byref(finish))
        )
    reasons = {1: "eos", 2: "stop", 3: "length", 4: "context", 5: "cancelled"}
    return ids, b"".join(parts).decode(), reasons[finish.value]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 20},
        {"max_tokens": 20, "temperature": 0.8, "seed": 7, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
        {"max_tokens": 30, "repetition_penalty": 1.3, "penalty_window": 8, "frequency_penalty": 0.5},
        {"max_tokens": 40, "stop": "the"},
        {"max_tokens": 1000},
        {"max_tokens": 0},
    ],
)
def test_steps_generate_what_the_c_function_generates(model, options):
    generation = model.generate(PROMPT, **options)
    expected = generate_in_c(model, PROMPT, options)
    assert (generation.ids, generation.text, generation.finish_reason) == expected


def test_an_end_token_ends(model, monkeypatch):
    first = model.generate(PROMPT, max_tokens=5)
    monkeypatch.setattr(model, "eos_token_ids", frozenset([first.ids[3]]))
    ended = model.generate(PROMPT, max_tokens=5)
    assert (ended.ids, ended.finish_reason) == (first.ids[:4], "eos")
    assert model.generate(PROMPT, max_tokens=5, ignore_eos=True).ids == first.ids


def test_a_stream_gives_tokens_with_their_text(model):
    generation = model.stream(PROMPT, max_tokens=12)
    tokens = list(generation)
    assert [token.id for token in tokens] == generation.ids
    assert "".join(token.text for token in tokens) == generation.text == str(generation)
    assert generation.text == model.decode(generation.ids)
    assert list(generation) == []


def test_a_loop_that_is_left_goes_on_later(model, session):
    expected = model.generate(PROMPT, max_tokens=20).ids
    ids = []
    for token in session.stream(PROMPT):
        ids.append(token.id)
        if len(ids) == 6:
            break
    assert session.position == len(model.encode(PROMPT)) + 5
    ids += session.generate(max_tokens=14).ids
    assert ids == expected


def test_streams_can_be_interleaved(model):
    prompts = [PROMPT, "And the woman"]
    expected = [model.generate(prompt, max_tokens=8).ids for prompt in prompts]
    streams = [model.stream(prompt, max_tokens=8) for prompt in prompts]
    for _ in zip(*streams):
        pass
    assert [stream.ids for stream in streams] == expected


def test_logits_choose_the_token(model, session):
    numpy = pytest.importorskip("numpy")
    session.feed(PROMPT)
    logits = session.logits()
    assert logits.dtype == numpy.float32 and logits.shape == (model.vocab_size,)
    assert numpy.isfinite(logits).all()
    assert int(logits.argmax()) == model.generate(PROMPT, max_tokens=1).ids[0]
    with model.session() as other:
        for token in model.encode(PROMPT):
            other.feed([token])
        assert (other.logits() == logits).all()


def test_logits_without_numpy(session, monkeypatch):
    session.feed(PROMPT)
    expected = session.logits()
    monkeypatch.setattr(session_module, "numpy", None)
    assert session.logits().tolist() == expected.tolist()


def test_a_bias_decides(model):
    assert model.generate(PROMPT, max_tokens=3, logit_bias={5: 1e6}).ids == [5, 5, 5]


def test_mistakes_are_exceptions(model, session):
    with pytest.raises(kimi_k3.InvalidArgument, match="empty"):
        session.feed()
    with pytest.raises(kimi_k3.InvalidArgument, match="no logits"):
        session.logits()
    with pytest.raises(kimi_k3.InvalidArgument, match="below 0"):
        session.feed([-1])
    with pytest.raises(ValueError, match="out of range"):
        session.feed([2**40])
    with pytest.raises(kimi_k3.ContextFull):
        session.feed([1] * 257)
    with pytest.raises(kimi_k3.InvalidArgument, match="temperature"):
        session.stream(PROMPT, temperature=-1)
    with pytest.raises(kimi_k3.InvalidArgument, match="no such option"):
        session.stream(PROMPT, max_token=1)
    with pytest.raises(kimi_k3.InvalidArgument, match="stop"):
        session.stream(PROMPT, stop="")
    assert session.position == 0


def test_cancelling_ends_a_generation(session):
    generation = session.stream(PROMPT)
    next(generation)
    session.cancel()
    assert list(generation) == [] and generation.finish_reason == "cancelled"
    with pytest.raises(kimi_k3.Cancelled):
        session.feed([1])
    session.cancel(False)
    session.feed([1])
    session.reset()
    assert session.position == 0


def test_ctrl_c_ends_a_pass():
    # Slow enough to be interrupted in the middle.
    with Model(DEMO, threads=1, isa="scalar", context=4096, chunk=8) as model, model.session() as session:
        before = model.stats["bytes_read"]

        def interrupt():
            while model.stats["bytes_read"] == before:
                pass
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            session.feed([1] * 4096)
        thread.join()
        assert session.position < 4096
        session.reset()
        session.feed([1, 2, 3])
        assert session.position == 3, "the session is free for other things"


def test_a_generation_that_failed_has_ended(session):
    generation = session.stream([1] * 257)
    with pytest.raises(kimi_k3.ContextFull):
        next(generation)
    assert generation.finish_reason == "failed" and list(generation) == []


def test_threads_share_a_model(model):
    expected = model.generate(PROMPT, max_tokens=10).ids
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(model.generate(PROMPT, max_tokens=10).ids)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
