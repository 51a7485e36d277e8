"""The order of reading: which sequence is sample number k of an epoch. Pure arithmetic: no torch, no files (G4, G5, G6).

The rows of all shards are cut into units: the shards themselves, or where these do not fit, equal ranges of rows. An
epoch permutes the units and deals them to S streams: stream s reads units s, s+S, s+2S, … of the list, the rows of each
in random order. Sample number k = t·S + s is row t of stream s. Optimizer
step g trains on samples g·B … (g+1)·B-1, B the global batch. Rank r of W takes the samples k ≡ r (mod W), its worker w
of n every n-th of those. Where W·n divides S, these are the streams that webdataset.split_by_node and split_by_worker
deal to them, and the order itself knows neither W nor n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.packing import random_order
from tokentar.train.order.streams import check_streams, default_streams
from tokentar.train.order.units import Ints, Units, cut

KINDS = ("epoch", "repeat", "resample")
DRAWS = 1 << 6  # units that a stream draws from one seed when it resamples; a resume draws at most so many again
_UNITS, _SLOTS, _ROWS, _DRAWS, _DRAWN_ROWS, _LAST_ROWS = range(101, 107)  # purposes of random numbers


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
        shuffled = random_order.permutation(len(self.units), self.seed, _UNITS, epoch)
        long = self._is_long[shuffled]
        turns = np.concatenate([shuffled[long], shuffled[~long]]).reshape(-1, self.streams)
        in_order: Ints = turns[random_order.permutation(len(turns), self.seed, _SLOTS, epoch)].ravel()
        return in_order

    def unit_rows(self, epoch: int, unit: int) -> Ints:
        """The rows of a unit, numbered as in `units`, in the order they are read in: (length,) int64.

        The last one, which an epoch may leave out, is another in each epoch than in the one before.
        """
        first, length = int(self.units.borders[unit]), int(self.units.length[unit])
        rows = random_order.permutation(length, self.seed, _ROWS, epoch, unit)
        last = (random_order.mix(self.seed, _LAST_ROWS, unit) + epoch) % length
        return np.append(self.units.by_shard(unit, first + rows[rows != last]), first + last)

    def row_at(self, epoch: int, stream: int, number: int) -> int:
        """Row number `number` of a stream in an epoch, numbered as in `units`."""
        units = self.dealt(epoch)[stream :: self.streams]
        ends = np.cumsum(self.units.length[units])
        turn = int(np.searchsorted(ends, number, "right"))
        unit = int(units[turn])
        return int(self.unit_rows(epoch, unit)[number - int(ends[turn] - self.units.length[unit])])

    def place_of(self, epoch: int, row: int) -> tuple[int, int]:
        """The inverse: stream and number of a row in an epoch, which leaves it out when the number is not below `rounds`."""
        unit = int(np.searchsorted(self.units.borders, row, "right")) - 1
        dealt = self.dealt(epoch)
        place = int(np.flatnonzero(dealt == unit)[0])
        before = dealt[place % self.streams : place : self.streams]
        inside = int(np.flatnonzero(self.unit_rows(epoch, unit) == row)[0])
        return place % self.streams, int(self.units.length[before].sum()) + inside

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
        factor, shift = (random_order.mix(self.seed, _DRAWS, purpose) for purpose in range(2))
        return (place * (factor | 1) + shift) & 0x7FFFFFFF

    def drawn_unit_rows(self, stream: int, draw: int, unit: int) -> Ints:
        """The rows that draw number `draw` of a stream reads of a unit, in order: (drawn_rows,) int64."""
        rows = random_order.permutation(int(self.units.length[unit]), self.seed, _DRAWN_ROWS, stream, draw)[
            : self.drawn_rows
        ]
        return self.units.by_shard(unit, rows + self.units.borders[unit])


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
