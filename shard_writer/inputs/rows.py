"""Rows of `datasets` data sets, and of any iterable of mappings."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tokentar.shard_writer.errors import InputError, TokentarError
from tokentar.shard_writer.inputs import documents
from tokentar.shard_writer.inputs.documents import Bad, Batch


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
