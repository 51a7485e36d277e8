"""The streams of one set that a reader has: their rows in the order of reading, as views of memory maps at a fixed stride.

Streams are dealt by a WebDataset pipeline of its own splitters. Nothing is parsed or copied before rows are joined into a
batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from itertools import chain, count, cycle, islice, starmap
from typing import Any

import numpy as np
import webdataset as wds
from numpy.typing import NDArray

from tokentar.train.data.prefetch import Prefetcher
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.distributed.world import World
from tokentar.train.order.reading_order import DRAWS, Order
from tokentar.train.order.units import Ints

# Number of the sequence, view of its ids (seq_length,). In place of a row that is left out, ~number and zeros: the
# others keep their places, whoever reads which.
Row = tuple[int, NDArray[Any]]


def streams_of(world: World, streams: int) -> list[int]:
    """The numbers of the streams that a reader has, of so many in all."""
    pipeline = wds.DataPipeline(
        partial(iter, range(streams)),
        world.sees(wds.split_by_node),
        world.sees(wds.split_by_worker),
    )
    return list(pipeline)


def drawn_units(order: Order, stream: int, block: int) -> Iterator[int]:
    """The units of draws block × DRAWS and following of a stream: WebDataset's own resampling, made reproducible."""
    seed = order.draw_seed(stream, block)
    names = _names(len(order.units))
    draws = wds.ResampledShards(names, nshards=DRAWS, deterministic=True, worker_seed=lambda: seed)
    return (int(item["url"]) for item in draws)


@lru_cache(maxsize=1)
def _names(units: int) -> list[str]:
    """Units as the names that WebDataset draws from."""
    return [str(unit) for unit in range(units)]


