"""The order of mixtures: counts, positions and ends in closed form are those of a walk from the first sample."""

import random
from collections import Counter
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from tokentar.train.order.mixture import Mixture, Stage


def random_mixture(seed: int) -> tuple[Mixture, int]:
    """A mixture of up to six sources and four stages, and a number of samples that reaches into the last one."""
    draw = random.Random(seed)
    sources, start, stages = draw.randint(1, 6), 0, []
    for _ in range(draw.randint(1, 4)):
        weights = [round(draw.random(), 2) * draw.choice((0, 1, 1)) for _ in range(sources)]
        weights[draw.randrange(sources)] = 1.0
        stages.append(Stage(start, tuple(weights)))
        start += draw.randint(0, 500)
    return Mixture(tuple(stages), draw.choice((1, 3, 8, 192)), seed), start + draw.randint(1, 600)


def walked(mixture: Mixture, samples: int) -> list[tuple[int, int, int]]:
    """(source, stream, row of the stream in the source) of each sample, one after the other."""
    sources = [mixture.sources_from(stream, 0) for stream in range(mixture.streams)]
    counts: Counter[tuple[int, int]] = Counter()
    found = []
    for sample in range(samples):
        stream = sample % mixture.streams
        source = next(sources[stream])
        found.append((source, stream, counts[source, stream]))
        counts[source, stream] += 1
    return found


SEEDS = pytest.mark.parametrize("seed", range(25))


@SEEDS
def test_each_sample_is_the_next_row_of_its_stream_of_a_source(seed: int) -> None:
    mixture, samples = random_mixture(seed)
    located = zip(*(part.tolist() for part in mixture.located(np.arange(samples))), strict=True)
    assert list(located) == walked(mixture, samples)


@SEEDS
def test_counts_at_any_sample_are_those_of_all_before_it(seed: int) -> None:
    mixture, samples = random_mixture(seed)
    found = walked(mixture, samples)
    for sample in {0, 1, samples // 3, samples // 2, samples, *(stage.start for stage in mixture.stages)}:
        expected = np.zeros((mixture.num_sources, mixture.streams), np.int64)
        for source, stream, _ in found[:sample]:
            expected[source, stream] += 1
        assert mixture.counts(sample).tolist() == expected.tolist()


@SEEDS
def test_a_stream_goes_on_anywhere_with_the_sources_that_come_next(seed: int) -> None:
    mixture, samples = random_mixture(seed)
    for stream in {0, mixture.streams // 2, mixture.streams - 1}:
        row = random.Random(seed).randint(0, samples // mixture.streams)
        whole = list(islice(mixture.sources_from(stream, 0), row + 40))
        assert list(islice(mixture.sources_from(stream, row), 40)) == whole[row:]


@SEEDS
def test_the_sample_of_a_row_is_the_one_that_reads_it(seed: int) -> None:
    mixture, samples = random_mixture(seed)
    for sample, (source, stream, row) in list(enumerate(walked(mixture, samples)))[::7]:
        assert mixture.sample_of(source, stream, row) == sample


def test_a_row_that_no_stage_comes_to_has_no_sample() -> None:
    mixture = Mixture((Stage(0, (1, 1)), Stage(40, (1, 0))), 4, 0)
    assert mixture.sample_of(1, 2, int(mixture.counts(40)[1, 2])) is None


@SEEDS
def test_the_end_is_the_first_sample_that_would_read_a_source_twice(seed: int) -> None:
    mixture, _ = random_mixture(seed)
    rows = [random.Random(seed + source).randint(1, 12) for source in range(mixture.num_sources)]
    end = mixture.end(rows)
    found = walked(mixture, 12 * 300 * mixture.streams if mixture.streams < 10 else 60_000)
    assert end == next(sample for sample, (source, _, row) in enumerate(found) if row >= rows[source])


@SEEDS
def test_another_stage_changes_nothing_before_it_and_repeats_nothing_behind_it(seed: int) -> None:
    mixture, samples = random_mixture(seed)
    draw = random.Random(seed)
    weights = tuple(draw.randint(1, 99) / 100 for _ in range(mixture.num_sources))
    start = draw.randint(mixture.stages[-1].start, samples)
    changed = Mixture((*mixture.stages, Stage(start, weights)), mixture.streams, mixture.seed)
    found = walked(changed, samples + 400)
    assert found[:start] == walked(mixture, start)
    assert len(set(found)) == len(found), "no row of a stream twice"


@pytest.mark.parametrize("weights", [(0.7, 0.3), (0.5, 0.3, 0.15, 0.05), tuple(range(1, 21))])
def test_counts_over_a_million_samples_are_the_exact_fractions_to_one_a_stream(weights: tuple[float, ...]) -> None:
    mixture, samples = Mixture((Stage(0, weights),), 192, 0), 10**6
    total = sum(Fraction(str(weight)) for weight in weights)
    source = mixture.located(np.arange(samples))[0]
    counts = mixture.counts(samples)
    assert counts.sum(axis=1).tolist() == np.bincount(source, minlength=len(weights)).tolist()
    for number, weight in enumerate(weights):
        share = Fraction(str(weight)) / total
        rows = [-(-(samples - stream) // 192) for stream in range(192)]
        off = [abs(count - share * row) for count, row in zip(counts[number].tolist(), rows, strict=True)]
        assert max(off) <= 1


def test_a_position_far_away_is_found_without_walking_there() -> None:
    mixture = Mixture((Stage(0, (0.6, 0.4)), Stage(10**9, (0.1, 0.9))), 192, 0)
    counts = mixture.counts(2 * 10**9)
    assert abs(int(counts[0].sum()) - 700_000_000) <= 2 * 192
    assert int(counts.sum()) == 2 * 10**9
