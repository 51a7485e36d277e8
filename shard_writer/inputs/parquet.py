"""Parquet by row groups."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tokentar.shard_writer.inputs import columns, compression, documents
from tokentar.shard_writer.inputs.documents import Bad, Batch, Place, SingleSource


@dataclass(frozen=True)
class ParquetGroups(SingleSource):
    """Row groups `start` … `stop - 1` of a Parquet file; `size` is their uncompressed bytes."""

    start: int
    stop: int
    size: int

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader. A damaged row group ends where the damage lies; the next one is read."""
        import pyarrow.parquet as pq

        with compression.opened(self.path) as raw, pq.ParquetFile(raw) as file:
            for group in range(self.start, self.stop):
                first, where = 0, f"{self.path}, row group {group}"
                try:
                    for batch in _batches(file, group, column):
                        yield _arrow_texts(batch, bad, partial(documents.row_of, where, first))
                        first += len(batch)
                except (OSError, ValueError) as error:
                    bad.report("damaged row group", partial(documents.row_of, where, first), 0, str(error))
                    yield Batch([], np.empty(0, np.int64), file.metadata.row_group(group).num_rows - first)


def _batches(file: Any, group: int, column: str) -> Iterator[Any]:
    """The column's values in Arrow arrays of about BATCH_BYTES."""
    import pyarrow.compute as pc

    meta = file.metadata.row_group(group)
    rows = max(1, meta.num_rows * documents.BATCH_BYTES // max(meta.total_byte_size, documents.BATCH_BYTES))
    top, *fields = _path(file.schema_arrow, column, "")
    for batch in file.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False):
        values = batch.column(top)  # a struct `a` with a field `b` comes along with a column named `a.b`
        yield pc.struct_field(values, fields) if fields else values


def type_of(schema: Any, column: str, where: str) -> Any:
    """The Arrow type of a column. Raises InputError when it is not there once and only once."""
    top, *fields = _path(schema, column, where)
    kind = schema.field(top).type
    for name in fields:
        kind = kind.field(name).type
    return kind


def _path(schema: Any, column: str, where: str) -> list[str]:
    """The names that lead to a column through structs. Raises InputError as `type_of` does."""
    path: list[str] = []
    names, rest, kind = schema.names, column, None
    while rest not in names and "." in rest and rest.partition(".")[0] in names:
        head, _, rest = rest.partition(".")
        columns.one_column(head, names, where)
        kind = kind.field(head).type if kind is not None else schema.field(head).type
        path.append(head)
        names = [kind.field(index).name for index in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    if path and rest not in names:
        raise columns.missing_column(column, names, where, ".".join(path))
    columns.one_column(rest, names, where)
    return [*path, rest]


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
