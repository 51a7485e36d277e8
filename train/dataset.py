"""From a set on disk to blocks of rows in the canonical order: the WebDataset pipeline, as one visible list.

Units are dealt by WebDataset's own splitters; the stage behind them reads rows by memory map at fixed stride, without parsing
and without a copy before the row lands in its block.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import webdataset as wds
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from shard_writer.manifest import Manifest
from shard_writer.shards import ShardFile
from train.order import Order, share
from train.world import World

Row = tuple[int, NDArray[Any]]  # number of the sequence, view of its ids (seq_length,)
Block = tuple[NDArray[np.int64], NDArray[Any]]  # numbers (n,), ids (n, seq_length)


@dataclass(frozen=True)
class Span:
    """Samples `start` … `stop - 1` of epoch `epoch`, of the whole job."""

    epoch: int
    start: int
    stop: int


class ShardRows(IterableDataset[Block]):
    """The rows that one reader (rank, DataLoader worker) takes of a span, in blocks of `block_rows` of the given dtype.

    Reader number w of n workers yields rows w, w+n, w+2n, … of its rank's.
    """

    def __init__(
        self, manifest: Manifest, order: Order, world: World, span: Span, block_rows: int, dtype: np.dtype[Any]
    ) -> None:
        super().__init__()
        self.manifest, self.order, self.world, self.span = manifest, order, world, span
        self.block_rows, self.dtype = block_rows, dtype
        self._shards: WeakValueDictionary[int, ShardFile] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Block]:
        span = self.span
        rank = self.world.in_worker().starting_at(span.start)
        mine = share(span.start, span.stop, rank.rank, rank.world_size)  # rows of this rank's streams
        worker = (rank.worker + mine.start) % rank.workers  # worker 0 takes the first
        rows = share(mine.start, mine.stop, worker, rank.workers)
        yield from self.pipeline(World(rank.rank, rank.world_size, worker, rank.num_workers), span.epoch, rows)

    def pipeline(self, world: World, epoch: int, rows: range) -> wds.DataPipeline:
        """Rows number `rows` of the streams that `world` reads."""
        return wds.DataPipeline(
            partial(self._units, epoch),
            world.sees(wds.split_by_node),
            world.sees(wds.split_by_worker),
            partial(self._interleave, epoch, self.order.streams // world.readers, rows),
            self._blocks,
        )

    def _units(self, epoch: int) -> Iterator[int]:
        return iter(self.order.dealt(epoch).tolist())

    def _interleave(self, epoch: int, streams: int, rows: range, units: Iterable[int]) -> Iterator[Row]:
        """One row from each stream in turn, from row number rows.start on; stream i has units i, i + streams, …"""
        mine = list(units)
        first_round, skip = divmod(rows.start, streams)
        sources = [self._stream(epoch, mine[i::streams], first_round) for i in range(streams)]
        return islice(chain.from_iterable(zip(*sources, strict=False)), skip, skip + len(rows))

    def _stream(self, epoch: int, units: list[int], skip: int) -> Iterator[Row]:
        """The rows of one stream from row number `skip` on; units before it are not opened."""
        for unit in units:
            length = int(self.order.units.length[unit])
            if skip < length:
                shard = self._open(int(self.order.units.shard[unit]))
                for row in self.order.unit_rows(epoch, unit)[skip:].tolist():
                    yield shard.first_sequence + row, shard.rows[row]
            skip = max(0, skip - length)

    def _open(self, index: int) -> ShardFile:
        """A shard, mapped once however many streams read from it, and let go when none does."""
        shard = self._shards.get(index)
        if shard is None:
            shard = self._shards[index] = self.manifest.open(index)
        return shard

    def _blocks(self, rows: Iterable[Row]) -> Iterator[Block]:
        """Rows copied into blocks, the last one shorter."""
        source, seq_length = iter(rows), self.manifest.info.seq_length
        while True:
            numbers = np.empty(self.block_rows, np.int64)
            ids = np.empty((self.block_rows, seq_length), self.dtype)
            count = 0
            for number, row in islice(source, self.block_rows):
                numbers[count] = number
                ids[count] = row
                count += 1
            if count:
                yield numbers[:count], ids[:count]
            if count < self.block_rows:
                return
