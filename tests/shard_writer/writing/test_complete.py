"""The same command over a finished set does nothing and ends well; with other inputs or settings it is refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.web import web_server
from tests.helpers.written import Write, contents, jsonl
from tokentar import Manifest, SetError, open_shards, write_shards
from tokentar.shard_writer.maintenance.reshard import reshard

SETTINGS: dict[str, Any] = {"seq_length": 8, "num_shards": 3, "workers": 0}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(jsonl(tmp_path / "a.jsonl", [f"{number:07d}" for number in range(40)]))


@pytest.fixture
def write(t0: Any, source: Path, tmp_path: Path) -> Write:
    """write_shards of `source` in this process, with the byte tokenizer."""

    def run(**settings: Any) -> Manifest:
        defaults = {"input": str(source), "tokenizer": t0, "output": tmp_path / "out"}
        return write_shards(**SETTINGS | defaults | settings)

    return run


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time of the last change and content of everything in a folder, and of the folder."""
    found = {path: path.stat() for path in (folder, *folder.rglob("*"))}
    return {
        str(path): (stat.st_ino, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path, stat in found.items()
    }


def test_the_same_writing_again_returns_the_set_and_touches_nothing(write: Write, tmp_path: Path) -> None:
    first = write()
    before = state(tmp_path / "out")
    assert write() == first
    assert write(workers=1, tokenizer_engine="tokenizers") == first  # neither changes a byte of a set
    assert state(tmp_path / "out") == before


@pytest.mark.parametrize(
    "settings",
    [
        {"seq_length": 4},
        {"num_shards": 2},
        {"seed": 1},
        {"shuffle": False},
        {"packing": "best_fit"},
        {"validation_fraction": 0.5},
        {"provenance": False},
        {"add_bos": True},
        {"name": "other"},
        {"bad_documents": "skip"},
        {"tokenizer": byte_tokenizer(extra=9)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_settings_are_refused_as_ever(settings: dict[str, Any], write: Write, tmp_path: Path) -> None:
    write()
    before = state(tmp_path / "out")
    with pytest.raises(SetError, match="already holds"):
        write(**settings)
    assert {path: seen for path, seen in state(tmp_path / "out").items() if path != str(tmp_path / "out")} == {
        path: seen for path, seen in before.items() if path != str(tmp_path / "out")
    }
    write(overwrite=True, **settings)


def change_text(path: Path) -> None:
    path.write_text(path.read_text().replace("0000001", "1111111"))


def change_text_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    change_text(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def add_a_line(path: Path) -> None:
    path.write_text(path.read_text() + '{"text": "more"}\n')


@pytest.mark.parametrize("change", [change_text, change_text_and_set_the_time_back, add_a_line])
def test_an_input_that_was_changed_is_another_input(
    change: Callable[[Path], None], write: Write, source: Path, tmp_path: Path
) -> None:
    write()
    change(source)
    with pytest.raises(SetError, match="already holds"):
        write()
    assert write(overwrite=True).info.totals.tokens >= 320


def test_another_file_of_the_same_size_and_one_more_are_other_inputs(
    write: Write, source: Path, tmp_path: Path
) -> None:
    other = tmp_path / "b.jsonl"
    other.write_bytes(source.read_bytes())
    write()
    for names in ([str(other)], [str(source), str(other)]):
        with pytest.raises(SetError, match="already holds"):
            write(input=names)


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 600)])
def test_a_set_that_is_not_whole_is_not_complete(damage: Callable[[Path], None], write: Write, tmp_path: Path) -> None:
    write()
    damage(tmp_path / "out" / "train-000001.tar")
    with pytest.raises(SetError, match="already holds"):
        write()


def test_a_set_of_an_older_version_is_compared_by_what_it_has(write: Write, tmp_path: Path) -> None:
    write()
    path = tmp_path / "out" / "dataset.json"
    values = json.loads(path.read_text())
    for key in ("packing", "provenance", "validation_fraction"):
        del values["settings"][key]
    path.write_text(json.dumps(values))
    assert write().info.settings.keys() == values["settings"].keys()
    with pytest.raises(SetError, match="already holds"):
        write(packing="best_fit")


def test_documents_of_memory_are_never_taken_for_those_of_before(write: Write) -> None:
    rows = [{"text": "some text"}] * 9
    write(input=rows)
    with pytest.raises(SetError, match="already holds"):
        write(input=rows)


def test_a_saved_data_set_is_complete_until_one_of_its_files_changes(write: Write, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["some text"] * 9}).save_to_disk(tmp_path / "saved")
    assert write(input=str(tmp_path / "saved")) == write(input=str(tmp_path / "saved"))
    datasets.Dataset.from_dict({"text": ["other txt"] * 9}).save_to_disk(tmp_path / "saved")
    with pytest.raises(SetError, match="already holds"):
        write(input=str(tmp_path / "saved"))


def test_an_append_that_was_done_is_not_done_twice(write: Write, source: Path, tmp_path: Path) -> None:
    more = [jsonl(tmp_path / f"{name}.jsonl", [f"{name * 7}"] * 16) for name in "bcd"]
    write()
    for name in more[:2]:
        write(input=name, append=True)
    whole = open_shards(tmp_path / "out")
    before = state(tmp_path / "out")
    for name in more[:2]:  # a job of several commands, started again as a whole
        assert write() == write(input=name, append=True) == whole
    assert state(tmp_path / "out") == before
    assert len(write(input=more[2], append=True).info.appended) == 3
    assert len(write(input=more[0], append=True, seed=1).info.appended) == 4
    Path(more[0]).write_text(Path(more[0]).read_text().replace("b", "e"))
    manifest = write(input=more[0], append=True)
    assert manifest.info.totals.documents == 40 + 5 * 16


def test_a_set_that_was_appended_is_not_the_writing_of_that_input_alone(write: Write, tmp_path: Path) -> None:
    other = jsonl(tmp_path / "b.jsonl", ["bbbbbbb"] * 16)
    write()
    write(input=other, append=True)
    with pytest.raises(SetError, match="already holds"):
        write(input=other)


def test_reshard_again_touches_nothing_until_its_source_is_written_anew(write: Write, tmp_path: Path) -> None:
    write()
    first = reshard(tmp_path / "out", tmp_path / "copy", num_shards=2)
    before = state(tmp_path / "copy")
    assert reshard(tmp_path / "out", tmp_path / "copy", num_shards=2) == first
    assert state(tmp_path / "copy") == before
    with pytest.raises(SetError, match="already holds"):
        reshard(tmp_path / "out", tmp_path / "copy", num_shards=4)
    with pytest.raises(SetError, match="already holds"):
        write(output=tmp_path / "copy")
    write(overwrite=True)
    with pytest.raises(SetError, match="already holds"):
        reshard(tmp_path / "out", tmp_path / "copy", num_shards=2)
    assert contents(reshard(tmp_path / "out", tmp_path / "copy", num_shards=2, overwrite=True).folder).keys() == {
        *(f"train-00000{shard}{suffix}" for shard in range(2) for suffix in (".tar", ".docs.parquet")),
        "dataset.json",
        "manifest.jsonl",
    }


def test_a_link_that_was_signed_anew_names_the_same_input(write: Write, source: Path, tmp_path: Path) -> None:
    os.utime(source, (1_700_000_000, 1_700_000_000))
    with web_server(tmp_path) as web:
        first = write(input=f"{web.url}/a.jsonl?signature=1")
        assert write(input=f"{web.url}/a.jsonl?signature=2") == first
        change_text(source)
        os.utime(source, (4_000_000_000, 4_000_000_000))
        with pytest.raises(SetError, match="already holds"):
            write(input=f"{web.url}/a.jsonl?signature=2")
