"""Documents in one flat array: surrounded and chosen as a plain loop does it."""

import numpy as np
import pytest

from tokentar.shard_writer.packing import ragged


def test_prefix_and_suffix_stand_around_every_document_even_an_empty_one() -> None:
    ids = ragged.surround(np.array([7, 8, 9], np.uint16), np.array([0, 2, 2, 3]), (1,), (5, 2))
    assert ids.tolist() == [1, 7, 8, 5, 2, 1, 5, 2, 1, 9, 5, 2]
    assert ids.dtype == np.uint16


def test_only_what_stands_around_documents_is_left_of_empty_ones() -> None:
    assert ragged.surround(np.empty(0, np.uint32), np.array([0, 0, 0]), (), (3,)).tolist() == [3, 3]
    assert ragged.surround(np.empty(0, np.uint32), np.array([0]), (1,), (3,)).tolist() == []


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("order", [[2, 0, 3, 1], [3], [0, 1, 2, 3], []])
def test_whole_documents_are_taken_in_the_order_asked_for(order: list[int], dtype: type) -> None:
    documents = [[1, 2], [], [65535], [4, 5, 6]]
    ids = ragged.take(np.concatenate(documents).astype(dtype), np.array([2, 0, 1, 3]), np.array(order, np.int64))
    assert ids.tolist() == [token for index in order for token in documents[index]]
