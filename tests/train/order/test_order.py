"""The order of reading: cutting, dealing and sharing are arithmetic, and so are their tests."""

import random
from itertools import chain, pairwise

import numpy as np
import pytest

from tests.helpers.worlds import drawn_units
from tokentar.shard_writer.errors import SettingError
from tokentar.train.distributed.world import World
from tokentar.train.order import reading_order
from tokentar.train.order.plan import Plan
from tokentar.train.order.reading_order import Order, build
from tokentar.train.order.streams import default_streams, share
from tokentar.train.order.units import Units, cut

RANDOM = random.Random(20)
UNEVEN = [
    [1, 2, 3, 4, 5, 6, 7],
    [1, 400],
    [100, 1, 1, 1, 1],
    [0, 5, 3],
    [64] * 7 + [3],
    *[[RANDOM.randint(1, top) for _ in range(RANDOM.randint(1, 12))] for top in (2, 9, 50, 300) for _ in range(4)],
]
CUTS = [(sizes, streams) for sizes in UNEVEN for streams in (1, 2, 3, 5, 8) if streams <= sum(sizes)]


def pieces_of(units: Units) -> list[list[tuple[int, int, int]]]:
    """Of each unit, the row ranges (shard, first row, behind its last) that it is made of."""
    every = [np.arange(start, stop) for start, stop in pairwise(units.borders.tolist())]
    return [
        [(shard, int(rows[0]), int(rows[-1]) + 1) for shard, rows in units.located(unit, numbers)]
        for unit, numbers in enumerate(every)
    ]


def rows_of(units: Units) -> list[tuple[int, int]]:
    """(shard, row) of every row of every unit."""
    return [(shard, row) for unit in pieces_of(units) for shard, start, stop in unit for row in range(start, stop)]


