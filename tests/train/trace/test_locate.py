"""Sequences are found by the order alone, and are those that loaders read."""

from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.marked import write_marked
from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.errors import SettingError
from tokentar.train.trace.locate import Locator, Sequence

Marked = Callable[..., Manifest]
UNEVEN = [3, 120, 41, 41, 200, 7, 90, 1, 110]


@pytest.mark.parametrize("order", ["epoch", "repeat", "resample"])
@pytest.mark.parametrize("rows", [[20] * 6, UNEVEN])
def test_each_sample_is_the_sequence_that_a_loader_reads(marked: Marked, order: str, rows: list[int]) -> None:
    manifest = marked(len(rows), rows)
    loader = ShardLoader(manifest, batch_size=6, streams=6, seed=3, order=order)
    locator = Locator(loader.reading)
    for epoch in (0, 1) if order == "epoch" else (0,):
        loader.set_epoch(epoch)
        read = list(chain(*(loader.sample_keys for _ in islice(loader, 70))))
        assert [sequence.key for sequence in locator.sequences(epoch, range(len(read)))] == read


@pytest.mark.parametrize("order", ["epoch", "repeat"])
def test_each_sequence_is_found_at_the_sample_that_reads_it(marked: Marked, order: str) -> None:
    manifest = marked(len(UNEVEN), UNEVEN)
    loader = ShardLoader(manifest, batch_size=6, streams=6, seed=3, order=order)
    locator, read = Locator(loader.reading), {}
    for epoch in range(3):
        first = 0 if order == "epoch" else epoch * loader.order.samples
        for sample, found in enumerate(locator.sequences(epoch, range(first, first + loader.order.samples)), first):
            read[found, epoch] = sample
    for number in range(0, sum(UNEVEN), 7):
        sequence = Sequence("", number)
        assert dict(locator.samples(sequence, range(3))) == {epoch: read.get((sequence, epoch)) for epoch in range(3)}


@pytest.fixture
def mixture(tmp_path: Path) -> dict[str, Any]:
    return {
        "code": (write_marked(tmp_path / "code", 4, [31, 30, 30, 30]), 0.3),
        "web": (write_marked(tmp_path / "web", 12, 20), 0.7),
    }


def test_sequences_of_a_mixture_are_found_both_ways(mixture: dict[str, Any]) -> None:
    loader = ShardLoader(mixture, batch_size=6, streams=6, seed=3)
    locator = Locator(loader.reading)
    read = list(chain(*(loader.sample_keys for _ in islice(loader, 200))))
    assert [sequence.key for sequence in locator.sequences(0, range(len(read)))] == read
    for key in sorted(set(read))[::5]:
        found = dict(locator.samples(Sequence.parse(key), range(2)))
        assert [sample for sample in found.values() if sample is not None and sample < 1200] == [
            place for place, seen in enumerate(read) if seen == key
        ][:2]


def test_the_shard_and_row_of_a_sequence_are_told(marked: Marked) -> None:
    locator = Locator(ShardLoader(marked(3, [3, 4, 5]), batch_size=1).reading)
    assert [locator.shard_of(Sequence("", number)) for number in (0, 3, 11)] == [
        ("train-000000.tar", 0),
        ("train-000001.tar", 0),
        ("train-000002.tar", 4),
    ]


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (Sequence("", 12), "has no such sequence"),
        (Sequence("web", 1), "no such source; there are none, leave it out"),
    ],
)
def test_a_sequence_that_is_none_is_refused(marked: Marked, sequence: Sequence, message: str) -> None:
    locator = Locator(ShardLoader(marked(3, [3, 4, 5]), batch_size=1).reading)
    with pytest.raises(SettingError, match=message):
        locator.shard_of(sequence)


def test_keys_are_parsed_as_they_are_printed() -> None:
    assert Sequence.parse("web/000000000012") == Sequence("web", 12)
    assert Sequence.parse("000000000012").key == "000000000012"
    with pytest.raises(SettingError, match="sequence: 'abc', needed: a key"):
        Sequence.parse("abc")
