"""The demo model of the repository, and what the C library generates with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import kimi_k3

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "kimi-cli" / "demo" / "model"
PROMPT = "The king said"


@pytest.fixture
def model():
    with kimi_k3.Model(DEMO, threads=2, context=256) as model:
        yield model


@pytest.fixture
def session(model):
    with model.session() as session:
        yield session
