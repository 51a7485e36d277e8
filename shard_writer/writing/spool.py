"""The spool: tokenized parts between map and reduce, in a hidden folder of the output.

A part is one file, what some of a task's documents became: counts per cell, then the documents, then their ids, both in the
order of cells and keys, so that a shard needs one range of each. A task leaves one or more parts and, last, a record
with their checksums; a task whose record is there and true is not done again (G3).
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.packing.token_ids import TokenIds
from tokentar.shard_writer.storage import files

FOLDER = ".spool"
VERSION = 2  # of parts and of how tasks are cut: a spool of another version is not gone on with
# of each document: what it is ordered by, its tokens, and how many documents and rows of the task come before it
DOCUMENT = np.dtype([("key", "<u8"), ("length", "<i8"), ("number", "<i8"), ("row", "<i8")])
# in which part, of how many documents, which of the documents, and which of the ids
SPAN = np.dtype(
    [
        (name, "<i8")
        for name in ("task", "number", "all_documents", "first_document", "documents", "first_token", "tokens")
    ]
)
_HEADER = 16  # bytes of a part for each cell: how many documents and tokens it has


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """What one task of the map step did."""

    index: int
    size: int  # bytes of input
    documents: int
    tokens: int
    rows: int  # of input: lines, rows or files, those left out counted
    sources: list[str]  # see documents.Reader
    first_place: int
    skipped: dict[str, int]
    parts: list[str]  # XXH3-64 of each part


@dataclass(frozen=True)
class Spans:
    """Documents that stand together in a part, of one or more parts in input order."""

    folder: Path
    num_cells: int
    where: NDArray[Any]  # (spans,) SPAN

    def of(self, chosen: NDArray[np.int64]) -> "Spans":
        """Some of them: chosen (spans,)."""
        return replace(self, where=self.where[chosen])

    def documents(self) -> NDArray[Any]:
        """The documents, span after span: (documents,) DOCUMENT."""
        counts = self.where["documents"]
        found = np.empty(int(counts.sum()), DOCUMENT)
        self._fill(found, counts, _HEADER * self.num_cells + DOCUMENT.itemsize * self.where["first_document"])
        return found

    def ids(self, dtype: np.dtype[Any], first: NDArray[np.int64], counts: NDArray[np.int64]) -> TokenIds:
        """Of each span the ids `first[i]` … `first[i] + counts[i] - 1`, span after span: (tokens,) `dtype`."""
        found: TokenIds = np.empty(int(counts.sum()), dtype)
        behind = _HEADER * self.num_cells + DOCUMENT.itemsize * self.where["all_documents"]
        self._fill(found, counts, behind + dtype.itemsize * (self.where["first_token"] + first))
        return found

    def _fill(self, array: NDArray[Any], counts: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Read counts[i] items from byte places[i] of the part of span i, one behind the other."""
        memory, begin = memoryview(array.view(np.uint8)), 0  # type: ignore[arg-type]
        parts, sizes = self.where[["task", "number"]].tolist(), (counts * array.itemsize).tolist()
        for (task, number), size, place in zip(parts, sizes, places.tolist(), strict=True):
            _read(part_path(self.folder, task, number), place, memory[begin : begin + size])
            begin += size


def _read(path: str, place: int, out: memoryview) -> None:
    """Fill `out` from byte `place` of a file on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        filled = 0
        while filled < len(out):
            if not (count := os.preadv(descriptor, [out[filled:]], place + filled)):
                raise SetError(f"{path}: ends before byte {place + len(out)}; the same command writes it again")
            filled += count
    finally:
        os.close(descriptor)


def part_path(folder: Path, task: int, number: int) -> str:
    """Where a part lies: named so that sorted names are input order."""
    return f"{folder}/{task:08d}-{number:05d}.part"


@dataclass(frozen=True)
class Part:
    """A file of a task: the first one has number 0."""

    folder: Path
    task: int
    number: int
    num_cells: int

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(part_path(self.folder, self.task, self.number))

    def write(self, ids: TokenIds, documents: NDArray[Any], cells: NDArray[np.int64]) -> str:
        """Write documents that stand in the order of their cells; returns the part's checksum.

        ids: (tokens,); documents: (documents,) DOCUMENT; cells: (documents,), the cell of each.
        """
        lengths = documents["length"]
        counts = np.stack(
            [np.bincount(cells, minlength=self.num_cells), _sum_by(cells, lengths, self.num_cells)], axis=1
        )
        digest = xxhash.xxh3_64()
        temporary = files.temporary_of(self.path)
        with files.naming(self.path), open(temporary, "wb") as file:
            for piece in (counts, documents, ids):
                content = np.ascontiguousarray(piece).view(np.uint8).data
                digest.update(content)
                file.write(content)
        os.replace(temporary, self.path)
        return digest.hexdigest()

    def ends(self) -> NDArray[np.int64]:
        """Documents and tokens in each cell and those before it: (cells, 2) int64."""
        counts = np.fromfile(self.path, np.int64, count=2 * self.num_cells).reshape(self.num_cells, 2)
        return np.cumsum(counts, axis=0)


def _sum_by(cells: NDArray[np.int64], lengths: NDArray[np.int64], num_cells: int) -> NDArray[np.int64]:
    """Sum of `lengths` for each cell; `cells` ascends."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return np.diff(ends[np.searchsorted(cells, np.arange(num_cells + 1))])


def write_record(folder: Path, record: TaskRecord) -> None:
    """Mark a task as done."""
    files.put(folder / f"{record.index:08d}.json", json.dumps(asdict(record)).encode(), durable=False)


def read_record(folder: Path, index: int, num_cells: int) -> TaskRecord | None:
    """A finished task's record, or None when the task is to be done (again)."""
    try:
        values: dict[str, Any] = json.loads((folder / f"{index:08d}.json").read_bytes())
        record = TaskRecord(**values)
        whole = all(
            files.file_checksum(part.path)[1] == seen
            for part, seen in zip(parts_of(folder, record, num_cells), record.parts, strict=True)
        )
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return record if whole else None


def parts_of(folder: Path, record: TaskRecord, num_cells: int) -> Iterator[Part]:
    """The parts of a finished task, in input order."""
    return (Part(folder, record.index, number, num_cells) for number in range(len(record.parts)))
