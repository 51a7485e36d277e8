"""Ray as an engine, without a cluster: what is wrong with settings or with a node is said at once."""

import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import jsonl
from tokentar import SettingError, TokentarError, write_shards
from tokentar.shard_writer.engines.ray import Setup
from tokentar.shard_writer.versions import difference, versions
from tokentar.shard_writer.writing.arguments import WriteArguments


def test_ray_that_is_not_installed_is_told_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    source = jsonl(tmp_path / "a.jsonl", ["ab"])
    with pytest.raises(SettingError, match=r"engine: ray, but Ray is not installed; `pip install tokentar\[ray\]`"):
        write_shards(input=source, tokenizer=byte_tokenizer(), output=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "ray_address: 127.0.0.1:1 does not answer .*; start one with `ray start --head`"),
        ("nowhere.invalid:6379", "ray_address: nowhere.invalid:6379 does not answer"),
        ("ray://127.0.0.1:10001", "ray_address: ray://127.0.0.1:10001, needed: HOST:PORT"),
        ("127.0.0.1", "ray_address: 127.0.0.1, needed: HOST:PORT"),
    ],
)
def test_an_address_where_no_ray_is_stops_before_anything_is_written(
    address: str, message: str, tmp_path: Path
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["ab"])
    with pytest.raises(SettingError, match=message):
        write_shards(
            input=source, tokenizer=byte_tokenizer(), output=tmp_path / "out", engine="ray", ray_address=address
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "slurm"}, "engine: 'slurm', needed: local or ray"),
        ({"ray_address": "a:1"}, "ray_address: 'a:1', needed: engine: ray"),
        ({"engine": "ray", "workers": 0}, "workers: 0, needed: 1 or more with engine: ray"),
    ],
)
def test_settings_that_do_not_fit_the_engine_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        WriteArguments(input=["a"], tokenizer="t", output="o", **settings)


def nothing(argument: Any) -> None:
    """What the worker of this setup does first."""


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """What a worker is told whose node is as it should be."""
    (tmp_path / "plan.json").write_text("plan")
    return Setup(
        prepare=nothing,
        argument=None,
        shared_file=tmp_path / "plan.json",
        content=b"plan",
        folder=tmp_path,
        versions=versions(),
    )


def test_a_node_with_other_code_is_named_with_what_differs(setup: Setup) -> None:
    old = replace(setup, versions=versions() | {"numpy": "1.0"})
    message = rf"node {socket.gethostname()} runs other code: numpy \S+ against 1\.0 where the command runs"
    with pytest.raises(TokentarError, match=message):
        old.begin()
    assert difference(versions(), versions() | {"tokentar": "0"}) == f"tokentar {versions()['tokentar']} against 0"


@pytest.mark.parametrize("seen", [None, b"of another folder"])
def test_a_node_that_does_not_see_the_output_is_named(setup: Setup, seen: bytes | None) -> None:
    setup.shared_file.unlink()
    if seen is not None:
        setup.shared_file.write_bytes(seen)
    with pytest.raises(TokentarError, match=rf"node {socket.gethostname()} does not see {setup.shared_file.parent} as"):
        setup.begin()
