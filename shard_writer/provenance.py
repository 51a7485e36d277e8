"""Where each token comes from (G12): NAME-000000.docs.parquet beside each shard, one row for each piece of a document.

row       number of the row in the shard
start     place of the piece's first token in the row
length    tokens of the piece, EOS counted; the pieces of a row lie end to end and fill it but for padding
document  number of the document in the input, over all inputs and, in a set that was appended to, over all writings
source    name of the file or data set
place     line of a JSONL file, counted from 1; row of a Parquet file, table or data set, counted from 0; 0 for a text file
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shard_writer.flat import numbers
from shard_writer.packing import Tiles
from shard_writer.spool import TaskRecord

SUFFIX = ".docs.parquet"
_COUNTS = ("row", "start", "length", "document", "place")
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


def to_parquet(table: pa.Table) -> bytes:
    """A table of provenance as a Parquet file."""
    sink = pa.BufferOutputStream()
    encodings = dict.fromkeys(_COUNTS, "DELTA_BINARY_PACKED")
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=["source"], column_encoding=encodings, write_statistics=False
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def path_of(folder: Path, shard: str) -> Path:
    """Where the provenance of a shard lies."""
    return folder / f"{shard}{SUFFIX}"


def rows_between(table: pa.Table, start: int, stop: int, first: int) -> pa.Table:
    """What a table says of rows `start` … `stop - 1` of its shard, which become rows `first`, `first` + 1 and so on."""
    begin, end = np.searchsorted(table["row"].to_numpy(), [start, stop]).tolist()
    part = table.slice(begin, end - begin)
    return part.set_column(0, "row", numbers(part["row"].to_numpy() - start + first))


def join(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after the other; each name of a source is kept once, in the order of its first piece."""
    whole = pa.concat_tables(tables)
    names = pa.concat_arrays(whole["source"].cast(pa.string()).chunks).dictionary_encode()
    return whole.set_column(whole.schema.get_field_index("source"), "source", names)
