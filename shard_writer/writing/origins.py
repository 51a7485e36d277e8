"""Where each token comes from, while a set is written: the numbers in the spool, and what they count from (G12)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokentar.shard_writer.packing.policies import Tiles
from tokentar.shard_writer.packing.ragged import numbers
from tokentar.shard_writer.writing.spool import TaskRecord

_TASKS_FILE, _SOURCES_FILE = "origins.npy", "sources.arrow"
_TASK = np.dtype([("document", "<i8"), ("source", "<i8"), ("place", "<i8"), ("by_file", "?")])


@dataclass(frozen=True)
class Origins:
    """What the numbers in the spool count from: of each task its first document, source and place."""

    tasks: NDArray[Any]  # (tasks,) _TASK
    sources: pa.Array  # names

    @classmethod
    def of(cls, records: Sequence[TaskRecord], first_document: int) -> "Origins":
        """Of all tasks, in input order."""
        tasks = np.zeros(max((record.index for record in records), default=-1) + 1, _TASK)
        names: list[str] = []
        place = 0
        for record in records:
            by_file = len(record.sources) > 1
            if by_file or names[-1:] != record.sources:
                names += record.sources
                place = record.first_place
            source = len(names) - len(record.sources)
            tasks[record.index] = (first_document, source, place, by_file)
            first_document += record.documents
            place += record.rows
        return cls(tasks, _texts(names))

    def save(self, folder: Path) -> None:
        """Leave them for `load`."""
        np.save(folder / _TASKS_FILE, self.tasks)
        names = pa.table({"source": self.sources})
        with pa.OSFile(str(folder / _SOURCES_FILE), "wb") as file, pa.ipc.new_file(file, names.schema) as sink:
            sink.write_table(names)

    @classmethod
    def load(cls, folder: Path) -> "Origins":
        """What `save` left, mapped into memory."""
        names = pa.ipc.open_file(pa.memory_map(str(folder / _SOURCES_FILE))).read_all()
        return cls(np.load(folder / _TASKS_FILE, mmap_mode="r"), names["source"].combine_chunks())

    def table(self, tiles: Tiles, tasks: NDArray[np.int64], documents: NDArray[Any]) -> pa.Table:
        """The provenance of a shard. tasks, documents: (documents,) int64 and DOCUMENT, what `tiles.document` points at."""
        first, documents = self.tasks[tasks][tiles.document], documents[tiles.document]
        by_file = first["by_file"]
        return pa.table(
            {
                "row": numbers(tiles.row),
                "start": numbers(tiles.start),
                "length": numbers(tiles.length),
                "document": numbers(first["document"] + documents["number"]),
                "source": self._names(first["source"] + np.where(by_file, documents["row"], 0)),
                "place": numbers(first["place"] + np.where(by_file, 0, documents["row"])),
            }
        )

    def _names(self, sources: NDArray[np.int64]) -> pa.Array:
        used, codes = np.unique(sources, return_inverse=True)
        return pa.DictionaryArray.from_arrays(numbers(codes).cast(pa.int32()), self.sources.take(numbers(used)))


def _texts(values: Sequence[str]) -> pa.StringArray:
    """Texts as a column, see `numbers`. Raises pyarrow.ArrowInvalid for more than 2 GiB of them."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    whole = pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
    return whole.cast(pa.string())
