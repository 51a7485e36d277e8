"""Orders without end (G7): repeat and resample, in any layout and from any position."""

import json
import random
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.helpers.worlds import (
    GLOBAL_BATCH,
    LAYOUTS,
    STREAMS,
    after,
    canonical,
    canonical_steps,
    job,
    next_batches,
    resumed,
    steps_of,
    without_end,
    write_even,
)
from tokentar import Manifest, ShardLoader
from tokentar.train.data.dataset import ShardRows, Span
from tokentar.train.data.prefetch import Prefetcher
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.distributed.world import World

Marked = Callable[..., Manifest]
REAL_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """530 sequences in shards that are equal up to one."""
    return write_even(tmp_path_factory.mktemp("even") / "set")


ENDLESS = pytest.mark.parametrize("order", ["repeat", "resample"])
SAMPLE = sorted({(1, 0, 72), (1, 3, 4), (2, 2, 36), (3, 0, 4), (4, 3, 2), (8, 3, 1), (8, 0, 9)} & set(LAYOUTS))


@ENDLESS
def test_the_steps_of_an_order_without_end_do_not_depend_on_the_layout(even: Manifest, order: str) -> None:
    steps, seen = 16, {}
    settings: dict[str, Any] = {"streams": STREAMS, "global_batch_size": GLOBAL_BATCH, "order": order, "seed": 3}
    assert len(SAMPLE) > 5
    for ranks, workers, size in SAMPLE:
        loaders = job(even, ranks, batch_size=size, num_workers=workers, **settings)
        batches = steps * GLOBAL_BATCH // (ranks * size)
        seen[ranks, workers, size] = steps_of([next_batches(loader, batches) for loader in loaders], GLOBAL_BATCH)
    expected = canonical_steps(without_end(even, loaders[0].order, steps * GLOBAL_BATCH), GLOBAL_BATCH)
    assert len(expected) == steps
    assert {layout for layout, read in seen.items() if read != expected} == set()


@ENDLESS
def test_samples_of_an_order_without_end_come_in_turn(even: Manifest, order: str) -> None:
    """Batches of 25 run across the border of an epoch of 504."""
    loaders = job(even, 2, batch_size=25, streams=24, order=order)
    samples = without_end(even, loaders[0].order, 1100)
    for rank, loader in enumerate(loaders):
        assert list(chain(*next_batches(loader, 22))) == samples[rank::2]


