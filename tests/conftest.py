"""Fixtures: a byte tokenizer that fits on a page, marked sets, and an environment without strays."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tokentar import Manifest

WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "WORKER", "NUM_WORKERS")


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start, also where this one was started in the background."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees a rank or worker that it did not set itself."""
    for name in WORLD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session")
def t0() -> Any:
    """The byte tokenizer."""
    return byte_tokenizer()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The byte tokenizer as a folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def marked(tmp_path: Path) -> Callable[..., Manifest]:
    """A factory of marked sets: sequence i holds number i in all of its 8 positions."""
    from tests.helpers.marked import write_marked

    def make(shards: int, rows: int | list[int], name: str = "set") -> Manifest:
        return write_marked(tmp_path / name, shards, rows)

    return make
