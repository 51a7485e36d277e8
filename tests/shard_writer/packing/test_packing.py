"""Packing: each policy against a slow reference; no token lost (G1), no document cut that fits, fill never trained on."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.written import EOS, Write, byte_ids, contents, cut_small, jsonl, rows_of
from tokentar import InputError, Manifest, ShardLoader, World
from tokentar.shard_writer.packing import policies
from tokentar.train.data.access import Access
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.trainer.evaluation import IGNORED, batches

CASES = [(seed, seq_length) for seed in range(12) for seq_length in (1, 2, 7, 16, 64)]


def lengths_of(seed: int) -> list[int]:
    """Some lengths from 1 to 200, short ones more often."""
    draw = random.Random(seed)
    return [int(200 ** draw.random()) for _ in range(draw.randrange(1, 60))]


def slow_fit(lengths: list[int], capacity: int) -> list[int]:
    """Best-fit decreasing by looking at every bin for every piece."""
    rooms: list[int] = []
    last_filled: list[int] = []
    bins = [0] * len(lengths)
    for turn, piece in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        fitting = [b for b, room in enumerate(rooms) if room >= lengths[piece]]
        if fitting:
            chosen = min(fitting, key=lambda b: (rooms[b], -last_filled[b]))
        else:
            chosen = len(rooms)
            rooms.append(capacity)
            last_filled.append(turn)
        rooms[chosen] -= lengths[piece]
        last_filled[chosen] = turn
        bins[piece] = chosen
    return bins


@pytest.mark.parametrize(("seed", "capacity"), CASES)
def test_best_fit_puts_every_piece_where_a_slow_search_does(seed: int, capacity: int) -> None:
    lengths = [min(length, capacity) for length in lengths_of(seed)]
    assert policies.fit(np.array(lengths), capacity).tolist() == slow_fit(lengths, capacity)


def laid(tiles: policies.Tiles) -> list[list[tuple[int, int]]]:
    """By row: the numbers of the tokens in it, as (document, token of all); the starts must follow one another."""
    rows: list[list[tuple[int, int]]] = [[] for _ in range(int(tiles.row.max()) + 1)]
    for row, start, length, document, token in zip(
        *(column.tolist() for column in (tiles.row, tiles.start, tiles.length, tiles.document, tiles.token)),
        strict=True,
    ):
        assert start == len(rows[row])
        rows[row] += [(document, token + i) for i in range(length)]
    return rows


def tokens_of(lengths: list[int]) -> list[tuple[int, int]]:
    """All tokens of documents of these lengths, in order."""
    owners = [document for document, length in enumerate(lengths) for _ in range(length)]
    return list(zip(owners, range(len(owners)), strict=True))


@pytest.mark.parametrize(("seed", "seq_length"), CASES)
def test_wrap_lays_documents_end_to_end(seed: int, seq_length: int) -> None:
    lengths = lengths_of(seed)
    tokens = tokens_of(lengths)
    wanted = [tokens[i : i + seq_length] for i in range(0, len(tokens), seq_length)]
    assert laid(policies.wrap(np.array(lengths), seq_length)) == wanted


@pytest.mark.parametrize(("seed", "seq_length"), CASES)
def test_best_fit_cuts_no_document_that_fits_and_loses_no_token(seed: int, seq_length: int) -> None:
    lengths = lengths_of(seed)
    rows = laid(policies.best_fit(np.array(lengths), seq_length))
    assert sorted(token for row in rows for token in row) == tokens_of(lengths)
    assert all(len(row) <= seq_length for row in rows)
    for document, length in enumerate(lengths):
        parts = [Counter(owner for owner, _ in row)[document] for row in rows]
        whole, rest = divmod(length, seq_length)
        assert sorted(filter(None, parts)) == sorted(filter(None, [seq_length] * whole + [rest]))
    firsts = [row[0] for row in rows]
    assert firsts == sorted(firsts)  # rows stand in the order of the input
    assert len(rows) == policies.num_rows(np.array(lengths), seq_length)
    assert len(rows) == len(
        set(slow_fit([length % seq_length for length in lengths if length % seq_length], seq_length))
    ) + sum(length // seq_length for length in lengths)


def test_best_fit_by_hand() -> None:
    # rows of 10: a document of 23 gives two whole rows and 3; 7 goes with that rest of 3, 6 with 4, 5 with 5, 2 alone
    tiles = policies.best_fit(np.array([5, 23, 4, 7, 6, 5, 2]), 10)
    found = list(
        zip(tiles.row.tolist(), tiles.start.tolist(), tiles.length.tolist(), tiles.document.tolist(), strict=True)
    )
    assert found == [
        (0, 0, 5, 0), (0, 5, 5, 5),
        (1, 0, 10, 1),
        (2, 0, 10, 1),
        (3, 0, 3, 1), (3, 3, 7, 3),
        (4, 0, 4, 2), (4, 4, 6, 4),
        (5, 0, 2, 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "fill"),
    [
        ([5, 2, 6, 2, 2, 2], [0, 0, 0, 0, 1, 1]),
        ([5, 2, 6, 7, 8, 2], [0, 0, 0, 0, 0, 0]),  # a document ends with the row
        ([5, 2, 6, 7, 8, 9], [0, 0, 0, 0, 0, 0]),  # a document goes on in another row
        ([2, 2, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1]),  # the EOS of a document that is one token longer than a row
        ([2, 2, 5, 2, 2, 2], [0, 0, 0, 0, 1, 1]),  # not at the end of the row
    ],
)
def test_fill_is_told_from_the_ids_alone(row: list[int], fill: list[int]) -> None:
    assert policies.padding(np.array([row, row]), EOS).tolist() == [[bool(x) for x in fill]] * 2


@pytest.fixture
def write(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """The same with best_fit, sequences of 32 tokens, and many small tasks of several batches."""
    cut_small(monkeypatch, task_bytes=800, batch_bytes=400, part_bytes=200)

    def run(texts: list[str], output: str = "out", **settings: Any) -> Manifest:
        source = jsonl(tmp_path / "a.jsonl", texts)
        return write(source, output, **{"seq_length": 32, "packing": "best_fit"} | settings)

    return run


def texts() -> list[str]:
    """Different texts of 1 to 100 bytes."""
    return [f"{i}" + "x" * (length % 100) for i, length in enumerate(lengths_of(3) * 3)]


def documents_in(manifest: Manifest) -> Counter[str]:
    """The documents that stand whole in a row, without fill."""
    found: Counter[str] = Counter()
    for row in rows_of(manifest):
        kept = [
            token for token, is_fill in zip(row, policies.padding(np.array([row]), EOS)[0], strict=True) if not is_fill
        ]
        ends = [i + 1 for i, token in enumerate(kept) if token == EOS]
        found.update(bytes(t - 3 for t in kept[a : b - 1]).decode() for a, b in zip([0, *ends], ends, strict=False))
    return found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_shards", [1, 5])
def test_every_document_that_fits_stands_whole_in_a_row(
    shuffle: bool, num_shards: int, write: Write, tmp_path: Path
) -> None:
    manifest = write(texts(), shuffle=shuffle, num_shards=num_shards)
    short = [text for text in texts() if len(byte_ids(text)) <= 32]
    assert all(documents_in(manifest)[text] == short.count(text) for text in short)
    totals = manifest.info.totals
    assert totals.tokens == sum(len(byte_ids(text)) for text in texts())
    assert totals.tail == 0
    assert totals.sequences * 32 == totals.tokens + totals.padding
    fill = sum(int(policies.padding(np.array(manifest.open(i).rows), EOS).sum()) for i in range(num_shards))
    assert fill == totals.padding > 0
    assert '"padding": ' + str(totals.padding) in (tmp_path / "out" / "dataset.json").read_text()


def test_best_fit_gives_the_same_bytes_however_the_tasks_end(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(texts(), "straight", num_shards=3)
    monkeypatch.setattr(
        "tokentar.shard_writer.engines.local.run", lambda pool, step, items, ahead: [step(i) for i in [*items][::-1]]
    )
    write(texts(), "backwards", num_shards=3)
    assert contents(tmp_path / "straight") == contents(tmp_path / "backwards")


def test_one_short_document_makes_one_sequence_and_none_makes_an_error(write: Write) -> None:
    assert rows_of(write(["ab"], seq_length=5)) == [[100, 101, 2, 2, 2]]
    with pytest.raises(InputError, match="0 sequences: 0 tokens"):
        write([""], "none")


@pytest.mark.parametrize("packed", ["wrap", "best_fit"])
def test_fill_is_not_trained_on_and_all_else_is(packed: str, write: Write) -> None:
    manifest = write(texts(), packing=packed)
    for batch in ShardLoader(manifest, batch_size=2, rank=0, world_size=1, num_workers=0):
        fill = policies.padding(batch["input_ids"].numpy(), EOS) & (packed == "best_fit")
        assert batch["labels"].tolist() == np.where(fill, -100, batch["input_ids"].numpy()).tolist()


def test_fill_is_not_evaluated(write: Write) -> None:
    manifest = write(texts())
    pool = ShardPool.of(manifest, Access(), World(), streams=1)
    rows = manifest.info.totals.sequences
    found = list(batches(pool, np.arange(rows), 4, -(-rows // 4), separate_documents=False))
    labelled = sum(int((batch["labels"] != IGNORED).sum()) for batch in found)
    assert labelled == manifest.info.totals.tokens
