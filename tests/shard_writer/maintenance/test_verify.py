"""Damage is found and named (G10), and what the input still gives is written again: with its own bytes or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.web import web_server
from tests.helpers.written import contents, jsonl
from tokentar import Manifest, SetError, open_shards, write_shards
from tokentar.__main__ import main
from tokentar.shard_writer.maintenance.repair import repair
from tokentar.shard_writer.maintenance.reshard import reshard
from tokentar.shard_writer.maintenance.verify import faults

Sound = Callable[..., Manifest]


@pytest.fixture
def sound(t0: Any, tmp_path: Path) -> Sound:
    """A factory of finished sets, written once and appended to once, with their input and tokenizer still there."""
    t0.save_pretrained(tmp_path / "tokenizer")

    def make(folder: str = "set", **settings: Any) -> Manifest:
        for number in range(2):
            source = jsonl(tmp_path / f"{number}.jsonl", [f"{number} {i}" for i in range(200)])
            manifest = write_shards(
                input=source,
                tokenizer=str(tmp_path / "tokenizer"),
                output=tmp_path / folder,
                seq_length=16,
                append=number > 0,
                workers=0,
                **({"num_shards": 3, "validation_fraction": 0.1} | settings),
            )
        return manifest

    return make


def flip(path: Path) -> None:
    """One bit."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_line(root: Path, number: int) -> None:
    """A line of the manifest."""
    path = root / "manifest.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:number] + lines[number + 1 :]))


def test_damaged_and_missing_provenance_is_named(sound: Sound) -> None:
    root = sound().root
    flip(root / "train-000001.docs.parquet")
    (root / "train-000002.docs.parquet").unlink()
    os.truncate(root / "train-000004.docs.parquet", 9)
    (root / "train-000077.docs.parquet").write_bytes(b"")
    found = list(faults(open_shards(root)))
    assert [fault.split(": ")[0] for fault in found] == [f"train-{i:06d}.docs.parquet" for i in (1, 2, 4, 77)]
    assert "checksum" in found[0]
    assert "cannot be read: No such file" in found[1]
    assert "9 bytes, needed" in found[2]
    assert "not in the manifest; it is of another set, remove it" in found[3]


def test_a_lost_line_is_named_with_the_way_out(sound: Sound, capsys: pytest.CaptureFixture[str]) -> None:
    root = sound().root
    lose_line(root, 1)
    lines = len((root / "manifest.jsonl").read_text().splitlines())
    assert main(["verify", str(root)]) == 1
    said = capsys.readouterr().err
    assert f"manifest.jsonl: {lines} lines where dataset.json counts {lines + 1} shards; a line was lost" in said
    assert "verify --repair" in said


def damage(root: Path) -> None:
    """All that can befall the files of a set."""
    flip(root / "train-000000.tar")
    os.truncate(root / "train-000001.tar", 1024)
    (root / "train-000002.tar").unlink()
    flip(root / "train-000003.tar")  # of the writing that was appended
    (root / "train-000003.docs.parquet").unlink()
    (root / "validation-000000.tar").write_bytes((root / "train-000004.tar").read_bytes())


def test_repair_writes_every_damaged_file_again_and_touches_no_other(
    sound: Sound, capsys: pytest.CaptureFixture[str]
) -> None:
    root = sound().root
    before = contents(root)
    damage(root)
    kept = {
        name: (root / name).stat().st_ino for name in ("train-000004.tar", "train-000000.docs.parquet", "dataset.json")
    }
    assert main(["verify", str(root), "--repair"]) == 0
    said = capsys.readouterr().out.splitlines()
    names = {line.split(": ")[0] for line in said if line.endswith("written again")}
    shards = {f"train-{i:06d}.tar" for i in range(4)} | {"validation-000000.tar"}
    assert names == shards | {"train-000003.docs.parquet"}
    assert said[-1].endswith("all as written")
    assert contents(root) == before
    assert {name: (root / name).stat().st_ino for name in kept} == kept


