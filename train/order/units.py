"""Shards cut into equal ranges of rows where they do not fit the streams: pure arithmetic."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SettingError

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
