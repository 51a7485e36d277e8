"""Where each token comes from (G12): traced back with pyarrow alone, the same for any number of workers, checked like the shards."""

import bisect
import gzip
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.written import EOS, Write, byte_ids, contents, cut_small, jsonl, rows_of
from tokentar import Manifest


@pytest.fixture
def write(write: Write, monkeypatch: pytest.MonkeyPatch) -> Write:
    """The same with sequences of 16 tokens, and many small tasks of several batches."""
    cut_small(monkeypatch, task_bytes=300, batch_bytes=100, part_bytes=200)
    return partial(write, seq_length=16)


def texts(count: int, seed: int = 0) -> list[str]:
    """Different texts of 1 to 60 characters."""
    draw = random.Random(seed)
    return [f"{seed}.{i} " + "é" * draw.randrange(50) for i in range(count)]


def pieces(manifest: Manifest) -> list[dict[str, Any]]:
    """All rows of all tables, with the number of the sequence that each is about."""
    found: list[dict[str, Any]] = []
    for entry in manifest.shards:
        table = pq.read_table(manifest.root / f"{entry.shard}.docs.parquet")
        found += [piece | {"sequence": manifest.firsts[entry.shard] + piece["row"]} for piece in table.to_pylist()]
    return found


def traced(manifest: Manifest) -> dict[tuple[str, int], list[list[int]]]:
    """By (source, place): the ids of each piece that is said to be from there."""
    rows, found = rows_of(manifest), {}
    for piece in pieces(manifest):
        ids = rows[piece["sequence"]][piece["start"] : piece["start"] + piece["length"]]
        found.setdefault((piece["source"], piece["place"]), []).append(ids)
    return found


def assert_from(ids: list[int], text: str) -> None:
    """These ids stand in that document."""
    whole, part = (np.array(numbers, np.uint16).tobytes() for numbers in (byte_ids(text), ids))
    assert part in whole, (text, ids)


@pytest.mark.parametrize("settings", [{"shuffle": False}, {}, {"validation_fraction": 0.3}, {"packing": "best_fit"}])
def test_every_piece_of_every_row_is_traced_to_its_line(settings: dict[str, Any], write: Write, tmp_path: Path) -> None:
    lines: list[str | None] = [*texts(70), None, "", *texts(70, 1)]
    first, second = jsonl(tmp_path / "a.jsonl", lines), jsonl(tmp_path / "b.jsonl", texts(50, 2))
    manifest = write([first, second], num_shards=3, **settings)
    by_place = traced(manifest)
    assert {source for source, _ in by_place} == {first, second}
    for (source, place), found in by_place.items():
        text = lines[place - 1] if source == first else texts(50, 2)[place - 1]
        assert text
        for ids in found:
            assert_from(ids, text)
    kept = sum(len(ids) for found in by_place.values() for ids in found)
    assert kept == manifest.info.totals.tokens - manifest.info.totals.tail


@pytest.mark.parametrize("settings", [{"shuffle": False}, {}])
def test_the_pieces_of_a_row_fill_it_end_to_end(settings: dict[str, Any], write: Write, tmp_path: Path) -> None:
    manifest = write(jsonl(tmp_path / "a.jsonl", texts(100)), num_shards=4, **settings)
    reached = dict.fromkeys(range(manifest.info.totals.sequences), 0)
    for piece in pieces(manifest):
        assert piece["start"] == reached[piece["sequence"]]
        reached[piece["sequence"]] += piece["length"]
    assert set(reached.values()) == {16}


def test_documents_are_numbered_in_the_order_of_the_input(write: Write, tmp_path: Path) -> None:
    lines = [None, "ab", "", "cdefg", "h" * 30, None, "i"]
    first, second = jsonl(tmp_path / "a.jsonl", lines), jsonl(tmp_path / "b.jsonl", ["jk", "l" * 9])
    manifest = write([first, second], seq_length=8, num_shards=1, shuffle=False)
    # documents of 3, 6, 31, 2, 3 and 10 tokens with EOS, end to end in rows of 8
    wanted = [
        (0, 0, 3, 0, first, 2), (0, 3, 5, 1, first, 4),
        (1, 0, 1, 1, first, 4), (1, 1, 7, 2, first, 5),
        (2, 0, 8, 2, first, 5), (3, 0, 8, 2, first, 5), (4, 0, 8, 2, first, 5),
        (5, 0, 2, 3, first, 7), (5, 2, 3, 4, second, 1), (5, 5, 3, 5, second, 2),
    ]  # fmt: skip
    found = [
        tuple(piece[key] for key in ("row", "start", "length", "document", "source", "place"))
        for piece in pieces(manifest)
    ]
    assert found == wanted[: len(found)]
    assert len(found) == 10
    assert manifest.info.totals.tail == 55 - 48


