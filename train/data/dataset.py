"""From sets on disk to blocks of rows in the canonical order: what a DataLoader worker, or the loader itself, iterates over."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.data.streams import Row, SetStreams, batched, in_turn, streams_of
from tokentar.train.distributed.world import World
from tokentar.train.order.mixture import Mixture
from tokentar.train.order.reading_order import Order
from tokentar.train.order.streams import share
from tokentar.train.order.units import Ints

Block = tuple[NDArray[np.int64], NDArray[Any]]  # numbers (n,), ids (n, seq_length)


@dataclass(frozen=True)
class Span:
    """Samples `start` … `stop - 1` of the whole job: of epoch `epoch`, or, in an order without end, from `start` on."""

    epoch: int
    start: int
    stop: int

    def share_of(self, world: World) -> tuple[World, range]:
        """What one reader takes of it: the reader as the splitters see it, so that worker 0 has the first row, and its rows."""
        rank = world.starting_at(self.start)
        of_rank = share(self.start, self.stop, rank.rank, rank.world_size)
        turned = rank.with_worker((rank.worker + of_rank.start) % rank.workers)
        return turned, share(of_rank.start, of_rank.stop, turned.worker, turned.workers)


class ShardRows(IterableDataset[Block]):
    """The rows that one reader (rank, DataLoader worker) takes of a span, in blocks of `block_rows` of the given dtype.

    Reader number w of n workers yields rows w, w+n, w+2n, … of its rank's.
    """

    def __init__(
        self, pool: ShardPool, order: Order, world: World, span: Span, block_rows: int, dtype: np.dtype[Any]
    ) -> None:
        super().__init__()
        self.pool, self.order, self.world, self.span = pool, order, world, span
        self.block_rows, self.dtype = block_rows, dtype

    def __iter__(self) -> Iterator[Block]:
        world, rows = self.span.share_of(self.world.in_worker())
        streams = SetStreams(self.pool, self.order, streams_of(world, self.order.streams))
        with streams.opened(streams.upcoming(self.span.epoch, rows.start), world.worker):
            yield from batched(self._rows(streams, rows), self.block_rows, self.dtype)

    def _rows(self, streams: SetStreams, rows: range) -> Iterator[Row]:
        if self.order.kind == "repeat":
            return streams.repeat(rows.start)
        if self.order.kind == "resample":
            return streams.resample(rows.start)
        return islice(streams.epoch(self.span.epoch, rows.start), len(rows))


@dataclass(frozen=True)
class Part:
    """One of the sets that are mixed. first_number: what the numbers of its sequences are counted from in the mixture."""

    pool: ShardPool
    order: Order
    first_number: int


class MixedRows(IterableDataset[Block]):
    """The same of several sets that are mixed: parts[i] is source i of the mixture, None where it is not read any more."""

    def __init__(
        self,
        parts: list[Part | None],
        mixture: Mixture,
        world: World,
        span: Span,
        block_rows: int,
        dtype: np.dtype[Any],
    ) -> None:
        super().__init__()
        self.parts, self.mixture, self.world, self.span = parts, mixture, world, span
        self.block_rows, self.dtype = block_rows, dtype

    def __iter__(self) -> Iterator[Block]:
        world, rows = self.span.share_of(self.world.in_worker())
        numbers = streams_of(world, self.mixture.streams)
        read = self.mixture.counts(self.span.start)[:, numbers]
        sources = {number: SetStreams(part.pool, part.order, numbers) for number, part in enumerate(self.parts) if part}
        with ExitStack() as stack:
            for number, source in sources.items():
                epoch = int(read[number].min()) // source.order.rounds
                upcoming = source.upcoming_units(epoch, read[number] - epoch * source.order.rounds)
                stack.enter_context(source.opened(upcoming, world.worker))
            streams = [partial(self._stream, sources, numbers, read, index) for index in range(len(numbers))]
            mixed = islice(in_turn(streams, rows.start), len(rows))
            yield from batched(mixed, self.block_rows, self.dtype)

    def _stream(
        self, sources: dict[int, SetStreams], numbers: list[int], read: Ints, index: int, first: int
    ) -> Iterator[Row]:
        """Stream numbers[index] from its row number `first` on, when `read` rows of each source lie behind each stream."""
        begun: dict[int, Iterator[Row]] = {}
        for number in self.mixture.sources_from(numbers[index], first):
            if number not in begun:
                begun[number] = self._numbered(number, sources[number].stream(index, int(read[number, index])))
            yield next(begun[number])

    def _numbered(self, number: int, rows: Iterator[Row]) -> Iterator[Row]:
        """Rows of a source with their numbers in the mixture; those that are left out stay so."""
        part = self.parts[number]
        first = part.first_number if part else 0
        return ((found + first if found >= 0 else found - first, view) for found, view in rows)