@pytest.mark.parametrize(("sizes", "streams"), CUTS, ids=str)
def test_units_hold_every_row_once_and_differ_by_one_row(sizes: list[int], streams: int) -> None:
    units = cut(sizes, streams)
    assert rows_of(units) == [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    assert len(units) % streams == 0
    assert 1 <= units.length.min() <= units.length.max() <= units.length.min() + 1
    assert units.ranges == sum(map(len, pieces_of(units)))


@pytest.mark.parametrize(
    ("sizes", "streams"),
    [([4] * 8, 8), ([4] * 8, 4), ([4] * 8, 1), ([5, 4, 5, 4], 2), ([4, 4, 4, 3], 4), ([1], 1), ([7], 1)],
)
def test_shards_that_fit_stay_whole(sizes: list[int], streams: int) -> None:
    units = cut(sizes, streams)
    assert pieces_of(units) == [[(shard, 0, size)] for shard, size in enumerate(sizes)]
    assert units.ranges == len(sizes)


@pytest.mark.parametrize(
    ("sizes", "streams", "pieces"),
    [
        ([8], 4, [[(0, 0, 2)], [(0, 2, 4)], [(0, 4, 6)], [(0, 6, 8)]]),
        ([4, 5], 4, [[(0, 0, 2)], [(0, 2, 4)], [(1, 0, 2)], [(1, 2, 5)]]),
        ([4, 4, 4], 2, [[(0, 0, 3)], [(0, 3, 4), (1, 0, 2)], [(1, 2, 4), (2, 0, 1)], [(2, 1, 4)]]),
        ([8, 4], 3, [[(0, 0, 4)], [(0, 4, 8)], [(1, 0, 4)]]),
        ([3, 7], 3, [[(0, 0, 3)], [(1, 0, 3)], [(1, 3, 7)]]),
        ([1, 0, 5], 3, [[(0, 0, 1), (2, 0, 1)], [(2, 1, 3)], [(2, 3, 5)]]),
        ([1, 1, 1], 2, [[(0, 0, 1)], [(1, 0, 1), (2, 0, 1)]]),
    ],
)
def test_shards_that_do_not_fit_are_cut_into_equal_ranges(
    sizes: list[int], streams: int, pieces: list[list[tuple[int, int, int]]]
) -> None:
    assert pieces_of(cut(sizes, streams)) == pieces


def test_an_odd_shard_cuts_no_other_to_pieces() -> None:
    """10,000 shards of 8,192 rows and an appended one of a single row: 81,920,001 rows in 53 × 192 units."""
    units = cut([8192] * 10_000 + [1], 192)
    assert len(units) == 10_176
    assert (units.length.min(), units.length.max(), units.length.sum()) == (8050, 8051, 81_920_001)
    assert units.ranges < 10_176 + 10_001, "each border of a unit cuts one shard at most"


@pytest.mark.parametrize("place", [0, 7, 19])
def test_rows_of_a_unit_are_located_in_their_shards(place: int) -> None:
    sizes = [3, 120, 0, 41, 41, 200, 7, 90, 1, 110]
    order = build(sizes, seed=1, readers=1, streams=4)
    unit = int(order.dealt(0)[place % len(order.units)])
    rows = order.unit_rows(0, unit)
    table = [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    found = [(shard, row) for shard, inside in order.units.located(unit, rows) for row in inside.tolist()]
    assert found == [table[row] for row in rows.tolist()]
    assert [shard for shard, _ in found[:-1]] == sorted(shard for shard, _ in found[:-1]), "one shard after another"


def test_fewer_rows_than_streams_are_refused_with_the_numbers() -> None:
    with pytest.raises(SettingError, match=r"5 sequences for 6 streams.*use fewer ranks × workers or more data"):
        cut([2, 3], 6)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_share_is_what_dealing_in_turn_gives(parts: int) -> None:
    for start, stop in [(0, 0), (0, 20), (3, 20), (5, 6), (13, 13), (6, 29)]:
        for part in range(parts):
            assert list(share(start, stop, part, parts)) == [
                j for j in range(stop + 1) if start <= j * parts + part < stop
            ]


@pytest.mark.parametrize(
    ("rows", "readers", "streams"),
    [
        (10**9, 1, 192),
        (10**9, 64, 192),
        (10**9, 5, 960),
        (10**9, 256, 768),
        (192, 1, 192),
        (8, 8, 8),
        (16, 2, 16),
        (15, 2, 2),  # each of 2, 4 and 6 leaves out at least a row; the least, and of those the most streams
        (300, 4, 12),
        (7, 7, 7),
    ],
)
def test_default_streams_of_known_sets(rows: int, readers: int, streams: int) -> None:
    assert default_streams(rows, readers) == streams


@pytest.mark.parametrize("readers", [1, 2, 3, 4, 5, 7, 8, 24, 96])
def test_default_streams_fit_the_readers_and_leave_every_stream_a_row(readers: int) -> None:
    for rows in [readers, readers + 1, 100, 384, 600, 1000, 12345]:
        if rows < readers:
            continue
        streams = default_streams(rows, readers)
        assert streams % readers == 0
        assert np.lcm(192, readers) % streams == 0
        assert streams <= rows


def test_fewer_rows_than_readers_are_refused_with_the_numbers() -> None:
    with pytest.raises(SettingError, match="3 sequences for 4 ranks × workers"):
        default_streams(3, 4)


@pytest.mark.parametrize(("sizes", "streams"), CUTS, ids=str)
def test_streams_differ_by_one_row_and_are_read_to_the_last_whole_round(sizes: list[int], streams: int) -> None:
    order = build(sizes, seed=3, readers=1, streams=streams)
    for epoch in range(3):
        dealt = order.dealt(epoch)
        assert sorted(dealt.tolist()) == list(range(len(order.units)))
        lengths = order.units.length[dealt].reshape(-1, streams).sum(axis=0)
        assert order.rounds == lengths.min() >= lengths.max() - 1
    assert order.rows == sum(sizes)
    assert order.rows - streams < order.samples == order.rounds * streams <= order.rows


def test_the_rows_of_a_unit_are_permuted_inside_it() -> None:
    order = build([40, 41, 40, 41], seed=0, readers=1, streams=8)
    for unit, (start, stop) in enumerate(pairwise(order.units.borders.tolist())):
        rows = order.unit_rows(5, unit).tolist()
        assert sorted(rows) == list(range(start, stop)) != rows


def test_the_last_row_of_a_unit_is_another_in_the_next_epoch() -> None:
    order = build([3, 4, 3], seed=2, readers=1, streams=3)
    for unit in range(3):
        last = [int(order.unit_rows(epoch, unit)[-1]) for epoch in range(60)]
        assert all(one != other for one, other in pairwise(last))
        assert len(set(last)) == order.units.length[unit], "and each row has its turn"


@pytest.mark.parametrize(("epoch", "seed"), [(1, 0), (0, 1), (1, 1)])
def test_every_epoch_and_seed_has_its_own_order(epoch: int, seed: int) -> None:
    first, other = (build([32] * 24, seed=s, readers=1, streams=4) for s in (0, seed))
    assert first.dealt(0).tolist() == build([32] * 24, seed=0, readers=2, streams=4).dealt(0).tolist()
    assert first.dealt(0).tolist() != other.dealt(epoch).tolist()
    assert first.unit_rows(0, 7).tolist() != other.unit_rows(epoch, 7).tolist()
    assert first.unit_rows(0, 7).tolist() != first.unit_rows(0, 8).tolist()


def test_a_stream_does_not_keep_its_units() -> None:
    order = build([4] * 64, seed=0, readers=1, streams=4)
    mine = [set(order.dealt(epoch)[0::4].tolist()) for epoch in range(8)]
    assert len(set.union(*mine)) > 48
    assert len({frozenset(units) for units in mine}) == 8


@pytest.mark.parametrize(
    ("streams", "message"),
    [(6, "6 cannot be dealt to 4 ranks × workers"), (0, "0, needed: at least 1"), (-4, "-4, needed: at least 1")],
)
def test_streams_that_cannot_be_dealt_are_refused(streams: int, message: str) -> None:
    with pytest.raises(SettingError, match=f"streams: {message}"):
        reading_order.check_streams(streams, 4)


def test_the_refusal_of_streams_names_the_readers_that_work() -> None:
    with pytest.raises(SettingError, match=r"streams: 6 .* that work: \[1, 2, 3, 6\]"):
        build([100], seed=0, readers=4, streams=6)


@pytest.mark.parametrize("streams", [24, 192])
def test_what_is_left_out_is_less_than_a_round_and_a_global_batch_and_another_choice_each_epoch(streams: int) -> None:
    """Rows just above and below a multiple of everything, where the most is left out."""
    for rows in (5 * streams - 1, 5 * streams, 5 * streams + 1, 6 * streams - 1):
        for size in (1, streams // 2 + 1, streams, 2 * streams - 1):
            order = build([rows // 3, rows // 3, rows - rows // 3 * 2], seed=9, readers=1, streams=streams)
            plan = Plan.of(order, World(0, 1), size, None)
            left_out = [
                set(range(rows)) - set(samples(order, epoch)[: plan.usable(order.samples)]) for epoch in range(4)
            ]
            assert {len(rows_left) for rows_left in left_out} == {plan.left_out}
            assert plan.left_out == rows - rows // streams * streams // size * size < streams + size
            assert not plan.left_out or all(one != other for one, other in pairwise(left_out))


def samples(order: Order, epoch: int) -> list[int]:
    """The rows of an epoch's whole rounds, as numbered in its units, in the order of the samples."""
    dealt = order.dealt(epoch).tolist()
    streams = [
        [row for unit in dealt[stream :: order.streams] for row in order.unit_rows(epoch, unit).tolist()]
        for stream in range(order.streams)
    ]
    return [row for turn in zip(*streams, strict=False) for row in turn]


# Drawing with replacement


def test_no_two_streams_draw_alike_in_any_block() -> None:
    order = build([4] * 384, seed=3, readers=1, streams=192, kind="resample")
    seeds = {order.draw_seed(stream, block) for stream in range(192) for block in range(500)}
    assert len(seeds) == 192 * 500
    draws = {tuple(drawn_units(order, stream, block)) for stream in range(192) for block in range(20)}
    assert len(draws) == 192 * 20
    assert set(chain.from_iterable(draws)) == set(range(384)), "every unit is drawn"


def test_draws_follow_the_seed() -> None:
    orders = [build([4] * 16, seed=seed, readers=1, streams=4, kind="resample") for seed in (1, 1, 2)]
    first, again, other = ([drawn_units(order, stream, 0) for stream in range(4)] for order in orders)
    assert first == again
    assert not {tuple(units) for units in first} & {tuple(units) for units in other}


def test_a_drawn_unit_gives_as_many_rows_as_the_shortest_has() -> None:
    order = build([5, 4, 5, 4], seed=0, readers=1, streams=2, kind="resample")
    assert order.drawn_rows == 4
    for unit, (start, stop) in enumerate(pairwise([0, 5, 9, 14, 18])):
        drawn = [order.drawn_unit_rows(0, draw, unit).tolist() for draw in range(20)]
        assert all(len(set(rows)) == 4 and set(rows) <= set(range(start, stop)) for rows in drawn)
        assert {row for rows in drawn for row in rows} == set(range(start, stop)), "each row has its chance"
        assert len({tuple(rows) for rows in drawn}) > 1


@pytest.mark.parametrize("rows", [[5] * 12, [3, 120, 41, 7, 1], [9, 8, 8, 8]])
@pytest.mark.parametrize("streams", [1, 4])
def test_a_row_is_found_where_the_order_reads_it(rows: list[int], streams: int) -> None:
    order = build(rows, seed=7, readers=1, streams=streams)
    for epoch in (0, 3):
        dealt = order.dealt(epoch).tolist()
        for stream in range(streams):
            read = [row for unit in dealt[stream::streams] for row in order.unit_rows(epoch, unit).tolist()]
            for number, row in enumerate(read):
                assert order.row_at(epoch, stream, number) == row
                assert order.place_of(epoch, row) == (stream, number)
