"""What a document is: the batches that readers yield, and what happens to a row that is none.

A reader is a small frozen value that travels to a worker; `read` yields batches of texts, each about BATCH_BYTES. What
cannot be a document goes to `Bad`, which either stops the run with file and line or counts it by reason. Null and empty
texts are always counted and passed over. Readers: the other modules of this folder.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.errors import InputError

BATCH_BYTES = 2 << 20  # few enough for the caches of a core
Place = Callable[[int], str]  # names the place of a batch's row, worked out only when it is needed
_SHOWN = 3  # skipped rows of each reason that are named in the log, per task
_log = logging.getLogger(__name__)


@dataclass
class Bad:
    """What happens to a row that is no document: stop (`error`) or count it and go on (`skip`)."""

    policy: str
    skipped: Counter[str] = field(default_factory=Counter)

    def report(self, reason: str, place: Place, index: int, detail: str) -> None:
        """Row `index` should have been a document and is none. Raises InputError under the policy `error`."""
        if self.policy == "error":
            raise InputError(f"{place(index)}: {detail}; mend it, or leave such rows out with --bad_documents skip")
        self.skipped[reason] += 1
        if self.skipped[reason] <= _SHOWN:
            _log.warning("skipped: %s: %s", place(index), detail)


@dataclass(frozen=True)
class Batch:
    """Documents that stand together in the input, in order, and where each comes from."""

    texts: list[str]
    rows: NDArray[np.int64]  # (documents,): rows (lines, files) of the batch before its own, left-out ones counted
    size: int  # rows of the batch

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


class Reader(Protocol):
    """A part of the input that one worker reads from start to end."""

    first_place: ClassVar[int]  # number of a source's first row: lines count from 1, rows from 0

    @property
    def size(self) -> int:
        """Bytes of input, for the progress bar."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the documents come from: the name of the one file or data set, or, with a document a file, of each file."""

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """The documents in order, in batches that cover all rows of the part."""


@dataclass(frozen=True)
class SingleSource:
    """What readers of one file or data set have in common."""

    first_place: ClassVar[int] = 0
    path: str  # of the file, or the name of the data set

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return (self.path,)


def line_of(path: str, line: int, index: int) -> str:
    """A Place in a file whose line is known; line 0: the file as a whole."""
    return f"{path}:{line}" if line else path


def row_of(where: str, first: int, index: int) -> str:
    """A Place in a table; first: the number of the batch's first row."""
    return f"{where}, row {first + index}"


def clean(values: Sequence[Any], bad: Bad, place: Place, *, valid: bool = False) -> Batch:
    """The documents among `values`: texts that are not empty and can be encoded (`valid`: known to be so)."""
    if all(type(value) is str and value and (valid or value.isascii()) for value in values):
        return Batch(list(values), np.arange(len(values)), len(values))
    return joined([text_of(value, bad, place, index, valid=valid) for index, value in enumerate(values)])


def batches(rows: Iterable[list[str]]) -> Iterator[Batch]:
    """Rows of one document or none each, in batches of about BATCH_BYTES."""
    held: list[list[str]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += sum(map(len, row))
        if size >= BATCH_BYTES:
            yield joined(held)
            held, size = [], 0
    yield joined(held)


def joined(rows: list[list[str]]) -> Batch:
    """Rows of one document or none each, as a batch."""
    found = np.flatnonzero([len(row) for row in rows])
    return Batch([text for row in rows for text in row], found, len(rows))


def text_of(value: Any, bad: Bad, place: Place, index: int, *, valid: bool = False) -> list[str]:
    """The document that row `index` holds, or none."""
    if value is None:
        bad.skipped["without text"] += 1
    elif not isinstance(value, str):
        bad.report("not text", place, index, f"text wanted, found {type(value).__name__} {value!r:.60}")
    elif not value:
        bad.skipped["empty"] += 1
    elif not (valid or _encodable(value)):
        bad.report("lone surrogate", place, index, "half of a surrogate pair, which is no Unicode text")
    else:
        return [value]
    return []


def text_of_bytes(value: bytes, bad: Bad, place: Place, index: int) -> list[str]:
    """The document that the bytes of row `index` hold, or none."""
    try:
        return text_of(value.decode(), bad, place, index, valid=True)
    except UnicodeDecodeError as error:
        found = value[error.start : error.start + 8]
        bad.report("invalid UTF-8", place, index, f"invalid UTF-8 at byte {error.start}: {found!r}")
        return []


def _encodable(text: str) -> bool:
    """Whether `text` has a UTF-8 form, that is, no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
