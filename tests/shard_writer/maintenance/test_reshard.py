"""reshard: the same sequences in the same order, in other shards, traced to the same documents."""

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.helpers.written import contents, jsonl, rows_of
from tokentar import Manifest, SetError, SettingError, open_shards, write_shards
from tokentar.__main__ import main
from tokentar.shard_writer.maintenance.reshard import reshard
from tokentar.shard_writer.maintenance.verify import faults


@pytest.fixture
def source(t0: Any, tmp_path: Path) -> Manifest:
    """A set of 7 shards of training and some of validation, appended to once."""
    settings: dict[str, Any] = {"tokenizer": t0, "seq_length": 8, "workers": 0, "validation_fraction": 0.2}
    first, second = jsonl(tmp_path / "a.jsonl", map(str, range(500))), jsonl(tmp_path / "b.jsonl", map(str, range(99)))
    write_shards(input=first, output=tmp_path / "source", num_shards=7, **settings)
    return write_shards(input=second, output=tmp_path / "source", append=True, **settings)


def origins(manifest: Manifest) -> list[tuple[Any, ...]]:
    """Where the tokens of all rows come from, rows numbered through."""
    found, first = [], 0
    for entry in manifest.shards:
        for piece in pq.read_table(manifest.root / f"{entry.shard}.docs.parquet").to_pylist():
            found.append((first + piece.pop("row"), *piece.values()))
        first += entry.num_sequences
    return found


@pytest.mark.parametrize("num_shards", [1, 5, 7, 60, None])
def test_every_split_keeps_its_sequences_their_order_and_their_documents(
    num_shards: int | None, source: Manifest, tmp_path: Path
) -> None:
    manifest = reshard(source.root, tmp_path / "out", num_shards=num_shards)
    assert list(faults(open_shards(tmp_path / "out"))) == []
    assert manifest.info.splits == source.info.splits
    for split in ("train", "validation"):
        assert rows_of(manifest.split(split)) == rows_of(source.split(split))
        assert origins(manifest.split(split)) == origins(source.split(split))
    sizes = manifest.split("train").num_sequences.tolist()
    assert len(sizes) == (num_shards or 24)
    assert max(sizes) - min(sizes) <= 1


def test_keys_are_numbered_through_and_shards_named_anew(source: Manifest, tmp_path: Path) -> None:
    manifest = reshard(source.root, tmp_path / "out", num_shards=3)
    names = [entry.shard for entry in manifest.shards]
    assert names[:4] == ["train-000000", "train-000001", "train-000002", "validation-000000"]
    assert manifest.first_sequences.tolist() == [sum(manifest.num_sequences[:i]) for i in range(len(names))]
    for index in range(len(names)):
        manifest.open(index)  # reads the keys of its first and last member


def test_the_same_set_gives_the_same_bytes(source: Manifest, tmp_path: Path) -> None:
    for name in ("one", "two"):
        reshard(source.root, tmp_path / name, num_shards=5)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_rerun_after_a_crash_anywhere_gives_the_same_bytes(
    t0: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = jsonl(tmp_path / "a.jsonl", map(str, range(500)))
    write_shards(input=text, tokenizer=t0, output=tmp_path / "set", seq_length=64, workers=0, num_shards=3)
    reshard(tmp_path / "set", tmp_path / "whole", num_shards=2)
    expected, replace = contents(tmp_path / "whole"), os.replace
    for at in range(1, 99):
        left = at

        def stop(old: Any, new: Any) -> None:
            nonlocal left
            replace(old, new)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stop)
            try:
                reshard(tmp_path / "set", tmp_path / f"out{at}", num_shards=2)
                break
            except KeyboardInterrupt:
                pass
        reshard(tmp_path / "set", tmp_path / f"out{at}", num_shards=2)
        assert contents(tmp_path / f"out{at}") == expected, at
    assert at == 15  # stopped at plan, 2 × (shard, provenance, line), publishing, 4 moves, manifest and dataset.json


def test_a_damaged_source_is_refused_by_name_and_nothing_is_left(source: Manifest, tmp_path: Path) -> None:
    path = source.root / "train-000003.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    with pytest.raises(SetError, match=r"train-000003\.tar: not the \d+ bytes with checksum"):
        reshard(source.root, tmp_path / "out", num_shards=2)
    assert not (tmp_path / "out").exists()


def test_what_cannot_work_is_refused(source: Manifest, tmp_path: Path) -> None:
    sequences = source.info.splits["train"].sequences
    with pytest.raises(SettingError, match=f"for {sequences} sequences of 'train'; ask for {sequences} at most"):
        reshard(source.root, tmp_path / "out", num_shards=sequences + 1)
    for count in (0, -1):
        with pytest.raises(SettingError, match=f"num_shards: {count}, needed: at least 1"):
            reshard(source.root, tmp_path / "out", num_shards=count)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SettingError, match="output: empty, needed: a folder or URL"):
        reshard(source.root, "")
    with pytest.raises(SettingError, match="is the set itself, needed: another folder"):
        reshard(source.root, source.root)
    reshard(source.root, tmp_path / "out", num_shards=2)
    with pytest.raises(SetError, match="already holds"):
        reshard(source.root, tmp_path / "out", num_shards=3)
    assert len(reshard(source.root, tmp_path / "out", num_shards=3, overwrite=True).split("train").shards) == 3


def test_a_set_without_provenance_is_resharded_without(t0: Any, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", map(str, range(500)))
    write_shards(input=source, tokenizer=t0, output=tmp_path / "set", seq_length=8, workers=0, provenance=False)
    reshard(tmp_path / "set", tmp_path / "out", num_shards=2)
    assert set(contents(tmp_path / "out")) == {"dataset.json", "manifest.jsonl", "train-000000.tar", "train-000001.tar"}


def test_the_command_prints_what_came_out(source: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reshard", str(source.root), str(tmp_path / "out"), "--num_shards", "4"]) == 0
    assert "; 4 shards, " in capsys.readouterr().out
    assert main(["reshard", str(source.root), str(tmp_path / "out"), "--num_shards", "5"]) == 1
    assert "already holds" in capsys.readouterr().err
