"""A job of real size, simulated (G4, G5, G6, G11): 512 ranks × 4 workers, 100,000 shards that are not there.

Nothing here may depend on the number of shards that lie behind a position, or open one to find it.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.commands import plan_main as main
from tests.helpers.marked import write_marked
from tests.helpers.worlds import next_batches
from tests.train.order.test_plan import of_rows
from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.format.manifest import write_manifest
from tokentar.shard_writer.packing import layout
from tokentar.train.data.dataset import ShardRows, Span
from tokentar.train.data.shard_pool import SharedNotes
from tokentar.train.distributed.world import World
from tokentar.train.order.reading_order import Order
from tokentar.train.order.streams import share

RANKS, WORKERS, SHARDS, SEQ_LENGTH = 512, 4, 100_000, 8192
ROWS = np.tile([1220, 1221], SHARDS // 2)  # 122,050,000 sequences: 1T tokens
BATCH, GLOBAL_BATCH = 3, 3 * RANKS
SOME_RANKS = [0, 255, 511]


@dataclass(frozen=True)
class MarkedRows:
    """The rows of a shard that is not there: each holds its own number, as those of a marked set do."""

    first_sequence: int

    def __getitem__(self, row: int) -> Any:
        return np.full(SEQ_LENGTH, self.first_sequence + row, np.uint32)

    @property
    def rows(self) -> "MarkedRows":
        return self


@dataclass(frozen=True)
class EmptyPool:
    """A pool of such shards; `asked` are those that were opened."""

    manifest: Manifest
    asked: list[int]
    skipped: frozenset[int] = frozenset()
    leaves_out: bool = False
    notes: SharedNotes = field(default_factory=lambda: SharedNotes.of(0, 1))

    def open(self, index: int) -> MarkedRows:
        self.asked.append(index)
        return MarkedRows(int(self.manifest.first_sequences[index]))


@pytest.fixture(autouse=True)
def no_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are opened by the pool itself, when they are due."""
    monkeypatch.setattr("tokentar.train.data.streams.Prefetcher", lambda pool, *_: nullcontext(pool))


@dataclass(frozen=True)
class Slow:
    """The order as the design says it, for a row at a time."""

    order: Order
    epoch: int

    @cached_property
    def dealt(self) -> Any:
        return self.order.dealt(self.epoch).reshape(-1, self.order.streams)

    def number(self, sample: int) -> int:
        """The sequence that is sample number `sample`; here they are numbered as all rows are."""
        row, stream = divmod(sample, self.order.streams)
        for unit in self.dealt[:, stream].tolist():
            length = int(self.order.units.length[unit])
            if row < length:
                return int(self.order.unit_rows(self.epoch, unit)[row])
            row -= length
        raise IndexError(sample)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """A set of 1T tokens without a shard."""
    small = write_marked(tmp_path_factory.mktemp("scale") / "set", 1, 1)
    return of_rows(replace(small, info=replace(small.info, dtype="uint32")), ROWS.tolist(), SEQ_LENGTH)


def loader_of(manifest: Manifest, rank: int, ranks: int = RANKS) -> ShardLoader:
    loader = ShardLoader(
        manifest,
        batch_size=GLOBAL_BATCH // ranks,
        rank=rank,
        world_size=ranks,
        num_workers=WORKERS,
        global_batch_size=GLOBAL_BATCH,
    )
    without_files(loader)
    return loader


def without_files(loader: ShardLoader) -> list[int]:
    """Let a loader read from a new EmptyPool; returns what that will be asked for."""
    pool: Any = EmptyPool(loader.manifest, [])
    loader.reading = replace(loader.reading, pool=pool)
    asked: list[int] = pool.asked
    return asked


def at(loader: ShardLoader, epoch: int, position: int) -> list[int]:
    """Let a loader go on from a position; returns the shards that it will open."""
    loader.load_state_dict(loader.state_dict() | {"epoch": epoch, "position": position, "consumed": position})
    return without_files(loader)


def read(loader: ShardLoader, batches: int) -> list[int]:
    """The sequences of the next batches of a rank, its workers played by hand."""
    return [number for batch in next_batches(loader, batches, block_rows=1) for number in batch]


