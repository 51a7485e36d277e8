"""dataset.json and manifest.jsonl: written last, read back equal, and refused with a sentence when they do not fit."""

import json
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.written import jsonl
from tokentar import Manifest, SetError, open_shards, write_shards
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
        ({"unheard_of": 1}, r"dataset\.json: unheard_of: unknown key; restore the file, or write"),
        ({"totals": {}}, r"dataset\.json: totals: Object missing required field"),
        ({"seq_length": "8"}, r"dataset\.json: seq_length: Expected `int`, got `str`"),
        ({"seq_length": 0}, r"dataset\.json: seq_length: Expected `int` >= 1"),
        ({"dtype": "ids"}, r"dataset\.json: dtype: Expected `str` matching regex"),
        ({"settings": {"packing": "best"}}, r"dataset\.json: settings\.packing: Invalid enum value 'best'"),
        (
            {"splits": {"train": {"documents": 1, "tokens": 1, "sequences": 1, "tail": 0}}},
            r"dataset\.json: totals\.documents: 8, but the splits have 1 together",
        ),
    ],
)
def test_a_dataset_json_that_does_not_fit_is_refused(changes: dict[str, Any], message: str, marked: Factory) -> None:
    manifest = marked(2, 4)
    edit(manifest, **changes)
    with pytest.raises(SetError, match=message):
        open_shards(manifest.root)


WRONG = ["8", [], [8], {}, None, -1, 8.0, 1.5, True, 10**30]


def places_of_numbers(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand in parsed JSON."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in pairs:
        yield from places_of_numbers(value, (*path, key))
    if type(values) in (int, float):
        yield path


def without_limits(path: tuple[Any, ...], value: Any) -> bool:
    """Whether a value is right at this place: any whole number is a seed, null a number that nobody knows or chose."""
    if path[-1] == "seed":
        return type(value) is int
    if path[-1] == "validation_fraction":
        return type(value) in (int, float)
    return value is None and (path[-1] == "num_shards" or path == ("shards",) or path[-2:] == ("source", "bytes"))


@pytest.fixture(scope="module")
def appended(tmp_path_factory: pytest.TempPathFactory, t0: Any) -> Path:
    """A set that was appended to, so that dataset.json holds a number in each place that may have one."""
    folder = tmp_path_factory.mktemp("appended")
    settings: dict[str, Any] = {"tokenizer": t0, "output": folder / "set", "seq_length": 8, "workers": 0}
    for number in range(2):
        source = jsonl(folder / f"{number}.jsonl", ["a long text"] * 20)
        (folder / f"{number}.jsonl").write_text(Path(source).read_text() + '{"text": null}\n')
        write_shards(input=source, num_shards=2, validation_fraction=0.3, append=number > 0, **settings)
    return folder / "set"


@pytest.mark.parametrize("name", ["dataset.json", "manifest.jsonl"])
def test_a_wrong_value_in_place_of_any_number_is_refused_with_file_and_key(name: str, appended: Path) -> None:
    path = appended / name
    before = path.read_text()
    first, *others = [before] if name == "dataset.json" else before.splitlines()
    places = list(places_of_numbers(json.loads(first)))
    assert len(places) == (43 if name == "dataset.json" else 3)
    try:
        for place, wrong in product(places, WRONG):
            if without_limits(place, wrong):
                continue
            values = json.loads(first)
            reduce(getitem, place[:-1], values)[place[-1]] = wrong
            path.write_text("\n".join([json.dumps(values), *others, ""]))
            key = next(part for part in reversed(place) if isinstance(part, str))
            with pytest.raises(SetError) as caught:
                open_shards(appended)
            assert name in str(caught.value)
            assert key in str(caught.value) or f"{place[-2:][0]}[...]" in str(caught.value), (place, wrong)
    finally:
        path.write_text(before)
    assert open_shards(appended).info.totals.documents == 40


def test_a_file_of_endless_brackets_is_refused(marked: Factory) -> None:
    manifest = marked(2, 4)
    (manifest.folder / "dataset.json").write_text("[" * 100_000)
    with pytest.raises(SetError, match=r"dataset\.json: not JSON"):
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
    with pytest.raises(SetError, match=r"manifest\.jsonl:3: not JSON"):
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
