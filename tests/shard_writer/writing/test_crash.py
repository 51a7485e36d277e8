"""A writer that is killed, or finds the disk full, goes on from what is done and ends with the same bytes (G2, G3)."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import Write, contents, jsonl
from tests.torture import write as torture
from tokentar import Manifest, SetError, open_shards
from tokentar.__main__ import main
from tokentar.shard_writer.storage.files import locked
from tokentar.shard_writer.writing import spool


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_writer_killed_in_any_phase_ends_with_the_bytes_of_an_undisturbed_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert torture.main(["--rounds", "4", "--megabytes", "12"]) == 0
    said = capsys.readouterr().out
    assert "4 rounds:" in said
    assert "every set is byte-identical" in said


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes: a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("size", "place"),
    [
        (600, ".spool/plan.json"),
        (3_000, ".spool/00000000-00000.part"),
        (60_000, ".spool/shards/train-000000.tar"),
    ],
)
def test_a_full_disk_is_an_error_that_names_the_file_and_the_rerun_goes_on(
    size: int, place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    source = jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(1000)])
    flags = ["--input", source, "--tokenizer", str(tmp_path / "tokenizer"), "--seq_length", "8", "--workers", "0"]
    flags += ["--num_shards", "3"]
    with files_of_at_most(size):
        assert main(["write", *flags, "--output", str(tmp_path / "out")]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error == f"error: {tmp_path / 'out' / place}: File too large; the same command goes on from what is done"
    assert not (tmp_path / "out" / "dataset.json").exists()
    for name in ("out", "whole"):
        assert main(["write", *flags, "--output", str(tmp_path / name)]) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_part_that_ends_early_is_an_error_and_not_read_as_tokens(tmp_path: Path) -> None:
    part = spool.Part(tmp_path, 0, 0, 1)
    documents = np.zeros(2, spool.DOCUMENT)
    documents["length"] = [3, 2]
    ids = np.arange(5, dtype=np.uint16)
    part.write(ids, documents, np.zeros(2, np.int64))
    spans = spool.Spans(tmp_path, 1, np.array([(0, 0, 2, 0, 2, 0, 5)], spool.SPAN))
    first, counts = np.array([1]), np.array([4])
    assert spans.documents()["length"].tolist() == [3, 2]
    assert spans.ids(ids.dtype, first, counts).tolist() == [1, 2, 3, 4]
    part.path.write_bytes(part.path.read_bytes()[:-1])
    with pytest.raises(SetError, match=r"00000000-00000\.part: ends before byte"):
        spans.ids(ids.dtype, first, counts)


@pytest.fixture
def write(write: Write, tmp_path: Path) -> Write:
    """The same for texts."""
    return lambda texts, **settings: write(jsonl(tmp_path / "a.jsonl", texts), **settings)


def test_a_lock_whose_file_its_last_holder_took_along_is_refused(
    write: Callable[..., Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits at the door while the set is finished must not work beside the next who comes."""
    import fcntl

    folder = tmp_path / "out" / ".spool"
    flock = fcntl.flock

    def late(*arguments: Any) -> None:
        flock(*arguments)
        (folder / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(SetError, match="another writer is at work here"), locked(folder):
        pass


def test_a_second_smaller_run_with_overwrite_leaves_its_own_files_alone(
    write: Callable[..., Manifest], tmp_path: Path
) -> None:
    write(["abcdefg"] * 10, num_shards=5)
    manifest = write(["abcdefg"] * 6, num_shards=3, overwrite=True)
    files = {f"train-{i:06d}{suffix}" for i in range(3) for suffix in (".tar", ".docs.parquet")}
    assert set(contents(tmp_path / "out")) == files | {"dataset.json", "manifest.jsonl"}
    assert open_shards(tmp_path / "out") == manifest
    assert len(manifest.shards) == 3
