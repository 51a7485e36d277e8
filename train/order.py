"""The order of reading: which sequence is sample number k of an epoch. Pure arithmetic: no torch, no files (G4, G5, G6).

The rows of all shards are cut into units. An epoch permutes the units and deals them to S streams: stream s reads units
s, s+S, s+2S, … of the list, the rows of each in random order. Sample number k = t·S + s is row t of stream s. Optimizer
step g trains on samples g·B … (g+1)·B-1, B the global batch. Rank r of W takes the samples k ≡ r (mod W), its worker w
of n every n-th of those. Where W·n divides S, these are the streams that webdataset.split_by_node and split_by_worker
deal to them, and the order itself knows neither W nor n.
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
KINDS = ("epoch", "repeat", "resample")
DRAWS = 1 << 6  # units that a stream draws from one seed when it resamples; a resume draws at most so many again
_LOSS = 64  # the default number of streams leaves out at most one row in so many
_UNITS, _SLOTS, _ROWS, _DRAWS, _DRAWN_ROWS = 101, 102, 103, 104, 105  # purposes of random numbers

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Row ranges of shards, all of `length` q or q + 1; each array (units,) int64.

    Unit u is rows start[u] … start[u] + length[u] - 1 of shard[u]. Units of no row, if any, come last.
    """

    shard: Ints
    start: Ints
    length: Ints

    def __len__(self) -> int:
        return len(self.shard)


@dataclass(frozen=True)
class Order:
    """The order of a set: its units, the number of streams (which divides that of the units), a seed and a kind (KINDS)."""

    units: Units
    streams: int
    seed: int
    kind: str = "epoch"

    @property
    def endless(self) -> bool:
        """Whether the order has no end."""
        return self.kind != "epoch"

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

        Units that are a row longer are dealt first and in turn, so that streams differ by one row at most; then whole
        turns are put in random order.
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

    @property
    def drawn_rows(self) -> int:
        """Rows that a stream reads of each unit it draws: those of the shortest that has any."""
        return int(self.units.length[: self.drawable].min())

    @property
    def drawable(self) -> int:
        """Units that have rows."""
        return int(np.count_nonzero(self.units.length))

    def draw_seed(self, stream: int, block: int) -> int:
        """The seed of draws number block × DRAWS and following of a stream; a hash, so that no two streams or blocks are alike."""
        return seeds.mix(self.seed, _DRAWS, stream, block)

    def drawn_unit_rows(self, stream: int, draw: int, unit: int) -> Ints:
        """The rows that draw number `draw` of a stream reads of a unit, in order: (drawn_rows,) int64."""
        length = int(self.units.length[unit])
        rows = seeds.permutation(length, self.seed, _DRAWN_ROWS, stream, draw)[: self.drawn_rows]
        return rows + int(self.units.start[unit])


def share(start: int, stop: int, part: int, parts: int) -> range:
    """What part number `part` of `parts` gets when numbers are dealt in turn: all j with start ≤ j·parts + part < stop."""
    return range(-((part - start) // parts), -((part - stop) // parts))


def cut(rows: Sequence[int] | Ints, streams: int) -> Units:
    """Cut shards of `rows` rows into the fewest units whose number `streams` divides and whose lengths differ by one at most.

    Shards that are equal up to one row, in a multiple of `streams`, stay whole. Raises SettingError when there are
    fewer rows than streams.
    """
    sizes = np.asarray(rows, np.int64)
    total = int(sizes.sum())
    if total < streams:
        raise SettingError(
            f"{total} sequences for {streams} streams: each stream needs one at least; "
            "use fewer ranks × workers or more data"
        )
    kinds, counts = np.unique(sizes, return_counts=True)
    numbers = range(-(-len(sizes) // streams) * streams, total + 1, streams)
    number = next((number for number in numbers if _can_be_cut(kinds, counts, number)), None)
    if number is None:
        return _row_by_row(sizes, -total % streams)
    least, most = _piece_bounds(sizes, total // number)
    pieces = least + np.diff(np.minimum(np.cumsum(most - least), number - least.sum()), prepend=0)
    shard = np.repeat(np.arange(len(sizes)), pieces)
    place = np.arange(len(shard)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    short, longer = np.divmod(sizes, np.maximum(pieces, 1))
    start = place * short[shard] + np.minimum(place, longer[shard])
    return Units(shard, start, short[shard] + (place < longer[shard]))


def _row_by_row(sizes: Ints, empty: int) -> Units:
    """A unit for each row, and `empty` units of none."""
    shard = np.repeat(np.arange(len(sizes)), sizes)
    start = np.arange(len(shard)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Units(np.pad(shard, (0, empty)), np.pad(start, (0, empty)), np.pad(np.ones_like(shard), (0, empty)))


def _piece_bounds(sizes: Ints, length: int) -> tuple[Ints, Ints]:
    """The fewest and the most pieces of `length` or `length` + 1 rows that a shard of each size can be cut into."""
    return -(-sizes // (length + 1)), sizes // length


def _can_be_cut(sizes: Ints, counts: Ints, number: int) -> bool:
    """Whether `counts` shards of each of `sizes` rows give `number` units that are equal up to one row."""
    least, most = _piece_bounds(sizes, int((sizes * counts).sum()) // number)
    return bool((least <= most).all() and (least * counts).sum() <= number <= (most * counts).sum())


def default_streams(rows: int, readers: int) -> int:
    """The number of streams for a set of `rows` sequences and `readers` = ranks × workers.

    The least common multiple of 192 and `readers`, or, where its last, incomplete round would leave out more than one
    row in 64, the largest of its divisors that `readers` divides and that does not (or that leaves out least). Raises
    SettingError when there are fewer rows than readers.
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


def build(
    rows: Sequence[int] | Ints, *, seed: int, readers: int, streams: int | None = None, kind: str = "epoch"
) -> Order:
    """The order of a set whose shards have `rows` sequences. Raises SettingError for what cannot work."""
    if kind not in KINDS:
        raise SettingError(f"order: {kind!r}, needed: {', '.join(KINDS)}")
    if streams is None:
        streams = default_streams(int(np.sum(rows)), readers)
    check_streams(streams, readers)
    return Order(cut(rows, streams), streams, seed, kind)
