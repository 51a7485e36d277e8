"""Position ids restart behind each end of a document, and the first token of a document is no label."""

import numpy as np
import pytest

from tokentar.train.data.batches import IGNORED, labels_of, position_ids

EOS = 2


def by_loop(row: list[int]) -> list[int]:
    positions, position = [], 0
    for token in row:
        positions.append(position)
        position = 0 if token == EOS else position + 1
    return positions


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([5, 6, 7, 8], [0, 1, 2, 3]),
        ([5, EOS, 7, 8], [0, 1, 0, 1]),
        ([EOS, 6, 7, 8], [0, 0, 1, 2]),
        ([5, 6, 7, EOS], [0, 1, 2, 3]),
        ([5, EOS, EOS, 8], [0, 1, 0, 0]),
        ([EOS, EOS, EOS, EOS], [0, 0, 0, 0]),
    ],
)
def test_positions_restart_behind_each_end_of_document(row: list[int], expected: list[int]) -> None:
    assert position_ids(np.array([row]), EOS).tolist() == [expected] == [by_loop(row)]


@pytest.mark.parametrize("length", [1, 2, 17, 300])
def test_positions_of_random_rows_are_those_of_a_loop(length: int) -> None:
    ids = np.random.default_rng(length).integers(0, 12, (40, length))
    ids[0, 0] = ids[1, -1] = EOS
    ids[2, : min(3, length)] = ids[3, -2:] = EOS
    positions = position_ids(ids, EOS)
    assert positions.tolist() == [by_loop(row) for row in ids.tolist()]
    assert (positions.shape, positions.dtype) == ((40, length), np.int64)


def test_the_first_token_of_each_document_is_no_label() -> None:
    """Documents "bbbbbbb", "eee", "" and "aa" in one row of 16, with the ids of the byte tokenizer."""
    row = np.array([[101] * 7 + [2] + [104] * 3 + [2] + [2] + [100, 100, 2]])
    positions = position_ids(row, EOS)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 0, 0, 1, 2]]
    first = {0, 8, 12, 13}
    expected = [IGNORED if place in first else token for place, token in enumerate(row[0].tolist())]
    assert labels_of(row, EOS, positions=positions).tolist() == [expected]
    assert labels_of(row, EOS) is row, "of one text every token is a label"


def test_rows_that_are_not_there_have_no_labels() -> None:
    rows = np.array([[5, 6], [7, 8]])
    assert labels_of(rows, EOS, is_there=np.array([True, False])).tolist() == [[5, 6], [IGNORED, IGNORED]]
    assert rows.tolist() == [[5, 6], [7, 8]], "the ids stay"
