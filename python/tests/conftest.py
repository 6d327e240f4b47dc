"""The demo model of the repository, and what the C library generates with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kimi_k3

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "kimi-cli" / "demo" / "model"
PROMPT = "The king said"


def single_file(folder: Path, target: Path) -> None:
    """Joins a folder as ``kimi-cli pack --single-file --as-is`` does, by what docs/formats.md says."""
    header, data = {}, []

    def add(name, dtype, shape, values):
        begin = sum(map(len, data))
        data.append(values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(values)]}

    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors":
            content = file.read_bytes()
            start = 8 + int.from_bytes(content[:8], "little")
            for name, tensor in json.loads(content[8:start]).items():
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    add(name, tensor["dtype"], tensor["shape"], content[start + begin : start + end])
    for file in sorted(folder.iterdir()):
        if file.is_file() and ".safetensors" not in file.name:
            content = file.read_bytes()
            add(f"__file__/{file.name}", "U8", [len(content)], content)
    text = json.dumps(header).encode()
    target.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


@pytest.fixture
def model():
    with kimi_k3.Model(DEMO, threads=2, context=256) as model:
        yield model


@pytest.fixture
def session(model):
    with model.session() as session:
        yield session