def test_places_are_those_of_each_kind_of_input(write: Write, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["p0", None, "p2", "p3"]}), tmp_path / "a.parquet", row_group_size=2)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "z1"}\n\n{"text": "z3"}\n'))
    (tmp_path / "c.csv").write_text("text\nc0\nc1\n")
    for name in ("d.txt", "e.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").write_text("")
    manifest = write(str(tmp_path / "[a-e]*"), seq_length=1, num_shards=1, shuffle=False)
    wanted = {("a.parquet", 0): "p0", ("a.parquet", 2): "p2", ("a.parquet", 3): "p3"}
    wanted |= {("b.jsonl.gz", 1): "z1", ("b.jsonl.gz", 3): "z3", ("c.csv", 0): "c0", ("c.csv", 1): "c1"}
    wanted |= {("d.txt", 0): "d.txt", ("e.txt", 0): "e.txt"}
    found = {place: [token for ids in parts for token in ids] for place, parts in traced(manifest).items()}
    assert found == {(str(tmp_path / name), place): byte_ids(text) for (name, place), text in wanted.items()}


def test_rows_in_memory_bear_their_number(write: Write) -> None:
    manifest = write([{"text": text} for text in ("ab", None, "c")], seq_length=5, num_shards=1, shuffle=False)
    assert [(piece["source"], piece["place"]) for piece in pieces(manifest)] == [("list", 0), ("list", 2)]


@pytest.mark.processes
def test_provenance_is_the_same_bytes_for_any_number_of_workers(write: Write, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", texts(200))
    for workers in (0, 2):
        write(source, str(workers), num_shards=5, workers=workers, packing="best_fit")
    assert contents(tmp_path / "0") == contents(tmp_path / "2")
    assert "train-000004.docs.parquet" in contents(tmp_path / "0")


def test_provenance_can_be_left_out_and_changes_no_shard(write: Write, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", texts(50))
    manifests = [write(source, str(flag), provenance=flag) for flag in (True, False)]
    found = [contents(tmp_path / str(flag)) for flag in (True, False)]
    assert set(found[0].keys() - found[1].keys()) == {f"{e.shard}.docs.parquet" for e in manifests[0].shards}
    assert all(found[0][name] == found[1][name] for name in found[1] if name.endswith(".tar"))
    assert manifests[0].fingerprint == manifests[1].fingerprint  # a training may go on from either
    assert "docs" not in (tmp_path / "False" / "manifest.jsonl").read_text()


def test_names_of_sources_are_stored_once_a_shard(write: Write, tmp_path: Path) -> None:
    manifest = write(jsonl(tmp_path / "a.jsonl", texts(100)), num_shards=1)
    table = pq.read_table(manifest.root / "train-000000.docs.parquet")
    assert table.column_names == ["row", "start", "length", "document", "source", "place"]
    assert table["source"].chunk(0).dictionary.to_pylist() == [str(tmp_path / "a.jsonl")]
    assert table["row"].to_pylist() == sorted(table["row"].to_pylist())


def test_any_row_finds_its_pieces_by_bisection(write: Write, tmp_path: Path) -> None:
    manifest = write(jsonl(tmp_path / "a.jsonl", texts(100)), num_shards=1)
    rows = pq.read_table(manifest.root / "train-000000.docs.parquet")["row"].to_pylist()
    for row in (0, 7, manifest.shards[0].num_sequences - 1):
        assert set(rows[bisect.bisect_left(rows, row) : bisect.bisect_right(rows, row)]) == {row}


def test_ends_of_documents_are_where_the_pieces_say(write: Write, tmp_path: Path) -> None:
    manifest = write(jsonl(tmp_path / "a.jsonl", texts(100)), num_shards=2)
    rows = rows_of(manifest)
    for piece in pieces(manifest):
        ids = rows[piece["sequence"]][piece["start"] : piece["start"] + piece["length"]]
        assert EOS not in ids[:-1]
        assert ids[-1] == EOS or piece["start"] + piece["length"] == 16
