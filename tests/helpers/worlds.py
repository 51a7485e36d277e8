"""Whole jobs in one process: the loaders of all ranks side by side, DataLoader workers played by hand.

`canonical` is the order of reading again, slowly, as the design has it.
"""

import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from itertools import count as naturals
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.marked import write_marked
from tokentar import Manifest, ShardLoader
from tokentar.train.data.batches import rebatch
from tokentar.train.data.dataset import Block, Span
from tokentar.train.order.reading_order import Order

Batches = list[list[int]]  # the sequence numbers of each batch of one rank
Layout = tuple[int, int, int]  # ranks, workers, batch size
STREAMS, GLOBAL_BATCH = 72, 72


def write_even(folder: Path) -> Manifest:
    """72 shards of 7 or 8 sequences, 530 in all."""
    return write_marked(folder, 72, [8] * 26 + [7] * 46)


def write_uneven(folder: Path) -> Manifest:
    """Nine shards of very different size, 613 sequences in all."""
    return write_marked(folder, 9, [3, 120, 41, 41, 200, 7, 90, 1, 110])


def job(manifest: Manifest, world_size: int, **settings: Any) -> list[ShardLoader]:
    """The loaders of all ranks."""
    return [ShardLoader(manifest, rank=rank, world_size=world_size, **settings) for rank in range(world_size)]


def rest_of_epoch(loader: ShardLoader, block_rows: int = 5) -> Batches:
    """What a loader has yet to yield in its epoch; where it has workers they are played, and it stays where it is."""
    return next_batches(loader, None, block_rows)


def next_batches(loader: ShardLoader, count: int | None, block_rows: int = 5) -> Batches:
    """The next `count` batches of a loader, None: all; where it has workers they are played, and it stays where it is."""
    blocks = played(loader, block_rows) if loader.world.num_workers else _read(loader)
    return [_numbers(*block) for block in islice(blocks, count)]


def steps_of(ranks: list[Batches], global_batch_size: int) -> Batches:
    """The sequences of each optimizer step of the job, sorted."""
    batches = [list(chain(*turn)) for turn in zip(*ranks, strict=True)]
    size = global_batch_size // len(batches[0]) if batches else 1
    assert len(batches) % size == 0, "an epoch ends on a whole global batch"
    return [sorted(chain(*batches[i : i + size])) for i in range(0, len(batches), size)]


def canonical(manifest: Manifest, order: Order, epoch: int) -> list[int]:
    """The sequence of each sample of an epoch: one row from every stream in turn, until the shortest stream ends."""
    numbers = _numbers_of(manifest)
    dealt = order.dealt(epoch).tolist()
    streams = [
        [numbers[row] for unit in dealt[stream :: order.streams] for row in order.unit_rows(epoch, unit).tolist()]
        for stream in range(order.streams)
    ]
    return [number for turn in zip(*streams, strict=False) for number in turn]


def after(manifest: Manifest, layout: Layout, epoch: int, batches: int, order: str = "epoch") -> dict[str, Any]:
    """The state of a job that has taken `batches` batches a rank of an epoch, after it has been through JSON."""
    states, (ranks, _, size) = [], layout
    settings: dict[str, Any] = {"global_batch_size": GLOBAL_BATCH, "streams": STREAMS, "order": order}
    for loader in job(manifest, ranks, batch_size=size, **settings):
        loader.set_epoch(epoch)
        batch = iter(loader)
        for _ in range(batches):
            next(batch)
        states.append(json.dumps(loader.state_dict()))
    assert len(set(states)) == 1, "the position is that of the whole job"
    state: dict[str, Any] = json.loads(states[0])
    return state


def resumed(
    manifest: Manifest, layout: Layout, state: dict[str, Any], global_batch_size: int, order: str = "epoch"
) -> list[ShardLoader]:
    """The loaders of a job of another layout that goes on from a state."""
    ranks, workers, batch_size = layout
    loaders = job(
        manifest,
        ranks,
        batch_size=batch_size,
        num_workers=workers,
        streams=STREAMS,
        global_batch_size=global_batch_size,
        order=order,
    )
    for loader in loaders:
        loader.load_state_dict(state)
    return loaders


