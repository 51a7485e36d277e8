"""How the tests of the writer write: in this process, with the byte tokenizer, and without waiting for the disk."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.written import Write
from tokentar import Manifest, write_shards


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def write(t0: Any, tmp_path: Path) -> Write:
    """write_shards in this process, with the byte tokenizer and sequences of 8 tokens."""

    def run(source: Any, output: str = "out", **settings: Any) -> Manifest:
        defaults = {"tokenizer": t0, "seq_length": 8, "workers": 0}
        return write_shards(input=source, output=tmp_path / output, **(defaults | settings))

    return run