class SetStreams:
    """Streams `numbers` of a set; rows are read within `opened`."""

    def __init__(self, pool: ShardPool, order: Order, numbers: list[int]) -> None:
        self.pool, self.manifest, self.order, self.numbers = pool, pool.manifest, order, numbers
        # the turns of an epoch are wanted by what looks ahead and by what reads, and near its end those of the next
        self.turns = lru_cache(maxsize=2)(self._turns)

    def _turns(self, epoch: int) -> Ints:
        """The units of one epoch: (turns, streams) int64; column i has those of stream numbers[i]."""
        return self.order.dealt(epoch).reshape(-1, self.order.streams)[:, self.numbers]

    @contextmanager
    def opened(self, upcoming: Iterator[int], worker: int) -> Iterator[None]:
        """Let shards be opened ahead of need: `upcoming` are those that will be wanted, about in that order."""
        with Prefetcher(self.pool, upcoming, worker) as self._opener:
            yield

    @property
    def rows_per_epoch(self) -> int:
        """Rows of all these streams in an epoch of whole rounds."""
        return self.order.rounds * len(self.numbers)

    def epoch(self, epoch: int, first: int) -> Iterator[Row]:
        """One row from each stream in turn, from row number `first` on, up to the last whole round of an epoch."""
        streams = [partial(self._stream, epoch, index) for index in range(len(self.numbers))]
        return islice(in_turn(streams, first), self.rows_per_epoch - first)

    def repeat(self, first: int) -> Iterator[Row]:
        """Epoch after epoch, each of whole rounds; rows are numbered through."""
        begin, row = divmod(first, self.rows_per_epoch)
        return chain(self.epoch(begin, row), chain.from_iterable(self.epoch(later, 0) for later in count(begin + 1)))

    def stream(self, index: int, first: int) -> Iterator[Row]:
        """One stream epoch after epoch, from its row number `first` on."""
        begin, row = divmod(first, self.order.rounds)
        for epoch in count(begin):
            yield from islice(self._stream(epoch, index, row), self.order.rounds - row)
            row = 0

    def _stream(self, epoch: int, index: int, skip: int) -> Iterator[Row]:
        """The rows of one stream in one epoch but for the first `skip`."""
        turns = self.turns(epoch)[:, index]
        ends = np.cumsum(self.order.units.length[turns])
        done = int(np.searchsorted(ends, skip, "right"))  # units read already are never opened
        begun = skip - int(ends[done - 1]) if done else skip
        for unit in turns[done:].tolist():
            yield from self._read(unit, self.order.unit_rows(epoch, unit)[begun:])
            begun = 0

    def resample(self, first: int) -> Iterator[Row]:
        """One row in turn from each stream, which draw units with replacement, without end."""
        return in_turn([partial(self._drawn_stream, stream) for stream in self.numbers], first)

    def _drawn_stream(self, stream: int, skip: int) -> Iterator[Row]:
        """The rows of a stream that resamples, but for the first `skip`: each unit drawn gives equally many."""
        draw, begun = divmod(skip, self.order.drawn_rows)
        for block in count(draw // DRAWS):
            for number, unit in islice(enumerate(drawn_units(self.order, stream, block)), draw - block * DRAWS, None):
                rows = self.order.drawn_unit_rows(stream, block * DRAWS + number, unit)
                yield from self._read(unit, rows[begun:])
                begun = 0
            draw = (block + 1) * DRAWS

    def _read(self, unit: int, rows: Ints) -> Iterator[Row]:
        """Rows of a unit as views of their shards, those of one shard after those of another."""
        return chain.from_iterable(starmap(self._rows, self.order.units.located(unit, rows)))

    def _rows(self, index: int, inside: Ints) -> Iterator[Row]:
        """Rows of one shard, which is let go behind them."""
        shard = self._opener.open(index)
        if shard is None:
            first = int(self.manifest.first_sequences[index])
            yield from ((~(first + row), self._blank) for row in inside.data)
            return
        first, views, skipped = shard.first_sequence, shard.rows, self.pool.skipped
        if not skipped:
            for row in inside.data:
                yield first + row, views[row]
            return
        for row in inside.data:
            yield (~(first + row), self._blank) if first + row in skipped else (first + row, views[row])

    @cached_property
    def _blank(self) -> NDArray[Any]:
        row_format = self.manifest.info.row_format
        return np.zeros(row_format.seq_length, row_format.dtype)

    def upcoming(self, epoch: int, first: int) -> Iterator[int]:
        """The shards that will be wanted from a row on, about in that order, without end.

        first: number of the row in the epoch, or in all, where the order has no end.
        """
        if self.order.kind == "resample":
            return self._upcoming_draws(first)
        begin, row = divmod(first, self.rows_per_epoch) if self.order.kind == "repeat" else (epoch, first)
        rounds, due = divmod(row, len(self.numbers))
        behind = rounds + (np.arange(len(self.numbers)) < due)  # rows of each stream
        return self.upcoming_units(begin, behind, due)

    def upcoming_units(self, epoch: int, behind: Ints, due: int = 0) -> Iterator[int]:
        """The same where `behind` rows of an epoch lie behind each stream, (streams,) int64, and stream `due` comes first."""
        later = chain.from_iterable(self.turns(number).ravel().tolist() for number in count(epoch + 1))
        return chain.from_iterable(map(self.order.units.shards_of, chain(self._left(epoch, behind, due), later)))

    def _left(self, epoch: int, behind: Ints, due: int) -> Iterator[int]:
        """Of each stream the first unit that is not read yet, then the second, and so on."""
        turns = self.turns(epoch)
        is_left = np.cumsum(self.order.units.length[turns], axis=0) > behind
        return iter(np.roll(turns, -due, axis=1)[np.roll(is_left, -due, axis=1)].tolist())

    def _upcoming_draws(self, first: int) -> Iterator[int]:
        """Those of streams that resample: of each, from the stream that is due on, the draw that is, then the next."""
        rounds, due = divmod(first, len(self.numbers))
        draw, streams = rounds // self.order.drawn_rows, self.numbers[due:] + self.numbers[:due]
        for block in count(draw // DRAWS):
            drawn = zip(*(drawn_units(self.order, stream, block) for stream in streams), strict=True)
            for turn in islice(drawn, max(0, draw - block * DRAWS), None):
                for unit in turn:
                    yield from self.order.units.shards_of(unit)


def in_turn(streams: Sequence[Callable[[int], Iterator[Row]]], first: int) -> Iterator[Row]:
    """One row from each stream in turn, from row number `first` on, until the stream that is due has no more.

    streams: each takes the number of its rows to pass over. None is begun before its first row is due, so what a stream
    costs at its start is spread over a round.
    """
    rounds, turn = divmod(first, len(streams))
    begun = [stream(rounds + (number < turn)) for number, stream in enumerate(streams)]
    return map(next, cycle(begun[turn:] + begun[:turn]))


def batched(rows: Iterable[Row], size: int, dtype: np.dtype[Any]) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Rows as blocks of numbers (n,) int64 and ids (n, seq_length) of `dtype`, the last one shorter.

    To join bytes first and widen then is the fastest of numpy's and Python's ways.
    """
    source = iter(rows)
    while some := list(islice(source, size)):
        numbers, views = zip(*some, strict=True)
        ids = np.frombuffer(b"".join(views), views[0].dtype).reshape(len(some), -1)
        yield np.array(numbers, np.int64), ids.astype(dtype, copy=False)