def test_first_middle_and_last_samples_of_every_rank_are_there_once(manifest: Manifest) -> None:
    loader = loader_of(manifest, 0)
    order, samples = loader.order, loader.plan.usable(loader.order.samples)
    assert (order.streams, len(order.units)) == (6144, 17 * 6144)
    assert samples == 122_050_000 // 6144 * 6144 // 1536 * 1536
    slow, seen = Slow(order, 0), set()
    for rank in range(RANKS):
        mine = share(0, samples, rank, RANKS)
        assert len(mine) == samples // RANKS
        for place in (mine[0], mine[len(mine) // 2], mine[-1]):
            sample = place * RANKS + rank
            assert 0 <= sample < samples
            seen.add(slow.number(sample))
    assert len(seen) == 3 * RANKS


@pytest.mark.parametrize("rank", SOME_RANKS)
def test_a_rank_begins_anywhere_with_the_rows_of_the_order(manifest: Manifest, rank: int) -> None:
    loader = loader_of(manifest, rank)
    slow, end = Slow(loader.order, 1), loader.plan.usable(loader.order.samples)
    for start in (0, end // 2 // GLOBAL_BATCH * GLOBAL_BATCH, end - 2 * GLOBAL_BATCH):
        asked = at(loader, 1, start)
        wanted = [slow.number(start + rank + turn * RANKS) for turn in range(6)]
        assert read(loader, 2) == wanted
        owners = np.searchsorted(loader.order.units.firsts, wanted, "right") - 1
        assert set(asked) >= set(owners.tolist())
        assert len(asked) <= 6 + WORKERS, "no more shards than rows, wherever it begins"


@pytest.mark.parametrize("first", [7_777, 19_863])
def test_a_round_of_all_ranks_is_one_row_of_every_stream(manifest: Manifest, first: int) -> None:
    """Round 19,863 is the last whole one."""
    order = loader_of(manifest, 0).order
    assert order.rounds == 122_050_000 // 6144 == 19_864
    pool: Any = EmptyPool(manifest, [])
    alone = ShardRows(pool, order, World(), Span(0, first * 6144, (first + 1) * 6144), 6144, np.dtype(np.uint32))
    numbers = next(iter(alone))[0]
    assert len(set(numbers.tolist())) == 6144
    units = np.searchsorted(order.units.borders, numbers, "right") - 1
    stream_of = np.empty(len(order.units), np.int64)
    stream_of[order.dealt(0)] = np.arange(len(order.units)) % 6144
    assert stream_of[units].tolist() == list(range(6144))
    for rank in SOME_RANKS:
        loader = loader_of(manifest, rank)
        at(loader, 0, first * 6144)
        assert read(loader, 4) == numbers[rank::RANKS].tolist()


def test_512_ranks_go_on_as_384_at_the_next_sample(manifest: Manifest) -> None:
    before = loader_of(manifest, 0)
    done = 50_001 * GLOBAL_BATCH
    state = before.state_dict() | {"epoch": 2, "position": done, "consumed": 2 * before.plan.samples + done}
    slow = Slow(before.order, 2)
    for rank in (0, 200, 383):
        loader = loader_of(manifest, rank, 384)
        loader.load_state_dict(state)
        without_files(loader)
        assert (loader.order.streams, loader.batch_size) == (6144, 4)
        assert read(loader, 2) == [slow.number(done + rank + turn * 384) for turn in range(8)]
        assert loader.plan.steps_from(loader.position) == before.plan.steps - 50_001


def test_a_job_of_1t_tokens_is_planned_from_the_manifest_alone(
    manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    """122,070,312 sequences; 61,440 shards are ten for each of 6,144 streams."""
    rows = np.diff(layout.even_split(10**12 // SEQ_LENGTH, 61_440)).tolist()
    write_manifest(of_rows(manifest, rows, SEQ_LENGTH))
    job = {"world_size": 64 * 8, "num_workers": 4, "per_device_train_batch_size": 1, "max_tokens": 10**12}
    flags = [word for flag, value in job.items() for word in (f"--{flag}", str(value))]
    assert not list(Path(manifest.folder).glob("train-000001.tar")), "nothing to open"
    assert main(["--shards", str(manifest.folder), *flags]) == 0
    lines = capsys.readouterr().out
    assert "122,070,312 sequences × 8192 tokens in 61440 shards; order epoch, seed 0, 6144 streams" in lines
    assert "cut into" not in lines
    assert "global batch 512 = 512 ranks × 1 × 1 accumulated; 238,416 steps an epoch" in lines
    assert f"left out of each epoch, another choice each time: {122_070_312 % 6144:,} of" in lines
    assert (
        "reads 59,604 sequences an epoch from 30 units (shards, or row ranges as large), 3 shards open at a time"
        in lines
    )
    assert "1,000,000,000,000 tokens: 238,419 steps, 1.00 epochs" in lines
