"""Which tokens go where, as tables."""

import numpy as np
import pytest

from tokentar.shard_writer.packing.layout import Piece, cell_of, default_num_shards, even_split, num_cells, pieces


@pytest.mark.parametrize(
    ("total", "parts", "bounds"),
    [
        (10, 3, [0, 4, 7, 10]),
        (9, 3, [0, 3, 6, 9]),
        (2, 4, [0, 1, 2, 2, 2]),
        (0, 2, [0, 0, 0]),
        (10**12 + 1, 2, [0, 5 * 10**11 + 1, 10**12 + 1]),
    ],
)
def test_even_split_is_equal_up_to_one_and_longer_ranges_come_first(total: int, parts: int, bounds: list[int]) -> None:
    assert even_split(total, parts).tolist() == bounds


@pytest.mark.parametrize(
    ("sequences", "stride", "shards"),
    [
        (1, 512, 1),
        (2, 512, 2),
        (5, 512, 4),  # 5 does not divide 192
        (23, 512, 16),
        (1000, 512, 24),
        (50_000, 5120, 64),  # 244 MiB: 61 of 4 MiB
        (10**6, 5120, 192),  # 4.8 GiB: 77 of 64 MiB at least, as many as streams
        (10**7, 5120, 768),  # 763 at least, then a multiple of 192
    ],
)
def test_default_number_of_shards_divides_192_or_is_a_multiple(sequences: int, stride: int, shards: int) -> None:
    assert default_num_shards(sequences, stride) == shards
    assert shards <= sequences
    assert -(-sequences // shards) * stride <= 64 << 20


def test_pieces_cover_the_range_across_empty_runs() -> None:
    lengths = np.array([0, 5, 0, 0, 3, 4])
    assert list(pieces(lengths, 3, 10)) == [Piece(1, 3, 5), Piece(4, 0, 3), Piece(5, 0, 2)]
    assert list(pieces(lengths, 5, 8)) == [Piece(4, 0, 3)]
    assert list(pieces(lengths, 0, 12)) == [Piece(1, 0, 5), Piece(4, 0, 3), Piece(5, 0, 4)]
    assert list(pieces(lengths, 4, 4)) == []


def test_cells_are_equal_ranges_of_keys_in_ascending_order() -> None:
    keys = np.array([0, 2**62 - 1, 2**62, 2**63, 2**64 - 1], np.uint64)
    assert cell_of(keys, 4).tolist() == [0, 0, 1, 2, 3]
    assert cell_of(keys, 1).tolist() == [0] * 5


def test_number_of_cells_follows_the_input_within_bounds() -> None:
    assert [num_cells(size) for size in (0, 4 << 20, 40 << 20, 1 << 50, None)] == [1, 1, 10, 4096, 4096]
