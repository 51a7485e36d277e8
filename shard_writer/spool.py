"""The spool: tokenized parts between map and reduce, in a hidden folder of the output.

A part is one file, what one batch of documents became: counts per cell, then the documents, then their ids, both
grouped by cell. A task leaves one or more parts and, last, a record with their checksums; a task whose record is there
and true is not done again (G3).
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shard_writer import storage
from shard_writer.errors import SetError
from shard_writer.shards import TokenIds

FOLDER = ".spool"
# of each document: what it is ordered by, its tokens, and how many documents and rows of the task come before it
DOCUMENT = np.dtype([("key", "<u8"), ("length", "<i8"), ("number", "<i8"), ("row", "<i8")])


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
class Run:
    """Documents of one cell in one part: `documents` of them from `first_document` on, `tokens` ids from `first_token` on."""

    path: str
    task: int
    header: int  # bytes before the documents
    all_documents: int  # of the part
    first_document: int
    documents: int
    first_token: int
    tokens: int

    def read(self, out: TokenIds) -> NDArray[Any]:
        """Fill `out`, shape (tokens,), with the ids; returns the documents, (documents,) DOCUMENT, in the same order."""
        documents = np.empty(self.documents, DOCUMENT)
        with open(self.path, "rb") as file:
            self._fill(file, self.header + DOCUMENT.itemsize * self.first_document, documents)
            behind = self.header + DOCUMENT.itemsize * self.all_documents
            self._fill(file, behind + out.itemsize * self.first_token, out)
        return documents

    def read_documents(self) -> NDArray[Any]:
        """What `read` returns, without the ids."""
        documents = np.empty(self.documents, DOCUMENT)
        with open(self.path, "rb") as file:
            self._fill(file, self.header + DOCUMENT.itemsize * self.first_document, documents)
        return documents

    def _fill(self, file: IO[bytes], place: int, array: NDArray[Any]) -> None:
        file.seek(place)
        if file.readinto(array.view(np.uint8).data) < array.nbytes:  # type: ignore[attr-defined]
            raise SetError(f"{self.path}: ends before byte {place + array.nbytes}; the same command writes it again")


@dataclass(frozen=True)
class Part:
    """A part's file, named by task and batch so that sorted names are input order."""

    folder: Path
    task: int
    batch: int
    num_cells: int

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder / f"{self.task:08d}-{self.batch:05d}.part"

    def write(self, ids: TokenIds, documents: NDArray[Any], cells: NDArray[np.int64]) -> str:
        """Write documents that stand in the order of their cells; returns the part's checksum.

        ids: (tokens,); documents: (documents,) DOCUMENT; cells: (documents,), the cell of each.
        """
        lengths = documents["length"]
        counts = np.stack(
            [np.bincount(cells, minlength=self.num_cells), _sum_by(cells, lengths, self.num_cells)], axis=1
        )
        digest = xxhash.xxh3_64()
        temporary = storage.temporary_of(self.path)
        with storage.naming(self.path), open(temporary, "wb") as file:
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

    def run(self, cell: int, ends: NDArray[np.integer[Any]]) -> Run:
        """Where a cell's documents lie; `ends` is what ends() gives."""
        first_document, first_token = ends[cell - 1].tolist() if cell else (0, 0)
        last_document, last_token = ends[cell].tolist()
        return Run(
            path=str(self.path),
            task=self.task,
            header=16 * self.num_cells,
            all_documents=int(ends[-1, 0]),
            first_document=first_document,
            documents=last_document - first_document,
            first_token=first_token,
            tokens=last_token - first_token,
        )


def _sum_by(cells: NDArray[np.int64], lengths: NDArray[np.int64], num_cells: int) -> NDArray[np.int64]:
    """Sum of `lengths` for each cell; `cells` ascends."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return np.diff(ends[np.searchsorted(cells, np.arange(num_cells + 1))])


def write_record(folder: Path, record: TaskRecord) -> None:
    """Mark a task as done."""
    storage.put(folder / f"{record.index:08d}.json", json.dumps(asdict(record)).encode(), durable=False)


def read_record(folder: Path, index: int, num_cells: int) -> TaskRecord | None:
    """A finished task's record, or None when the task is to be done (again)."""
    try:
        values: dict[str, Any] = json.loads((folder / f"{index:08d}.json").read_bytes())
        record = TaskRecord(**values)
        whole = all(
            storage.file_checksum(part.path)[1] == seen
            for part, seen in zip(parts_of(folder, record, num_cells), record.parts, strict=True)
        )
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return record if whole else None


def parts_of(folder: Path, record: TaskRecord, num_cells: int) -> Iterator[Part]:
    """The parts of a finished task, in input order."""
    return (Part(folder, record.index, batch, num_cells) for batch in range(len(record.parts)))
