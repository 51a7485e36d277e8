"""Which source comes next when several are mixed by weights: periodic schedules, pure arithmetic.

Weights become whole shares c of a period D. In a schedule, source i has come floor(t·c/D) or floor(t·c/D) + 1 times
before place t, for every t: its count is never more than one off its share, and known at any t without walking there.
These are the bounds of Pfair scheduling (Baruah, Cohen, Plaxton and Varvel, "Proportionate progress", Algorithmica 15,
1996), which can always be met.

There are as many schedules as VARIANTS, drawn at random within these bounds, and streams take them in turn: with one
for all, all streams would read the same source in the same round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.packing import random_order
from tokentar.train.order.units import Ints

LONGEST_PERIOD = 1024  # so that weights of three decimals that sum to 1 are exact
VARIANTS = 64
_CHOICE = 111  # purpose of random numbers, see reading_order.py


def whole_shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights as shares of a period that is their sum: exact where that is at most LONGEST_PERIOD, else rounded to that period.

    Raises SettingError for a weight that is negative, not a number or too small for a share, and for weights that are
    all 0.
    """
    for weight in weights:
        if not (math.isfinite(weight) and weight >= 0):
            raise SettingError(f"weight: {weight}, needed: 0 or more")
    exact = [Fraction(str(weight)) for weight in weights]
    total = sum(exact)
    if not total:
        raise SettingError(f"weights: {list(weights)}, needed: one above 0 at least")
    parts = [weight / total for weight in exact]
    period = math.lcm(*(part.denominator for part in parts))
    if period <= LONGEST_PERIOD:
        return tuple(int(part * period) for part in parts)
    shares = [int(part * LONGEST_PERIOD) for part in parts]
    most_cut = sorted(range(len(parts)), key=lambda i: shares[i] - parts[i] * LONGEST_PERIOD)
    for i in most_cut[: LONGEST_PERIOD - sum(shares)]:
        shares[i] += 1
    for weight, share in zip(weights, shares, strict=True):
        if weight and not share:
            raise SettingError(f"weight: {weight} of {float(total)}, needed: at least 1 in {LONGEST_PERIOD}, or 0")
    return tuple(share // math.gcd(*shares) for share in shares)


@dataclass(frozen=True)
class Schedules:
    """The schedules of some shares: sources[v, t] comes at place t of variant v; (VARIANTS, D) int64."""

    shares: tuple[int, ...]
    sources: Ints

    @property
    def period(self) -> int:
        """Places of the period."""
        return int(self.sources.shape[1])

    @cached_property
    def _firsts(self) -> Ints:
        """How many places of a period all sources before each one have."""
        return np.cumsum([0, *self.shares[:-1]])

    @cached_property
    def _places(self) -> Ints:
        """The places of source 0 in variant 0, ascending, those of source 1, …, then of variant 1: (VARIANTS, D) int64."""
        return np.argsort(self.sources, axis=1, kind="stable")

    @cached_property
    def _keys(self) -> Ints:
        """The same with variant and source in one number, ascending over all: (VARIANTS × D,) int64."""
        variants = np.arange(len(self.sources))[:, None]
        by_source = np.repeat(np.arange(len(self.shares)), self.shares)
        return ((variants * len(self.shares) + by_source) * self.period + self._places).ravel()

    def at(self, variant: Ints, place: Ints) -> Ints:
        """The source at each of some places, which may lie beyond the period: shape as place, int64."""
        found: Ints = self.sources[variant, place % self.period]
        return found

    def before(self, variant: Ints, source: int | Ints, place: Ints) -> Ints:
        """How often a source comes before each of some places: shape as place, int64."""
        periods, inside = np.divmod(place, self.period)
        row = variant * len(self.shares) + source
        found = np.searchsorted(self._keys, row * self.period + inside) - variant * self.period - self._firsts[source]
        total: Ints = found + periods * np.array(self.shares)[source]
        return total

    def place_of(self, variant: Ints, source: int, number: Ints | np.int64) -> Ints:
        """The place at which a source of a share above 0 comes for the time `number`, counted from 0: shape as number, int64."""
        periods, inside = np.divmod(number, self.shares[source])
        found: Ints = periods * self.period + self._places[variant, self._firsts[source] + inside]
        return found


@lru_cache(maxsize=64)
def schedules(shares: tuple[int, ...], seed: int) -> Schedules:
    """The schedules of some shares."""
    used = np.flatnonzero(shares)
    if len(used) == 1:
        return Schedules(shares, np.full((VARIANTS, 1), used[0], np.int64))
    return Schedules(shares, used[_draw(np.array(shares)[used], seed)])


def _draw(share: Ints, seed: int) -> Ints:
    """VARIANTS schedules of n sources of shares above 0, place by place: (VARIANTS, D) int64.

    A source is ahead when it has come floor(t·c/D) + 1 times; `spare[t]` of them are, in any schedule. One that is ahead
    falls back when floor(t·c/D) grows, and one that is not must come then. Otherwise any source may get ahead for which
    at no later time more would still be ahead than may be.
    """
    period, count = int(share.sum()), len(share)
    floors = np.arange(period + 1)[:, None] * share // period
    spare = np.arange(period + 1) - floors.sum(axis=1)
    falls_back = -(-(floors[:-1] + 1) * period // share)  # when floor(t·c/D) grows next: (D, n)
    order = np.argsort(falls_back, axis=1, kind="stable")
    least = _least_between(spare, np.take_along_axis(falls_back, order, axis=1))
    draws = random_order.spread(random_order.mix(seed, _CHOICE), period * VARIANTS * count) >> np.uint64(1)
    draws = draws.reshape(period, VARIANTS, count)
    is_ahead, rows = np.zeros((VARIANTS, count), np.bool_), np.arange(VARIANTS)
    found = np.empty((VARIANTS, period), np.int64)
    for time in range(1, period):
        grows = floors[time] > floors[time - 1]
        must = grows & ~is_ahead
        is_ahead &= ~grows
        # from one time at which some source falls back to the next, equally many stay ahead of those that are now; where
        # that is as many as may be, only sources that have fallen back by then may join them
        stay = is_ahead[:, order[time, ::-1]].cumsum(axis=1)[:, ::-1]
        full = np.logical_or.accumulate(stay >= least[time], axis=1)
        may = np.empty_like(is_ahead)
        may[:, order[time]] = ~full
        choice = np.where(may & ~is_ahead, draws[time], 0).argmax(axis=1)
        has_to = must.any(axis=1)
        is_ahead[rows, choice] |= ~has_to
        found[:, time - 1] = np.where(has_to, must.argmax(axis=1), choice)
    found[:, -1] = (~is_ahead & (floors[-1] > floors[-2])).argmax(axis=1)
    return found


def _least_between(spare: Ints, stops: Ints) -> Ints:
    """The least of `spare` from each stop to the next, at each time t from t to its first stop: (D, n) int64, n where two are alike.

    stops: (D, n) int64, ascending in each row.
    """
    period, count = stops.shape
    starts = np.concatenate([np.arange(period)[:, None], stops[:, :-1]], axis=1)
    table = [spare]  # table[k][t]: the least of 2**k from t on
    while (width := 1 << len(table)) <= period + 1:
        table.append(np.minimum(table[-1][: -width // 2], table[-1][width // 2 :]))
    length = np.maximum(stops - starts, 1)
    level = np.frexp(length)[1] - 1
    found = np.full_like(stops, count)
    for k, least in enumerate(table):
        here = (level == k) & (stops > starts)
        found[here] = np.minimum(least[starts[here]], least[stops[here] - (1 << k)])
    return found
