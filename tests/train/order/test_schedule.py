"""Schedules of sources: each is never more than one off its share, in any stream and at any place."""

import random
from fractions import Fraction

import numpy as np
import pytest

from tokentar.shard_writer.errors import SettingError
from tokentar.train.order.schedule import LONGEST_PERIOD, VARIANTS, schedules, whole_shares

WEIGHTS = [
    (1.0,),
    (0.7, 0.3),
    (1, 1, 1),
    (0.5, 0.3, 0.2),
    (0, 2, 1),
    (0.99, 0.01),
    (0.9, 0.05, 0.03, 0.02),
    tuple(0.05 for _ in range(20)),
    (0.137, 0.211, 0.048, 0.604),
]


def random_weights(seed: int) -> tuple[float, ...]:
    draw = random.Random(seed)
    return tuple(round(draw.random() ** draw.choice((1, 3)), draw.choice((1, 2))) for _ in range(draw.randint(2, 24)))


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ((0.7, 0.3), (7, 3)),
        ((7, 3), (7, 3)),
        ((0.2, 0.2), (1, 1)),
        ((1, 1, 1), (1, 1, 1)),
        ((0.5, 0, 0.25), (2, 0, 1)),
        ((3.0,), (1,)),
        ((0.1, 0.2, 0.3), (1, 2, 3)),
    ],
)
def test_weights_are_normalised_to_whole_shares(weights: tuple[float, ...], shares: tuple[int, ...]) -> None:
    assert whole_shares(weights) == shares


def test_weights_that_no_short_period_can_hold_are_rounded_to_the_nearest_share() -> None:
    weights = (0.123457, 0.333331, 0.543212)
    shares = whole_shares(weights)
    assert sum(shares) == LONGEST_PERIOD
    for weight, share in zip(weights, shares, strict=True):
        assert abs(Fraction(share, LONGEST_PERIOD) - Fraction(str(weight))) < Fraction(1, LONGEST_PERIOD)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((0.0, 0.0), "needed: one above 0 at least"),
        ((1, -0.5), r"weight: -0\.5, needed: 0 or more"),
        ((1, float("nan")), "weight: nan, needed: 0 or more"),
        ((1, float("inf")), "weight: inf, needed: 0 or more"),
        ((1, 1e-9), "weight: 1e-09 of 1.0.*, needed: at least 1 in 1024, or 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        whole_shares(weights)


@pytest.mark.parametrize("weights", [*WEIGHTS, *map(random_weights, range(40))])
def test_no_source_is_ever_more_than_one_off_its_share(weights: tuple[float, ...]) -> None:
    shares = whole_shares([*weights, 0.5])
    found = schedules(shares, seed=3)
    period = sum(shares)
    assert found.sources.shape == (VARIANTS, period)
    for source, share in enumerate(shares):
        came = np.cumsum(found.sources == source, axis=1)  # by counting
        off = came * period - share * np.arange(1, period + 1)
        assert np.abs(off).max() <= period
        assert (came[:, -1] == share).all(), "exact over a period"


@pytest.mark.parametrize("weights", WEIGHTS)
def test_counts_and_places_are_those_of_a_walk_far_beyond_the_period(weights: tuple[float, ...]) -> None:
    shares = whole_shares(weights)
    found = schedules(shares, seed=0)
    length = 5 * found.period + 7
    for variant in (0, 5, VARIANTS - 1):
        walk = [int(found.sources[variant, place % found.period]) for place in range(length)]
        assert found.at(np.full(length, variant), np.arange(length)).tolist() == walk
        for source, share in enumerate(shares):
            counts = [walk[:place].count(source) for place in range(0, length, 11)]
            places = np.arange(0, length, 11)
            assert found.before(np.full(len(places), variant), source, places).tolist() == counts
            if share:
                at = [place for place, seen in enumerate(walk) if seen == source]
                assert found.place_of(np.full(len(at), variant), source, np.arange(len(at))).tolist() == at


def test_streams_differ_in_the_source_of_a_round_and_seeds_in_their_schedules() -> None:
    one, other = schedules((7, 3), seed=0), schedules((7, 3), seed=1)
    assert all(len(set(one.sources[:, place].tolist())) == 2 for place in range(1, 9))
    assert one.sources.tolist() != other.sources.tolist()
    assert schedules((7, 3), seed=0).sources.tolist() == one.sources.tolist()
