"""From a set on disk to blocks of rows in the canonical order.

Streams, and with them their units, are dealt by a WebDataset pipeline of its own splitters; rows are views of a memory
map at fixed stride, not parsed and not copied before they are joined into a block.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, count, cycle, islice, starmap
from typing import Any

import numpy as np
import webdataset as wds
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from tokentar.train.data.prefetch import Prefetcher
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.distributed.world import World
from tokentar.train.order.reading_order import DRAWS, Order
from tokentar.train.order.streams import share
from tokentar.train.order.units import Ints

# Number of the sequence, view of its ids (seq_length,). In place of a row of a damaged shard, ~number and zeros: the
# others keep their places, whoever reads which.
Row = tuple[int, NDArray[Any]]
Block = tuple[NDArray[np.int64], NDArray[Any]]  # numbers (n,), ids (n, seq_length)


@dataclass(frozen=True)
class Span:
    """Samples `start` … `stop - 1` of the whole job: of epoch `epoch`, or, in an order without end, from `start` on."""

    epoch: int
    start: int
    stop: int


class ShardRows(IterableDataset[Block]):
    """The rows that one reader (rank, DataLoader worker) takes of a span, in blocks of `block_rows` of the given dtype.

    Reader number w of n workers yields rows w, w+n, w+2n, … of its rank's.
    """

    def __init__(
        self, pool: ShardPool, order: Order, world: World, span: Span, block_rows: int, dtype: np.dtype[Any]
    ) -> None:
        super().__init__()
        self.pool, self.manifest, self.order, self.world, self.span = pool, pool.manifest, order, world, span
        self.block_rows, self.dtype = block_rows, dtype

    def __iter__(self) -> Iterator[Block]:
        span = self.span
        rank = self.world.in_worker().starting_at(span.start)
        of_rank = share(span.start, span.stop, rank.rank, rank.world_size)
        world = rank.with_worker((rank.worker + of_rank.start) % rank.workers)  # worker 0 takes the first row
        rows = share(of_rank.start, of_rank.stop, world.worker, world.workers)
        read = {"epoch": self._once, "repeat": self._repeat, "resample": self._resample}[self.order.kind]
        # an epoch's turns are wanted twice: by what looks ahead, then by what reads
        self._turns = lru_cache(maxsize=1)(partial(self._turns_of, world))
        with Prefetcher(self.pool, self._upcoming(world, rows.start), world.worker) as self._opener:
            yield from self._blocks(read(world, rows))

    def _once(self, world: World, rows: range) -> Iterator[Row]:
        return islice(self._epoch(world, self.span.epoch, rows.start), len(rows))

    def _repeat(self, world: World, rows: range) -> Iterator[Row]:
        """Epoch after epoch, each of whole rounds; rows are numbered through."""
        epoch, first = divmod(rows.start, self._rows_per_epoch(world))
        later = (self._epoch(world, number, 0) for number in count(epoch + 1))
        return chain(self._epoch(world, epoch, first), chain.from_iterable(later))

    def _rows_per_epoch(self, world: World) -> int:
        return self.order.samples // world.readers

    def _turns_of(self, world: World, epoch: int) -> Ints:
        """The units that `world` reads in one epoch: (turns, streams) int64; column i has those of its stream i."""
        return self.order.dealt(epoch).reshape(-1, self.order.streams)[:, self._streams_of(world)]

    def _streams_of(self, world: World) -> list[int]:
        """The streams that `world` reads."""
        pipeline = wds.DataPipeline(
            partial(iter, range(self.order.streams)),
            world.sees(wds.split_by_node),
            world.sees(wds.split_by_worker),
        )
        return list(pipeline)

    def _epoch(self, world: World, epoch: int, first: int) -> Iterator[Row]:
        """The rows of `world` in one epoch, one from each stream in turn, from row number `first` on, up to the last whole round."""
        turns = self._turns(epoch)
        ends = np.cumsum(self.order.units.length[turns], axis=0)

        def stream(number: int, skip: int) -> Iterator[Row]:
            done = int(np.searchsorted(ends[:, number], skip, "right"))  # units read already are never opened
            begun = skip - int(ends[done - 1, number]) if done else skip
            for unit in turns[done:, number].tolist():
                yield from self._read(unit, self.order.unit_rows(epoch, unit)[begun:])
                begun = 0

        streams = [partial(stream, number) for number in range(turns.shape[1])]
        return islice(in_turn(streams, first), self._rows_per_epoch(world) - first)

    def _resample(self, world: World, rows: range) -> Iterator[Row]:
        """One row in turn from each of the streams of `world`, which draw units with replacement, without end."""
        return in_turn([partial(self._drawn_stream, stream) for stream in self._streams_of(world)], rows.start)

    def _drawn_stream(self, stream: int, skip: int) -> Iterator[Row]:
        """The rows of a stream that resamples, but for the first `skip`: each unit drawn gives equally many."""
        draw, begun = divmod(skip, self.order.drawn_rows)
        for block in count(draw // DRAWS):
            for number, unit in islice(self._drawn_units(stream, block), draw - block * DRAWS, None):
                rows = self.order.drawn_unit_rows(stream, block * DRAWS + number, unit)
                yield from self._read(unit, rows[begun:])
                begun = 0
            draw = (block + 1) * DRAWS

    def _drawn_units(self, stream: int, block: int) -> Iterator[tuple[int, int]]:
        """(number of the draw in its block, unit): WebDataset's own resampling, made reproducible."""
        seed = self.order.draw_seed(stream, block)
        draws = wds.ResampledShards(self._unit_names, nshards=DRAWS, deterministic=True, worker_seed=lambda: seed)
        return ((number, int(item["url"])) for number, item in enumerate(draws))

    @cached_property
    def _unit_names(self) -> list[str]:
        """Units as the names that WebDataset draws from."""
        return [str(unit) for unit in range(len(self.order.units))]

    def _read(self, unit: int, rows: Ints) -> Iterator[Row]:
        """Rows of a unit as views of their shards, those of one shard after those of another."""
        return chain.from_iterable(starmap(self._rows, self.order.units.located(unit, rows)))

    def _rows(self, index: int, inside: Ints) -> Iterator[Row]:
        """Rows of one shard, which is let go behind them."""
        shard = self._opener.open(index)
        if shard is None:
            first, row_format = int(self.manifest.first_sequences[index]), self.manifest.info.row_format
            blank = np.zeros(row_format.seq_length, row_format.dtype)
            yield from ((~(first + row), blank) for row in inside.data)
            return
        first, views = shard.first_sequence, shard.rows
        for row in inside.data:
            yield first + row, views[row]

    def _upcoming(self, world: World, first: int) -> Iterator[int]:
        """The shards that `world` will want from its row number `first` on, about in that order; beyond the span too."""
        if self.order.kind == "resample":
            return self._upcoming_draws(world, first)
        begin, row = self.span.epoch, first
        if self.order.kind == "repeat":
            begin, row = divmod(first, self._rows_per_epoch(world))
        later = (self._upcoming_units(epoch, 0) for epoch in count(begin + 1))
        return self._shards_of(chain(self._upcoming_units(begin, row), chain.from_iterable(later)))

    def _shards_of(self, units: Iterable[int]) -> Iterator[int]:
        return chain.from_iterable(map(self.order.units.shards_of, units))

    def _upcoming_units(self, epoch: int, first: int) -> Iterator[int]:
        """Those of one epoch: of each stream, from the one that is due on, the first, then the second, without those read already."""
        turns = self._turns(epoch)
        rounds, due = divmod(first, turns.shape[1])
        behind = rounds + (np.arange(turns.shape[1]) < due)  # rows of each stream
        is_left = np.cumsum(self.order.units.length[turns], axis=0) > behind
        return iter(np.roll(turns, -due, axis=1)[np.roll(is_left, -due, axis=1)].tolist())

    def _upcoming_draws(self, world: World, first: int) -> Iterator[int]:
        """Those of streams that resample: of each, from the stream that is due on, the draw that is, then the next."""
        streams = self._streams_of(world)
        rounds, due = divmod(first, len(streams))
        draw, streams = rounds // self.order.drawn_rows, streams[due:] + streams[:due]
        for block in count(draw // DRAWS):
            drawn = zip(*(self._drawn_units(stream, block) for stream in streams), strict=True)
            for turn in islice(drawn, max(0, draw - block * DRAWS), None):
                yield from self._shards_of(unit for _, unit in turn)

    def _blocks(self, rows: Iterator[Row]) -> Iterator[Block]:
        """Rows as blocks, the last one shorter. To join bytes first and widen then is the fastest of numpy's and Python's ways."""
        stored = self.manifest.info.row_format.dtype
        while some := list(islice(rows, self.block_rows)):
            numbers, views = zip(*some, strict=True)
            ids = np.frombuffer(b"".join(views), stored).reshape(len(some), -1)
            yield np.array(numbers, np.int64), ids.astype(self.dtype, copy=False)


def in_turn(streams: Sequence[Callable[[int], Iterator[Row]]], first: int) -> Iterator[Row]:
    """One row from each stream in turn, from row number `first` on, until the stream that is due has no more.

    streams: each takes the number of its rows to pass over. None is begun before its first row is due, so what a stream
    costs at its start is spread over a round.
    """
    rounds, turn = divmod(first, len(streams))
    begun = [stream(rounds + (number < turn)) for number, stream in enumerate(streams)]
    return map(next, cycle(begun[turn:] + begun[:turn]))
