"""The example programs, as their readers run them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEMO, PROMPT, single_file

from kimi_k3 import Model, _library

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments, **options):
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **options)


def check_the_article(done, max_tokens):
    """The texts and ids are those of sessions."""
    assert done.returncode == 0, done.stderr
    texts = [ast.literal_eval(text) for text in re.findall(r"^text: (.*)$", done.stdout, re.MULTILINE)]
    ids = [int(id) for id in re.findall(r"^ +\d+ +(\d+) +[\d.]+ ms", done.stdout, re.MULTILINE)]
    with Model(DEMO) as model:
        generations = [model.generate(prompt, max_tokens=max_tokens) for prompt in ("Once upon a time", PROMPT)]
        ends = model.eos_token_ids
    assert texts == [generation.text for generation in generations]
    assert ids == [id for generation in generations for id in generation.ids if id not in ends]


def test_the_program_of_the_article():
    done = run("article.py", "--library", _library.lib._name, "--model", DEMO, "--max-tokens", 12)
    check_the_article(done, 12)


@pytest.mark.skipif(sys.platform != "linux", reason="the program looks for a library with the name of Linux")
def test_the_program_of_the_article_as_it_is_printed(tmp_path):
    (tmp_path / "models").mkdir()
    single_file(DEMO, tmp_path / "models" / "kimi-k3-4bit-8b.gguf")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "libkimi_k3_inference.so").symlink_to(Path(_library.lib._name).resolve())
    check_the_article(run("article.py", cwd=tmp_path), 100)


def test_the_program_of_the_article_without_a_model(tmp_path):
    gguf = tmp_path / "kimi-k3-4bit-8b.gguf"
    gguf.write_bytes(b"GGUF\3\0\0\0")
    done = run("article.py", "--library", _library.lib._name, "--model", gguf)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {gguf}: is a GGUF file")


def test_the_conversation():
    done = run("chat.py", DEMO, 12, input="Who said <|close|>?\nAnd the king?\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 and done.stderr.endswith(" tokens\n")
    with Model(DEMO) as model:
        assert int(done.stderr.split()[0]) > 2 * 18 + len(model.encode("Who said <|close|>?And the king?"))
    assert run("chat.py").returncode == 2
    assert run("chat.py", "nowhere", input="").returncode == 1


def test_the_stream():
    done = run("stream.py", DEMO, PROMPT, " And the woman")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(PROMPT) and done.stdout.count("ended by") == 2
    assert run("stream.py").returncode == 2
    assert run("stream.py", "nowhere", PROMPT).returncode == 1