def test_repeat_reads_each_sequence_once_in_the_whole_rounds_of_each_epoch(even: Manifest) -> None:
    loader = ShardLoader(even, batch_size=25, streams=STREAMS, order="repeat")
    samples = list(chain(*next_batches(loader, 61)))
    epochs = [samples[start : start + 504] for start in (0, 504, 1008)]
    assert all(len(set(epoch)) == 504 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3, "each newly permuted"
    assert len({frozenset(epoch) for epoch in epochs}) == 3, "each leaves out other sequences"
    assert loader.plan.left_out == 26


@ENDLESS
@pytest.mark.parametrize("batches", [2, 22, 86])
def test_an_order_without_end_goes_on_in_any_layout(even: Manifest, order: str, batches: int) -> None:
    """After 48, 528 and 2064 samples, none of them the end of a step of 72; an epoch has 504."""
    state = after(even, (4, 0, 6), 0, batches, order)
    assert state["consumed"] == state["position"] == 24 * batches
    samples = without_end(even, ShardLoader(even, batch_size=1, streams=STREAMS, order=order).order, 24 * batches + 720)
    for layout in random.Random(batches).sample(SAMPLE, 4):
        loaders = resumed(even, layout, state, GLOBAL_BATCH, order)
        read = [next_batches(loader, 720 // (layout[0] * layout[2])) for loader in loaders]
        assert steps_of(read, GLOBAL_BATCH) == canonical_steps(samples[24 * batches :], GLOBAL_BATCH), layout


@ENDLESS
@pytest.mark.parametrize("done", [3, 10])
def test_an_order_without_end_goes_on_after_its_first_pass(marked: Marked, order: str, done: int) -> None:
    loader, states, batches = ShardLoader(marked(4, 4), batch_size=2, order=order), [], []
    for _ in islice(loader, 14):
        batches.append(loader.sample_numbers.tolist())
        states.append(loader.state_dict())
    again = ShardLoader(loader.manifest, batch_size=2, order=order)
    again.load_state_dict(json.loads(json.dumps(states[done - 1])))
    assert next_batches(again, 14 - done) == batches[done:]


@REAL_WORKERS
@ENDLESS
@pytest.mark.parametrize("workers", [1, 3])
def test_dataloader_workers_read_the_same_without_end(marked: Marked, order: str, workers: int) -> None:
    """12 samples an epoch, however many workers."""
    settings: dict[str, Any] = {"batch_size": 2, "order": order, "streams": 3}
    alone = ShardLoader(marked(3, 4), **settings)
    expected = next_batches(alone, 15)
    loader = ShardLoader(alone.manifest, num_workers=workers, **settings)
    batches = iter(loader)
    assert [loader.sample_numbers.tolist() for _ in islice(batches, 15)] == expected
    assert loader.plan.samples == 12
    if order == "repeat":
        epochs = [sorted(chain(*expected[start : start + 6])) for start in (0, 6)]
        assert epochs == [list(range(12))] * 2
    batches.close()  # type: ignore[attr-defined]


@REAL_WORKERS
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_real_workers_do_not_lengthen_an_epoch(marked: Marked, workers: int) -> None:
    loader = ShardLoader(marked(3, 4), batch_size=2, num_workers=workers)
    assert [len(rest) for rest in [[loader.sample_numbers for _ in loader] for _ in range(2)]] == [6, 6]


def test_streams_that_draw_differ_between_readers_and_follow_the_seed(marked: Marked) -> None:
    """16 shards of four, 2 ranks × 2 workers with a stream each: the first eight shards that each draws."""

    def drawn(seed: int) -> list[tuple[int, ...]]:
        settings: dict[str, Any] = {"num_workers": 2, "order": "resample", "streams": 4, "seed": seed}
        read = [list(chain(*next_batches(loader, 64))) for loader in job(manifest, 2, batch_size=1, **settings)]
        streams = [rank[worker::2] for rank in read for worker in range(2)]
        shards = [[number // 4 for number in stream] for stream in streams]
        assert all(shards[i][j : j + 4] == [shards[i][j]] * 4 for i in range(4) for j in range(0, 32, 4))
        return [tuple(stream[::4]) for stream in shards]

    manifest = marked(16, 4)
    first = drawn(0)
    assert [len(stream) for stream in first] == [8] * 4
    assert len(set(first)) == 4
    assert drawn(0) == first
    assert not set(drawn(1)) & set(first)


@ENDLESS
def test_a_resume_without_end_opens_only_what_it_reads(marked: Marked, order: str) -> None:
    """In the third epoch of six shards, or behind as many draws, only the shards still to come are there."""
    loader = ShardLoader(marked(6, 4), batch_size=4, streams=1, order=order)
    samples = without_end(loader.manifest, loader.order, 72)
    for _ in zip(range(16), loader, strict=False):
        pass
    coming = {number // 4 for number in samples[64:]}
    for index, entry in enumerate(loader.manifest.shards):
        if index not in coming:
            loader.manifest.path(entry).unlink()
    again = ShardLoader(loader.manifest, batch_size=4, streams=1, order=order)
    again.load_state_dict(loader.state_dict())
    assert len(coming) < 6
    assert list(chain(*next_batches(again, 2))) == samples[64:]


@ENDLESS
def test_an_order_without_end_has_no_length(even: Manifest, order: str) -> None:
    with pytest.raises(TypeError, match=f"order '{order}' has no end, .* set max_steps or max_tokens"):
        len(ShardLoader(even, batch_size=4, order=order))


def as_it_is(block: Any) -> Any:
    return block


def test_rows_reach_workers_that_are_started_anew(even: Manifest) -> None:
    """A worker that is not forked is sent the data set as bytes."""
    loader = ShardLoader(even, batch_size=4, streams=4)
    rows = ShardRows(loader.pool, loader.order, World(0, 1, 0, 1), Span(0, 0, 40), 20, np.dtype("<u2"))
    again = list(
        DataLoader(rows, batch_size=None, num_workers=1, multiprocessing_context="spawn", collate_fn=as_it_is)  # type: ignore[arg-type]
    )
    first = next(iter(rows))
    assert [len(numbers) for numbers, _ in again] == [20, 20]
    assert np.array_equal(again[0][0], first[0])
    assert np.array_equal(again[0][1], first[1])


@pytest.mark.parametrize("position", [0, 3, 9])
def test_a_stream_is_begun_when_its_first_row_is_due(marked: Marked, position: int) -> None:
    """Of eight shards in four streams, those of the streams not yet due are taken away."""
    manifest = marked(8, 4)
    loader = ShardLoader(manifest, batch_size=2, streams=4)
    samples = canonical(manifest, loader.order, 0)
    loader.load_state_dict(loader.state_dict() | {"position": position})
    due = {number // 4 for number in samples[position : position + 2]}
    for index, entry in enumerate(manifest.shards):
        if index not in due:
            manifest.path(entry).unlink()
    next(iter(loader))
    assert loader.sample_numbers.tolist() == samples[position : position + 2]


@pytest.mark.parametrize("order", ["epoch", "repeat", "resample"])
@pytest.mark.parametrize("position", [0, 1, 23, 24, 61, 130])
def test_shards_are_opened_ahead_in_the_order_that_they_are_read_in(
    marked: Marked, monkeypatch: pytest.MonkeyPatch, order: str, position: int
) -> None:
    """A round of 24 streams, each in a shard of its own, from any place on."""
    asked: list[int] = []

    def noting(pool: ShardPool, upcoming: Iterator[int], worker: int) -> Prefetcher:
        asked.extend(islice(upcoming, 24))
        return Prefetcher(pool, iter(()), worker)

    monkeypatch.setattr("tokentar.train.data.streams.Prefetcher", noting)
    loader = ShardLoader(marked(48, 5), batch_size=1, streams=24, order=order)
    span = Span(0, position, loader.order.samples)
    rows = ShardRows(loader.pool, loader.order, World(), span, 24, np.dtype("<u2"))
    numbers, _ = next(iter(rows))
    assert asked == (numbers // 5).tolist()
