"""What a shard reads of the spool: its stretch of the stream, of each part one range and of other documents no id."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tokentar.shard_writer.format.shards import RowFormat
from tokentar.shard_writer.packing import layout
from tokentar.shard_writer.writing import spool
from tokentar.shard_writer.writing.assignment import Layout, Split, Windows
from tokentar.shard_writer.writing.spool import DOCUMENT, Part

CELLS, DTYPE = 5, np.dtype("<u2")
LENGTHS = [[3, 1, 4], [], [1, 5, 9, 2, 6], [5], [3, 5, 8, 9, 7, 9]]  # of the documents of each part


def parts(folder: Path, shuffle: bool) -> Iterator[tuple[Part, NDArray[Any], list[NDArray[np.uint16]]]]:
    """Each part with its documents and their ids in input order; no id comes twice, and keys are in any order when shuffled."""
    draw = np.random.default_rng(1)
    start = 0
    for task, lengths in enumerate(LENGTHS):
        documents = np.zeros(len(lengths), DOCUMENT)
        documents["length"], documents["number"] = lengths, np.arange(len(lengths))
        documents["key"] = draw.integers(0, 2**64, len(lengths), np.uint64) if shuffle else documents["number"]
        ends = start + np.cumsum([0, *lengths])
        ids = [np.arange(first, stop, dtype=DTYPE) for first, stop in pairwise(ends)]
        start = int(ends[-1])
        yield Part(folder, task, 0, CELLS if shuffle else 1), documents, ids


def written(folder: Path, shuffle: bool) -> tuple[Windows, list[NDArray[np.uint16]]]:
    """The windows of the only split, and the ids of all documents in the order of their stream."""
    stream, ends, made = [], [], []
    for part, documents, ids in parts(folder, shuffle):
        order = np.argsort(documents["key"], kind="stable")
        stream += [(documents["key"][i] if shuffle else 0, ids[i]) for i in order]
        cells = layout.cell_of(documents["key"][order], part.num_cells)
        if ids:
            part.write(np.concatenate([ids[i] for i in order]), documents[order], cells)
            ends.append(part.ends())
            made.append((part.task, part.number))
    shape = Layout(
        folder=folder,
        parts=np.array(made),
        ends=np.array(ends, np.uint32),
        row_format=RowFormat(4, DTYPE),
        shuffle=shuffle,
    )
    stream.sort(key=lambda document: document[0])
    return shape.windows(Split("train", range(shape.ends.shape[1]))), [ids for _, ids in stream]


@pytest.mark.parametrize("shuffle", [True, False])
def test_any_stretch_of_any_windows_is_that_of_the_stream(tmp_path: Path, shuffle: bool) -> None:
    windows, documents = written(tmp_path, shuffle)
    stream = np.concatenate(documents)
    sizes = windows.tokens().tolist()
    assert sum(sizes) == len(stream) == 77
    for first in range(len(sizes)):
        for last in range(first + 1, len(sizes) + 1):
            before, size = sum(sizes[:first]), sum(sizes[first:last])
            for start in range(0, size, 3):
                for stop in range(start + 1, size + 1, 5):
                    read = windows.between(first, last).read(start, stop)
                    assert read.ids.tolist() == stream[before + start : before + stop].tolist()
                    assert read.lengths.sum() == stop - start
                    assert read.lengths.min() > 0


def test_of_each_part_one_range_of_ids_is_read_and_no_other_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, documents = written(tmp_path, True)
    seen: list[tuple[str, int]] = []
    read = spool._read

    def noted(path: str, place: int, out: memoryview) -> None:
        seen.append((path, len(out)))
        read(path, place, out)

    monkeypatch.setattr(spool, "_read", noted)
    whole = windows.between(0, CELLS)
    start = len(documents[0]) + len(documents[1]) - 1
    stop = start + len(documents[2]) + 2
    whole.read(start, stop)
    counts = [path for path, _ in seen]
    assert len(counts) <= 2 * 4, "of each of four parts the documents, and of those that are met the ids"
    ids = sum(size for _, size in seen) - DOCUMENT.itemsize * 15
    assert ids == DTYPE.itemsize * sum(len(documents[i]) for i in (1, 2, 3)), (
        "the last of the second, the third, one of the fourth"
    )
