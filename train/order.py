"""The order of reading: which sequence is sample number k of an epoch. Pure arithmetic: no torch, no files (G4, G5, G6).

The rows of all shards are cut into units. An epoch permutes the units and deals them to S streams: stream s reads units s, s+S, s+2S, … of
the list, the rows of each in random order. Sample number k = t·S + s is row t of stream s. Optimizer step g trains on samples g·B … (g+1)·B-1,
B the global batch. Rank r of W takes the samples k ≡ r (mod W), its worker w of n every n-th of those. Where W·n divides S, these are the
streams that webdataset.split_by_node and split_by_worker deal to them, and the order itself knows neither W nor n.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shard_writer import seeds
from shard_writer.errors import SettingError

DEFAULT_STREAMS = 192  # 64 × 3: most numbers of ranks and workers divide it
_LOSS = 64  # the default number of streams leaves out at most one row in so many
_UNITS, _SLOTS, _ROWS = 101, 102, 103  # purposes of random numbers

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Row ranges of shards, all of `length` q or q + 1: unit u is rows start[u] … start[u] + length[u] - 1 of shard[u]. Each (units,) int64."""

    shard: Ints
    start: Ints
    length: Ints

    def __len__(self) -> int:
        return len(self.shard)


@dataclass(frozen=True)
class Order:
    """The order of every epoch of a set: its units, the number of streams (which divides that of the units) and a seed."""

    units: Units
    streams: int
    seed: int

    @property
    def rows(self) -> int:
        """Sequences in the set."""
        return int(self.units.length.sum())

    @property
    def rounds(self) -> int:
        """Whole rounds in an epoch: the rows of the shortest stream."""
        return self.rows // self.streams

    @property
    def samples(self) -> int:
        """Samples in the whole rounds of an epoch."""
        return self.rounds * self.streams

    @cached_property
    def _is_long(self) -> NDArray[np.bool_]:
        long: NDArray[np.bool_] = self.units.length > self.units.length.min()
        return long

    def dealt(self, epoch: int) -> Ints:
        """The units of an epoch in the order they are dealt in, (units,) int64: position j belongs to stream j mod S.

        Units that are a row longer are dealt first and in turn, so that streams differ by one row at most; then whole turns are put in random order.
        """
        shuffled = seeds.permutation(len(self.units), self.seed, _UNITS, epoch)
        long = self._is_long[shuffled]
        turns = np.concatenate([shuffled[long], shuffled[~long]]).reshape(-1, self.streams)
        in_order: Ints = turns[seeds.permutation(len(turns), self.seed, _SLOTS, epoch)].ravel()
        return in_order

    def unit_rows(self, epoch: int, unit: int) -> Ints:
        """The rows of a unit in the order they are read in, as row numbers of its shard: (length,) int64."""
        length = int(self.units.length[unit])
        return seeds.permutation(length, self.seed, _ROWS, epoch, unit) + int(self.units.start[unit])


def share(start: int, stop: int, part: int, parts: int) -> range:
    """What part number `part` of `parts` gets when numbers are dealt in turn: all j with start ≤ j·parts + part < stop."""
    return range(-((part - start) // parts), -((part - stop) // parts))


def cut(rows: Sequence[int] | Ints, streams: int) -> Units:
    """Cut shards of `rows` rows into the fewest units whose number `streams` divides and whose lengths differ by one at most.

    Shards that are equal up to one row, in a multiple of `streams`, stay whole. Raises SettingError when there are fewer rows than streams.
    """
    sizes = np.asarray(rows, np.int64)
    total = int(sizes.sum())
    if total < streams:
        raise SettingError(
            f"{total} sequences for {streams} streams: each stream needs one at least; use fewer ranks × workers or more data"
        )
    numbers = range(-(-len(sizes) // streams) * streams, total + 1, streams)
    pieces = next(found for number in numbers if (found := _pieces(sizes, number)) is not None)
    shard = np.repeat(np.arange(len(sizes)), pieces)
    place = np.arange(len(shard)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    short, longer = np.divmod(sizes, np.maximum(pieces, 1))
    start = place * short[shard] + np.minimum(place, longer[shard])
    return Units(shard, start, short[shard] + (place < longer[shard]))


def _pieces(sizes: Ints, number: int) -> Ints | None:
    """How many pieces of q or q + 1 rows each shard gives so that there are `number` in all, (shards,) int64; None if it cannot be."""
    length = int(sizes.sum()) // number
    least, most = -(-sizes // (length + 1)), sizes // length
    if (least > most).any() or not least.sum() <= number <= most.sum():
        return None
    room = np.cumsum(most - least)
    pieces: Ints = least + np.diff(np.minimum(room, number - least.sum()), prepend=0)
    return pieces


def default_streams(rows: int, readers: int) -> int:
    """The number of streams for a set of `rows` sequences and `readers` = ranks × workers.

    The least common multiple of 192 and `readers`, or, where its last, incomplete round would leave out more than one row in 64, the largest of its
    divisors that `readers` divides and that does not (or that leaves out least). Raises SettingError when there are fewer rows than readers.
    """
    if rows < readers:
        raise SettingError(
            f"{rows} sequences for {readers} ranks × workers: each needs one at least; use fewer workers or ranks, or more data"
        )
    most = math.lcm(DEFAULT_STREAMS, readers)
    candidates = [s for s in range(readers, min(most, rows) + 1, readers) if most % s == 0]
    return max(candidates, key=lambda s: (-max(rows % s, rows // _LOSS), s))


def check_streams(streams: int, readers: int) -> None:
    """Raises SettingError when `readers` = ranks × workers does not divide the number of streams."""
    if streams < 1 or streams % readers:
        works = [n for n in range(1, streams + 1) if streams % n == 0]
        raise SettingError(
            f"streams: {streams} cannot be dealt to {readers} ranks × workers; ranks × workers that work: {works}"
        )


def build(rows: Sequence[int] | Ints, *, seed: int, readers: int, streams: int | None = None) -> Order:
    """The order of a set whose shards have `rows` sequences. Raises SettingError for streams or readers that cannot work."""
    total = int(np.sum(rows))
    if streams is None:
        streams = default_streams(total, readers)
    check_streams(streams, readers)
    return Order(cut(rows, streams), streams, seed)
