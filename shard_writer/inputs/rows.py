"""Rows of `datasets` data sets, and of any iterable of mappings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokentar.shard_writer.errors import InputError, TokentarError
from tokentar.shard_writer.inputs import columns, documents, libraries
from tokentar.shard_writer.inputs.documents import Bad, Batch, Place, SingleSource, row_of


@dataclass(frozen=True)
class DatasetRows(SingleSource):
    """Shard `index` of `count` of a `datasets` data set, or, of one with random access, its rows `index` … `count - 1`."""

    dataset: Any
    index: int
    count: int
    size: int

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        random_access = hasattr(self.dataset, "select")
        if random_access:
            rows, first = self.dataset.select(range(self.index, self.count)), self.index
        else:
            rows, first = self.dataset.shard(num_shards=self.count, index=self.index), 0
        part = f"rows from {self.index}" if random_access else f"shard {self.index}"
        where = f"{self.path}, {part}"
        top = columns.top_column(column, rows.column_names or (column,))
        if top in (rows.column_names or ()):
            rows = rows.select_columns([top])
        try:
            with libraries.silent():
                for batch in rows.iter(batch_size=1000):
                    place = partial(row_of, where, first)
                    values = _values(batch, column, place)
                    yield documents.clean(values, bad, place)
                    first += len(values)
        except TokentarError:
            raise
        except Exception as error:  # `datasets` and what it reads with raise many types
            raise InputError(
                f"{row_of(where, first, 0)} or behind: cannot be read: {libraries.one_line(error)}"
            ) from error


def _values(batch: Mapping[str, Any], column: str, place: Place) -> Sequence[Any]:
    """The values of a column in a batch of columns. Raises InputError when it is not there."""
    top = columns.top_column(column, list(batch))
    if top not in batch:
        raise columns.missing_column(column, list(batch), place(0))
    if top == column:
        values: Sequence[Any] = batch[column]
        return values
    found = []
    for index, value in enumerate(batch[top]):
        try:
            found.append(columns.value_at({top: value}, column))
        except (KeyError, TypeError):
            raise columns.missing_value({top: value}, column, place(index)) from None
    return found


@dataclass(frozen=True)
class Values(SingleSource):
    """Texts already in memory: a chunk of an iterable that the main process walks."""

    values: list[Any]
    first: int
    size: int

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        yield documents.clean(self.values, bad, partial(row_of, "data set", self.first))
