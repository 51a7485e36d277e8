"""The order of several sets that are mixed by weights: which source sample number k is of, and which row of it. Pure arithmetic.

The streams are those of one set (see reading_order.py): sample k = t·S + s is row t of stream s. Each row of a stream is
of one source, by the stream's schedule (schedule.py), and is the next row that this stream of the source has not read:
stream s of the mixture reads stream s of every source. So a source is read in its own order "repeat", and how far in each
stream is known in closed form at any k. Stages change the weights: the counts go on from where the stage before ended, so
that nothing is read again before its epoch of the source ends.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice

import numpy as np

from tokentar.shard_writer.packing import random_order
from tokentar.train.order.reading_order import Order
from tokentar.train.order.schedule import VARIANTS, Schedules, schedules, whole_shares
from tokentar.train.order.units import Ints

_STAGE = 112  # purpose of random numbers, see reading_order.py


@dataclass(frozen=True)
class Stage:
    """Weights that hold from sample number `start` of the job on, one of each source."""

    start: int
    weights: tuple[float, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of the samples that each source really has: see `whole_shares`."""
        shares = whole_shares(self.weights)
        return tuple(share / sum(shares) for share in shares)


@dataclass(frozen=True)
class Mixture:
    """Stages in the order of their starts, the first at sample 0; each has as many weights as there are sources."""

    stages: tuple[Stage, ...]
    streams: int
    seed: int

    @property
    def num_sources(self) -> int:
        """Sources, those of weight 0 counted."""
        return len(self.stages[0].weights)

    @cached_property
    def _schedules(self) -> list[Schedules]:
        """Those of each stage."""
        return [
            schedules(whole_shares(stage.weights), random_order.mix(self.seed, _STAGE, number))
            for number, stage in enumerate(self.stages)
        ]

    @cached_property
    def _variants(self) -> Ints:
        return np.arange(self.streams) % VARIANTS

    @cached_property
    def _rounds(self) -> Ints:
        """The first row of each stage in each stream: (stages, streams) int64."""
        return np.stack([self._rows_before(stage.start) for stage in self.stages])

    def _rows_before(self, sample: int) -> Ints:
        """Rows that each stream has before a sample of the job: (streams,) int64."""
        found: Ints = -((np.arange(self.streams) - sample) // self.streams)
        return found

    @cached_property
    def _counts(self) -> Ints:
        """Rows of each source that each stream has before each stage: (stages, sources, streams) int64."""
        found = np.zeros((len(self.stages), self.num_sources, self.streams), np.int64)
        for number in range(1, len(self.stages)):
            found[number] = self._counts_in(number - 1, found[number - 1], self._rounds[number])
        return found

    def _counts_in(self, stage: int, before: Ints, rows: Ints) -> Ints:
        """Rows of each source that each stream has before its row number `rows`, which lies in a stage or at its end."""
        inside = rows - self._rounds[stage]
        counts = [self._schedules[stage].before(self._variants, i, inside) for i in range(self.num_sources)]
        found: Ints = before + np.stack(counts)
        return found

    def counts(self, sample: int) -> Ints:
        """Rows of each source that each stream has read before a sample of the job: (sources, streams) int64."""
        stage = self.stage_of(sample)
        return self._counts_in(stage, self._counts[stage], self._rows_before(sample))

    def stage_of(self, sample: int) -> int:
        """The number of the stage that a sample is of."""
        return int(np.searchsorted([stage.start for stage in self.stages], sample, "right")) - 1

    def sources_from(self, stream: int, row: int) -> Iterator[int]:
        """The source of each row of a stream, from one row on, without end."""
        variant = int(self._variants[stream])
        for stage, found in enumerate(self._schedules):
            first = int(self._rounds[stage, stream])
            is_last = stage + 1 == len(self.stages)
            stop = None if is_last else int(self._rounds[stage + 1, stream]) - first
            begin = max(0, row - first)
            if stop is None or begin < stop:
                turn = begin % found.period
                endless = islice(cycle(found.sources[variant].tolist()), turn, None)
                yield from endless if stop is None else islice(endless, stop - begin)

    def located(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """Of samples of the job: the source, the stream, and the number of the row in that stream of the source."""
        rows, streams = np.divmod(samples, self.streams)
        source, number = np.empty_like(samples), np.empty_like(samples)
        of_stage = np.searchsorted([stage.start for stage in self.stages], samples, "right") - 1
        for stage, found in enumerate(self._schedules):
            mine = np.flatnonzero(of_stage == stage)
            stream = streams[mine]
            place = rows[mine] - self._rounds[stage, stream]
            source[mine] = found.at(self._variants[stream], place)
            before = found.before(self._variants[stream], source[mine], place)
            number[mine] = self._counts[stage, source[mine], stream] + before
        return source, streams, number

    def sample_of(self, source: int, stream: int, number: int) -> int | None:
        """The inverse of `located`: the sample that is row `number` of a stream of a source; None when no stage comes to it."""
        starts = [*(stage.start for stage in self.stages[1:]), sys.maxsize]
        for stage, (found, end) in enumerate(zip(self._schedules, starts, strict=True)):
            left = number - int(self._counts[stage, source, stream])
            if left >= 0 and found.shares[source]:
                place = int(found.place_of(self._variants[stream], source, np.int64(left)))
                sample = (place + int(self._rounds[stage, stream])) * self.streams + stream
                if sample < end:
                    return sample
        return None

    def end(self, rows: Sequence[int]) -> int:
        """The first sample that would need more than rows[i] rows of a source i in some stream.

        So the run of samples before it reads no source for a second time, with rows[i] those of a stream in an epoch.
        """
        starts = [*(stage.start for stage in self.stages[1:]), sys.maxsize]
        return next(end for stage, start in enumerate(starts) if (end := self._end_in(stage, rows)) < start)

    def _end_in(self, stage: int, rows: Sequence[int]) -> int:
        """The same if a stage had no end."""
        found, ends = self._schedules[stage], []
        for source, share in enumerate(found.shares):
            if share:
                left = np.maximum(0, rows[source] - self._counts[stage, source])
                place = found.place_of(self._variants, source, left)
                ends.append((place + self._rounds[stage]) * self.streams + np.arange(self.streams))
        return int(np.min(ends))


@dataclass(frozen=True)
class MixedOrder:
    """A mixture of the orders of its sources: what Order is to one set.

    names, orders: of each source, sorted by name, its order of kind "repeat"; None of one that is not read any more.
    stops: whether the run ends where the first source would begin its second epoch; else each source begins its next one.
    """

    names: tuple[str, ...]
    orders: tuple[Order | None, ...]
    mixture: Mixture
    stops: bool = False

    @property
    def kind(self) -> str:
        """As of Order."""
        return "mixture"

    @property
    def streams(self) -> int:
        """Streams, the same of every source."""
        return self.mixture.streams

    @property
    def seed(self) -> int:
        """The seed of all orders."""
        return self.mixture.seed

    @property
    def endless(self) -> bool:
        """Whether the order has no end."""
        return not self.stops

    @property
    def rows(self) -> int:
        """Sequences of all sources."""
        return sum(order.rows for order in self.orders if order)

    @cached_property
    def samples(self) -> int:
        """Samples until the end; without one, those of an epoch of every source."""
        if not self.stops:
            return sum(order.samples for order in self.orders if order)
        return self.mixture.end([order.rounds if order else sys.maxsize for order in self.orders])

    def epochs(self, sample: int) -> list[range]:
        """The epochs that the streams of each source are in before a sample: one, or two where some have begun the next."""
        found = []
        for order, rows in zip(self.orders, self.mixture.counts(sample), strict=True):
            rounds = order.rounds if order else sys.maxsize
            found.append(range(int(rows.min()) // rounds, max(0, int(rows.max()) - 1) // rounds + 1))
        return found
