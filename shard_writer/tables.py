"""Tables: Parquet by row groups, CSV and TSV, data sets of `datasets`, and rows that are in memory already."""

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from shard_writer import contents, documents
from shard_writer.documents import Bad, Batch, Place
from shard_writer.errors import InputError, TokentarError


@dataclass(frozen=True)
class ParquetGroups:
    """Row groups `start` … `stop - 1` of a Parquet file; `size` is their uncompressed bytes."""

    first_place: ClassVar[int] = 0
    path: str
    start: int
    stop: int
    size: int

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return (self.path,)

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader. A damaged row group ends where the damage lies; the next one is read."""
        import pyarrow.parquet as pq

        with contents.opened(self.path) as raw, pq.ParquetFile(raw) as file:
            for group in range(self.start, self.stop):
                first = 0
                try:
                    for batch in _batches(file, group, column):
                        yield _arrow_texts(batch, bad, partial(_row, f"{self.path}, row group {group}, row ", first))
                        first += len(batch)
                except (OSError, ValueError) as error:
                    bad.report(
                        "damaged row group",
                        partial(_row, f"{self.path}, row group {group}, row ", first),
                        0,
                        str(error),
                    )
                    yield Batch([], np.empty(0, np.int64), file.metadata.row_group(group).num_rows - first)


def _batches(file: Any, group: int, column: str) -> Iterator[Any]:
    """The column's values in Arrow arrays of about BATCH_BYTES."""
    meta = file.metadata.row_group(group)
    rows = max(1, meta.num_rows * documents.BATCH_BYTES // max(meta.total_byte_size, documents.BATCH_BYTES))
    for batch in file.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False):
        yield batch.column(column)  # a struct `a` with a field `b` comes along with a column named `a.b`


def is_text(kind: Any) -> bool:
    """Whether an Arrow type holds text, as strings or their UTF-8 bytes, or nothing but nulls."""
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(test(kind) for test in (*tests, types.is_binary, types.is_large_binary, types.is_binary_view))


def _arrow_texts(column: Any, bad: Bad, place: Place) -> Batch:
    """The documents of an Arrow text column."""
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast("large_binary").to_pylist()
    if not any(isinstance(value, bytes) for value in values):
        return documents.clean(values, bad, place, valid=True)
    of_none = partial(documents.text_of, None, bad, place)
    return documents.joined(
        [
            of_none(i) if value is None else documents.text_of_bytes(value, bad, place, i)
            for i, value in enumerate(values)
        ]
    )


@dataclass(frozen=True)
class CsvRows:
    """A whole CSV or TSV file with a header line; every cell is the text that stands there, numbers and `NA` too."""

    first_place: ClassVar[int] = 0
    path: str
    delimiter: str
    size: int

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return (self.path,)

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        csv.field_size_limit(sys.maxsize)  # of this process: a document may be as long as its file
        rows: list[list[str]] = []
        held = 0
        for row in self._rows(column, bad):
            rows.append(row)
            held += sum(map(len, row))
            if held >= documents.BATCH_BYTES:
                yield documents.joined(rows)
                rows, held = [], 0
        yield documents.joined(rows)

    def _rows(self, column: str, bad: Bad) -> Iterator[list[str]]:
        """The document of each record below the header, or none; what lies behind a damage of the file is left out."""
        try:
            with contents.unpacked(self.path) as raw:
                text = io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline="")
                records = _records(csv.reader(text, delimiter=self.delimiter, strict=True))
                header = next(records, None)
                if header is None:
                    return
                at = documents.one_column(column, header[1], self.path)
                for line, cells in records:
                    yield _cell(cells, at, len(header[1]), bad, partial(_line, self.path, line))
        except OSError as error:
            bad.report("unreadable file", partial(_line, self.path, 0), 0, contents.damage(error))


def _records(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The line that each record starts in, and its cells: none where it is broken. Blank lines are passed over."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield line, []
        else:
            if cells:
                yield line, cells


def _cell(cells: list[str], at: int, width: int, bad: Bad, place: Place) -> list[str]:
    """The document in cell `at` of a record that should have `width` cells, or none."""
    if len(cells) != width:
        found = f"{len(cells)} cells" if cells else "a quote that is not closed or stands inside a cell"
        bad.report("invalid CSV", place, 0, f"{width} cells wanted as in the header, found {found}")
        return []
    if cells[at].isascii():
        return documents.text_of(cells[at], bad, place, 0, valid=True)
    return documents.text_of_bytes(cells[at].encode(errors="surrogateescape"), bad, place, 0)


def _line(path: str, line: int, index: int) -> str:
    return f"{path}:{line}" if line else path


@dataclass(frozen=True)
class DatasetRows:
    """Shard `index` of `count` of a `datasets` data set, or, of one with random access, its rows `index` … `count - 1`."""

    first_place: ClassVar[int] = 0
    name: str
    dataset: Any
    index: int
    count: int
    size: int

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return (self.name,)

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        random_access = hasattr(self.dataset, "select")
        if random_access:
            rows, first = self.dataset.select(range(self.index, self.count)), self.index
        else:
            rows, first = self.dataset.shard(num_shards=self.count, index=self.index), 0
        part = f"rows from {self.index}" if random_access else f"shard {self.index}"
        place = f"{self.name}, {part}, row "
        if column in (rows.column_names or ()):
            rows = rows.select_columns([column])
        try:
            for batch in rows.iter(batch_size=1000):
                if column not in batch:
                    raise documents.missing_column(column, list(batch), self.name)
                yield documents.clean(batch[column], bad, partial(_row, place, first))
                first += len(batch[column])
        except TokentarError:
            raise
        except Exception as error:  # `datasets` and what it reads with raise many types
            raise InputError(f"{place}{first} or behind: cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Values:
    """Texts already in memory: a chunk of an iterable that the main process walks."""

    first_place: ClassVar[int] = 0
    name: str
    values: list[Any]
    first: int
    size: int

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return (self.name,)

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        yield documents.clean(self.values, bad, partial(_row, "data set, row ", self.first))


def _row(place: str, first: int, index: int) -> str:
    return f"{place}{first + index}"
