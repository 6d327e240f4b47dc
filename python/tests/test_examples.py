"""The example programs, as their readers run them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from conftest import DEMO, PROMPT

from kimi_k3 import Model, _library

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


def test_the_program_of_the_article():
    done = run("article.py", "--library", _library.lib._name, "--model", DEMO, "--max-tokens", 12)
    assert done.returncode == 0, done.stderr
    texts = [ast.literal_eval(text) for text in re.findall(r"^text: (.*)$", done.stdout, re.MULTILINE)]
    ids = [int(id) for id in re.findall(r"^ +\d+ +(\d+) +[\d.]+ ms", done.stdout, re.MULTILINE)]
    with Model(DEMO) as model:
        generations = [model.generate(prompt, max_tokens=12) for prompt in ("Once upon a time", PROMPT)]
    assert texts == [generation.text for generation in generations]
    assert ids == [id for generation in generations for id in generation.ids]


def test_the_program_of_the_article_without_a_model(tmp_path):
    gguf = tmp_path / "kimi-k3-4bit-8b.gguf"
    gguf.write_bytes(b"GGUF\3\0\0\0")
    done = run("article.py", "--library", _library.lib._name, "--model", gguf)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {gguf}: is a GGUF file")


def test_the_stream():
    done = run("stream.py", DEMO, PROMPT, " And the woman")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(PROMPT) and done.stdout.count("ended by") == 2
    assert run("stream.py").returncode == 2
    assert run("stream.py", "nowhere", PROMPT).returncode == 1
