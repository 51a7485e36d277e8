"""The order of reading: which sequence is sample number k of an epoch. Pure arithmetic: no torch, no files (G4, G5, G6).

The rows of all shards are cut into units: the shards themselves, or where these do not fit, equal ranges of rows. An
epoch permutes the units and deals them to S streams: stream s reads units s, s+S, s+2S, … of the list, the rows of each
in random order. Sample number k = t·S + s is row t of stream s. Optimizer
step g trains on samples g·B … (g+1)·B-1, B the global batch. Rank r of W takes the samples k ≡ r (mod W), its worker w
of n every n-th of those. Where W·n divides S, these are the streams that webdataset.split_by_node and split_by_worker
deal to them, and the order itself knows neither W nor n.
"""

import math
from collections.abc import Iterator, Sequence
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
_UNITS, _SLOTS, _ROWS, _DRAWS, _DRAWN_ROWS, _LAST_ROWS = range(101, 107)  # purposes of random numbers

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Equal parts of a set, up to one row: unit u is rows borders[u] … borders[u + 1] - 1 of all rows of the set, counted through.

    borders: (units + 1,) int64. firsts: (shards + 1,) int64, shard i holds rows firsts[i] … firsts[i + 1] - 1.
    """

    borders: Ints
    firsts: Ints

    def __len__(self) -> int:
        return len(self.borders) - 1

    @cached_property
    def length(self) -> Ints:
        """Rows of each unit: (units,) int64."""
        return np.diff(self.borders)

    @cached_property
    def ranges(self) -> int:
        """Row ranges that the shards fall into: as many as shards with rows where none is cut."""
        return len(np.union1d(self.borders, self.firsts)) - 1

    @cached_property
    def _spans(self) -> Ints:
        """The first and the last shard that hold rows of each unit: (units, 2) int64."""
        ends = np.stack([self.borders[:-1], self.borders[1:] - 1], axis=1)
        spans: Ints = np.searchsorted(self.firsts, ends, "right") - 1
        return spans

    def _shards_of(self, unit: int, rows: Ints) -> Ints:
        """The shard of each of some rows of a unit: shape as rows, int64."""
        first, last = self._spans[unit]
        found: Ints = first + np.searchsorted(self.firsts[first + 1 : last + 1], rows, "right")
        return found

    def shards_of(self, unit: int) -> range:
        """The shards that hold rows of a unit."""
        first, last = self._spans[unit].tolist()
        return range(first, last + 1)

    def by_shard(self, unit: int, rows: Ints) -> Ints:
        """Rows of a unit in the same order, but those of each shard together, so that one shard is open at a time."""
        return rows if len(self.shards_of(unit)) == 1 else rows[np.argsort(self._shards_of(unit, rows), kind="stable")]

    def located(self, unit: int, rows: Ints) -> Iterator[tuple[int, Ints]]:
        """Rows of a unit as (shard, rows numbered within it), a pair for each run of rows of one shard."""
        if len(whole := self.shards_of(unit)) == 1:
            yield whole.start, rows - self.firsts[whole.start]
            return
        shards = self._shards_of(unit, rows)
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(shards)) + 1):
            index = int(shards[part[0]])
            yield index, rows[part] - self.firsts[index]


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
        """The rows of a unit, numbered as in `units`, in the order they are read in: (length,) int64.

        The last one, which an epoch may leave out, is another in each epoch than in the one before.
        """
        first, length = int(self.units.borders[unit]), int(self.units.length[unit])
        rows = seeds.permutation(length, self.seed, _ROWS, epoch, unit)
        last = (seeds.mix(self.seed, _LAST_ROWS, unit) + epoch) % length
        return np.append(self.units.by_shard(unit, first + rows[rows != last]), first + last)

    @property
    def drawn_rows(self) -> int:
        """Rows that a stream reads of each unit it draws: those of the shortest."""
        return int(self.units.length.min())

    def draw_seed(self, stream: int, block: int) -> int:
        """The seed of draws number block × DRAWS and following of a stream.

        WebDataset takes 31 bits, too few for a hash that never meets itself; here no two of the first 2**31 places are
        alike, as an odd factor permutes them.
        """
        place = block * self.streams + stream
        factor, shift = (seeds.mix(self.seed, _DRAWS, purpose) for purpose in range(2))
        return (place * (factor | 1) + shift) & 0x7FFFFFFF

    def drawn_unit_rows(self, stream: int, draw: int, unit: int) -> Ints:
        """The rows that draw number `draw` of a stream reads of a unit, in order: (drawn_rows,) int64."""
        rows = seeds.permutation(int(self.units.length[unit]), self.seed, _DRAWN_ROWS, stream, draw)[: self.drawn_rows]
        return self.units.by_shard(unit, rows + self.units.borders[unit])


def share(start: int, stop: int, part: int, parts: int) -> range:
    """What part number `part` of `parts` gets when numbers are dealt in turn: all j with start ≤ j·parts + part < stop."""
    return range(-((part - start) // parts), -((part - stop) // parts))


def cut(rows: Sequence[int] | Ints, streams: int) -> Units:
    """Cut shards of `rows` rows into units that are equal up to one row; `streams` divides their number.

    There are as many units as shards, rounded up to a multiple of `streams` (down where there are too few rows). Where
    each shard can hold a whole number of units, none crosses the border of a shard, so shards that fit stay whole; else
    units are cut off the rows of all shards end to end. Raises SettingError when there are fewer rows than streams.
    """
    sizes = np.asarray(rows, np.int64)
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    total = int(firsts[-1])
    if total < streams:
        raise SettingError(
            f"{total} sequences for {streams} streams: each stream needs one at least; "
            "use fewer ranks × workers or more data"
        )
    number = streams * min(-(-len(sizes) // streams), total // streams)
    if number % len(sizes) == 0 and np.ptp(sizes) <= 1:
        each = number // len(sizes)
        borders = firsts[:-1, None] + sizes[:, None] * np.arange(each) // each
    else:
        borders = np.arange(number) * total // number
    return Units(np.append(borders, total), firsts)


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
    """Raises SettingError when there is no stream, or `readers` = ranks × workers does not divide their number."""
    if streams < 1:
        raise SettingError(f"streams: {streams}, needed: at least 1")
    if streams % readers:
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