@pytest.mark.parametrize("lost", ["line", "file", "garbage"])
def test_repair_restores_a_manifest_that_lost_something(lost: str, sound: Sound) -> None:
    root = sound().root
    before = contents(root)
    flip(root / "train-000001.tar")
    if lost == "line":
        lose_line(root, 1)
    elif lost == "file":
        (root / "manifest.jsonl").unlink()
    else:
        (root / "manifest.jsonl").write_text("{\n")
    assert set(repair(root, workers=0)) == {"manifest.jsonl: written again", "train-000001.tar: written again"}
    assert contents(root) == before


def test_a_sound_set_is_not_written_again(sound: Sound, tmp_path: Path) -> None:
    root = sound().root
    before = contents(root)
    (tmp_path / "0.jsonl").unlink()
    assert list(repair(root, workers=0)) == []
    assert contents(root) == before


def test_an_input_of_other_text_repairs_nothing_and_says_so(sound: Sound, tmp_path: Path) -> None:
    root = sound().root
    flip(root / "train-000000.tar")
    damaged = contents(root)
    source = tmp_path / "0.jsonl"
    source.write_text(source.read_text().replace("0 1", "0 x"))  # of the same size
    assert list(repair(root, workers=0)) == [
        "train-000000.tar: cannot be repaired: the input, or a library, gives other bytes now; write the set again"
    ]
    assert contents(root) == damaged


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("longer", r"cannot be repaired: its input has \d+ bytes, and had \d+ when the set was written"),
        ("gone", r"cannot be repaired: input .*0\.jsonl.* no such file"),
        ("tokenizer", r"cannot be repaired: tokenizer .*: no such folder"),
    ],
)
def test_an_input_that_is_not_what_it_was_is_refused(change: str, message: str, sound: Sound, tmp_path: Path) -> None:
    root = sound().root
    flip(root / "train-000000.tar")
    damaged = contents(root)
    if change == "longer":
        jsonl(tmp_path / "0.jsonl", map(str, range(1000)))
    elif change == "gone":
        (tmp_path / "0.jsonl").unlink()
    else:
        (tmp_path / "tokenizer").rename(tmp_path / "elsewhere")
    with pytest.raises(SetError, match=message):
        list(repair(root, workers=0))
    assert contents(root) == damaged


def test_a_resharded_set_names_its_own_way_out(sound: Sound, tmp_path: Path) -> None:
    reshard(sound().root, tmp_path / "out", num_shards=2)
    flip(tmp_path / "out" / "train-000000.tar")
    with pytest.raises(SetError, match="it was made by reshard; reshard its source again"):
        list(repair(tmp_path / "out"))


def test_rows_from_memory_cannot_be_repaired(t0: Any, tmp_path: Path) -> None:
    rows = [{"text": "some text"}] * 20
    root = write_shards(input=rows, tokenizer=t0, output=tmp_path / "out", seq_length=8, workers=0, num_shards=1).root
    flip(root / "train-000000.tar")
    with pytest.raises(SetError, match="cannot be repaired: its documents came from memory"):
        list(repair(root))


def test_what_dataset_json_says_is_enough_to_write_the_set_again(sound: Sound) -> None:
    """With flags that are not the defaults."""
    root = sound(
        "other", packing="best_fit", add_bos=True, shuffle=False, seed=7, name="web", bad_documents="skip"
    ).root
    before = contents(root)
    flip(root / "web-000000.tar")
    assert list(repair(root, workers=0)) == ["web-000000.tar: written again"]
    assert contents(root) == before
    assert json.loads(before["dataset.json"])["settings"]["add_bos"] is True


def test_a_set_on_a_web_server_without_listing_is_verified(
    marked: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    root = marked(3, 4).folder
    with web_server(root.parent) as web:
        assert main(["verify", f"{web.url}/{root.name}"]) == 0
        assert "3 shards, 30,720 bytes, all as written" in capsys.readouterr().out
        (root / "train-000001.tar").write_bytes(b"short")
        assert main(["verify", f"{web.url}/{root.name}"]) == 1
        assert "train-000001.tar: 5 bytes, needed 10240" in capsys.readouterr().err
