"""dataset.json and manifest.jsonl: written last, read back equal, and refused with a sentence when they do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokentar import Manifest, SetError, open_shards
from tokentar.shard_writer.format.manifest import ShardEntry, write_manifest
from tokentar.shard_writer.maintenance.verify import faults

Factory = Callable[..., Manifest]


def edit(manifest: Manifest, **changes: Any) -> None:
    """Change keys of dataset.json."""
    path = manifest.root / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_line(manifest: Manifest, line: int, **changes: Any) -> None:
    """Change keys of one line of manifest.jsonl."""
    path = manifest.root / "manifest.jsonl"
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | changes)
    path.write_text("\n".join(lines) + "\n")


def test_a_set_is_read_back_as_it_was_written(marked: Factory) -> None:
    written = marked(3, [4, 4, 3])
    read = open_shards(written.root)
    assert read == written
    assert read.num_sequences.tolist() == [4, 4, 3]
    assert read.first_sequences.tolist() == [0, 4, 8]
    assert read.open(2).rows[:, 0].tolist() == [8, 9, 10]


def test_a_line_of_the_manifest_holds_the_documented_keys(marked: Factory) -> None:
    text = (marked(2, 4).root / "manifest.jsonl").read_text()
    assert text.endswith("}\n")
    first = json.loads(text.splitlines()[0])
    assert list(first) == ["shard", "split", "num_sequences", "bytes", "xxh3"]
    assert list(first.values())[:4] == ["train-000000", "train", 4, 10240]


def test_a_manifest_without_a_last_newline_loses_no_shard(marked: Factory) -> None:
    path = marked(3, 4).root / "manifest.jsonl"
    path.write_text(path.read_text().removesuffix("\n"))
    assert len(open_shards(path.parent).shards) == 3


def test_a_chosen_split_keeps_the_numbers_of_its_sequences(marked: Factory) -> None:
    manifest = marked(3, 4)
    part = manifest.choose(["train-000002"])
    assert part.first_sequences.tolist() == [8]
    assert part.open(0).rows[0, 0] == 8
    with pytest.raises(SetError, match=r"no split 'test'; there are \['train'\]"):
        manifest.split("test")


def test_fingerprint_changes_with_any_line_or_choice(marked: Factory) -> None:
    manifest = marked(3, 4)
    fingerprints = {
        manifest.fingerprint,
        manifest.choose(["train-000000", "train-000001"]).fingerprint,
        marked(3, [4, 4, 5], name="other").fingerprint,
    }
    assert len(fingerprints) == 3
    assert open_shards(manifest.root).fingerprint == manifest.fingerprint


def test_dataset_json_is_written_after_the_manifest(marked: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokentar.shard_writer.storage import files

    manifest = marked(1, 4)
    order: list[str] = []
    put = files.put
    monkeypatch.setattr(files, "put", lambda path, content: (order.append(path.name), put(path, content)))
    write_manifest(manifest)
    assert order == ["manifest.jsonl", "dataset.json"]


@pytest.mark.parametrize("name", ["../train-000000", "/etc/passwd", "a/b", "", ".", "..", ".hidden"])
def test_a_manifest_names_files_of_its_own_folder_only(name: str, marked: Factory) -> None:
    manifest = marked(2, 4)
    edit_line(manifest, 1, shard=name)
    with pytest.raises(SetError, match=r"manifest\.jsonl:2: shard .* is not a plain name"):
        open_shards(manifest.root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "format version 2, this tokentar reads 1"),
        ({"format": "other"}, "not the dataset.json of a tokentar set"),
        ({"unheard_of": 1}, "a key is missing, unknown or wrong"),
        ({"totals": {}}, "a key is missing, unknown or wrong"),
        ({"seq_length": "8"}, "'8' tokens of 'uint16', needed: a number, of uint16 or uint32"),
        ({"dtype": "ids"}, "8 tokens of 'ids', needed: a number, of uint16 or uint32"),
        (
            {"splits": {"train": {"documents": 1, "tokens": 1, "sequences": 1, "tail": 0}}},
            "lists 8 sequences where dataset.json counts 1",
        ),
    ],
)
def test_a_dataset_json_that_does_not_fit_is_refused(changes: dict[str, Any], message: str, marked: Factory) -> None:
    manifest = marked(2, 4)
    edit(manifest, **changes)
    with pytest.raises(SetError, match=message):
        open_shards(manifest.root)


def test_a_lost_line_is_noticed(marked: Factory) -> None:
    path = marked(3, 4).root / "manifest.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(SetError, match=r"lists 8 sequences where dataset\.json counts 12; a line was lost or added"):
        open_shards(path.parent)


@pytest.mark.parametrize("line", ["", "{", "[]", '"train-000000"', '{"shard": "train-000000"}', '{"shard": 5}'])
def test_a_broken_line_is_named_by_its_number(line: str, marked: Factory) -> None:
    path = marked(2, 4).root / "manifest.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0] + line + "\n")
    with pytest.raises(SetError, match=r"manifest\.jsonl:2: "):
        open_shards(path.parent)


def test_a_manifest_of_odd_bytes_is_named(marked: Factory) -> None:
    path = marked(2, 4).root / "manifest.jsonl"
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(SetError, match=r"manifest\.jsonl:3: not a shard's line"):
        open_shards(path.parent)


def test_a_shard_whose_name_is_no_text_is_refused(marked: Factory) -> None:
    manifest = marked(2, 4)
    edit_line(manifest, 0, shard=5)
    with pytest.raises(SetError, match=r"manifest\.jsonl:1: "):
        open_shards(manifest.root)


def test_a_shard_listed_twice_is_refused(marked: Factory) -> None:
    manifest = marked(2, 4)
    edit_line(manifest, 1, shard="train-000000")
    with pytest.raises(SetError, match=r"manifest\.jsonl:2: shard 'train-000000' .*twice"):
        open_shards(manifest.root)


def test_an_unfinished_or_missing_set_is_no_set(tmp_path: Path, marked: Factory) -> None:
    with pytest.raises(SetError, match=r"no dataset\.json, so there is no finished set here"):
        open_shards(tmp_path / "nowhere")
    root = marked(2, 4).root
    (root / "manifest.jsonl").unlink()
    with pytest.raises(SetError, match=r"manifest\.jsonl: missing beside dataset\.json"):
        open_shards(root)
    (root / "dataset.json").write_text('{"format": "tokentar"')
    with pytest.raises(SetError, match=r"dataset\.json: not JSON"):
        open_shards(root)


def damage(root: Path, how: str) -> None:
    """One of the faults that `verify` finds."""
    path = root / "train-000001.tar"
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[700] ^= 1
    elif how == "cut":
        content = content[: 2 * 1024]  # exactly between two sequences
    elif how == "foreign":
        content = bytearray((root / "train-000000.tar").read_bytes())
    path.write_bytes(content)
    if how == "missing":
        path.unlink()
    if how == "extra":
        (root / "train-000002.tar").write_bytes(b"")


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ("flip", "train-000001.tar: checksum"),
        ("foreign", "train-000001.tar: checksum"),
        ("cut", "train-000001.tar: 2048 bytes, needed 10240; 2 of 4 sequences are there"),
        ("missing", "train-000001.tar: cannot be read: No such file or directory"),
        ("extra", "train-000002.tar: not in the manifest; it is of another set, remove it"),
    ],
)
def test_verify_finds_every_damage_and_names_the_shard(how: str, fault: str, marked: Factory) -> None:
    manifest = marked(2, 4)
    assert list(faults(manifest)) == []
    damage(manifest.root, how)
    (found,) = faults(open_shards(manifest.root))
    assert found.startswith(fault)


def test_verify_finds_each_single_flipped_bit_of_a_shard(marked: Factory) -> None:
    manifest = marked(1, 1)
    path = manifest.root / "train-000000.tar"
    good = path.read_bytes()
    for byte in range(0, len(good), 97):
        path.write_bytes(good[:byte] + bytes([good[byte] ^ 1]) + good[byte + 1 :])
        assert len(list(faults(manifest))) == 1, byte


def test_entries_know_their_file_name() -> None:
    assert ShardEntry(shard="a-000000", split="a", num_sequences=1, bytes=1, xxh3="").file_name == "a-000000.tar"