def _numbers_of(manifest: Manifest) -> list[int]:
    """The number of each sequence of a set."""
    shards = zip(manifest.first_sequences.tolist(), manifest.num_sequences.tolist(), strict=True)
    return [number for first, count in shards for number in range(first, first + count)]


def without_end(manifest: Manifest, order: Order, count: int) -> list[int]:
    """The sequences of the first `count` samples of an order without end."""
    if order.kind == "repeat":
        return list(islice(chain.from_iterable(canonical(manifest, order, epoch) for epoch in naturals()), count))
    numbers = _numbers_of(manifest)
    rounds = -(-count // order.streams)
    streams = [list(islice(_drawn(order, stream), rounds)) for stream in range(order.streams)]
    return [numbers[row] for turn in zip(*streams, strict=True) for row in turn][:count]


def drawn_units(order: Order, stream: int, block: int) -> list[int]:
    """The units that a stream draws from one seed: what webdataset.ResampledShards does with it."""
    drawing = random.Random(order.draw_seed(stream, block) * 31 * 31 % 2**31)
    return [drawing.randint(0, len(order.units) - 1) for _ in range(64)]


def _drawn(order: Order, stream: int) -> Iterator[int]:
    units = (unit for block in naturals() for unit in drawn_units(order, stream, block))
    for draw, unit in enumerate(units):
        yield from order.drawn_unit_rows(stream, draw, unit).tolist()


def canonical_steps(samples: list[int], global_batch_size: int) -> Batches:
    """The sequences of each whole global batch, sorted."""
    whole = len(samples) // global_batch_size * global_batch_size
    return [sorted(samples[start : start + global_batch_size]) for start in range(0, whole, global_batch_size)]


def layouts(streams: int, global_batch_size: int) -> Iterator[Layout]:
    """(ranks, workers, batch size) of every job that reads these streams with this global batch."""
    for ranks in (1, 2, 3, 4, 8):
        for workers in (0, 1, 2, 3):
            if streams % (ranks * max(1, workers)) == 0:
                each = global_batch_size // ranks
                yield from ((ranks, workers, size) for size in {math.gcd(each, 4), each})


def _read(loader: ShardLoader) -> Iterator[Block]:
    for batch in loader:
        assert batch["labels"] is batch["input_ids"]
        yield loader.sample_numbers, batch["input_ids"].numpy()


def played(loader: ShardLoader, block_rows: int = 5) -> Iterator[Block]:
    """As a DataLoader has it: each worker in turn hands over a block, and those at their end are passed over."""
    position, info = loader.state_dict()["position"], loader.manifest.info
    stop = sys.maxsize if loader.endless else position + loader.plan.usable(loader.order.samples - position)
    span = Span(loader.epoch, position, stop)
    workers = [
        iter(loader.reading.rows(replace(loader.world, worker=worker), span, block_rows, dtype))
        for worker in range(loader.world.num_workers)
        for dtype in [info.row_format.dtype]
    ]
    return rebatch(_in_turn(workers), len(workers), loader.batch_size, info.seq_length)


def _in_turn(workers: list[Iterator[Block]]) -> Iterator[Block]:
    while workers:
        blocks = [(worker, next(worker, None)) for worker in workers]
        yield from (block for _, block in blocks if block is not None)
        workers = [worker for worker, block in blocks if block is not None]


def _numbers(numbers: Any, ids: Any) -> list[int]:
    """The numbers of a batch of a marked set, once its ids have been seen to be those."""
    assert ids.dtype == np.int64
    assert np.array_equal(ids, np.repeat(numbers[:, None], ids.shape[1], axis=1))
    return [int(number) for number in numbers]


LAYOUTS = sorted(layouts(STREAMS, GLOBAL_BATCH))
