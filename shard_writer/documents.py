"""From a task to its documents: readers for each kind of input, in batches of bounded size.

A reader is a small frozen value that travels to a worker; `read` yields batches of texts, each about BATCH_BYTES. What
cannot be a document goes to `Bad`, which either stops the run with file and line or counts it by reason. Null and empty
texts are always counted and passed over.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, ClassVar, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from shard_writer.errors import InputError

BATCH_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
Place = Callable[[int], str]  # names the place of a batch's row, worked out only when it is needed
_SHOWN = 3  # skipped rows of each reason that are named in the log, per task
_log = logging.getLogger("shard_writer")


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
class JsonLines:
    """The lines of a JSONL file that start in bytes `start` … `stop - 1`."""

    first_place: ClassVar[int] = 1
    path: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Bytes of input."""
        return self.stop - self.start

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return (self.path,)

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        with open(self.path, "rb") as file:
            for offset, block in line_blocks(file, self.start, self.stop):
                yield parse_lines(block, column, bad, partial(_line_behind, self.path, offset))


@dataclass(frozen=True)
class CompressedJsonLines:
    """A whole compressed JSONL file, of one or several frames or members."""

    first_place: ClassVar[int] = 1
    path: str

    @property
    def size(self) -> int:
        """Bytes of input."""
        return os.path.getsize(self.path)

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return (self.path,)

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        line, rest = 0, b""
        for block in decompressed(self.path):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield parse_lines(whole + newline, column, bad, partial(_line, self.path, line))
                line += whole.count(b"\n") + 1
        yield parse_lines(rest, column, bad, partial(_line, self.path, line))


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
        """See Reader."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            for group in range(self.start, self.stop):
                meta = file.metadata.row_group(group)
                rows = max(1, meta.num_rows * BATCH_BYTES // max(meta.total_byte_size, BATCH_BYTES))
                first = 0
                for batch in file.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False):
                    place = f"{self.path}, row group {group}, row "
                    values, valid = _arrow_texts(batch.column(0))
                    yield clean(values, bad, partial(_row, place, first), valid=valid)
                    first += batch.num_rows


@dataclass(frozen=True)
class TextFiles:
    """Text or source files, one document each, kept byte for byte but for a leading BOM; compressed ones are unpacked."""

    first_place: ClassVar[int] = 0
    paths: tuple[str, ...]
    size: int

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return self.paths

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        files: list[list[str]] = []  # of each file its document, if it is one
        held = 0
        for path in self.paths:
            content = b"".join(decompressed(path)) if compression(path) else read_bytes(path)
            files.append(_decode(content.removeprefix(_BOM), bad, path))
            held += len(content)
            if held >= BATCH_BYTES:
                yield _joined(files)
                files, held = [], 0
        yield _joined(files)


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
        place = f"data set, rows from {self.index}, row " if random_access else f"data set shard {self.index}, row "
        if column in (rows.column_names or ()):
            rows = rows.select_columns([column])
        try:
            for batch in rows.iter(batch_size=1000):
                if column not in batch:
                    raise missing_column(column, list(batch), "the data set")
                yield clean(batch[column], bad, partial(_row, place, first))
                first += len(batch[column])
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{place}{first} or behind: cannot be read: {error}") from error


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
        yield clean(self.values, bad, partial(_row, "data set, row ", self.first))


def missing_column(column: str, present: Sequence[str], where: str) -> InputError:
    """The error for an input without the column that was asked for."""
    return InputError(
        f"{where}: no column {column!r}; there are {sorted(present)}; name the right one with --text_column"
    )


def clean(values: Sequence[Any], bad: Bad, place: Place, *, valid: bool = False) -> Batch:
    """The documents among `values`: texts that are not empty and can be encoded (`valid`: known to be so)."""
    if all(type(value) is str and value and (valid or value.isascii()) for value in values):
        return Batch(list(values), np.arange(len(values)), len(values))
    return _joined([_text(value, bad, place, index, valid) for index, value in enumerate(values)])


def _joined(rows: list[list[str]]) -> Batch:
    """Rows of one document or none each, as a batch."""
    found = np.flatnonzero([len(row) for row in rows])
    return Batch([text for row in rows for text in row], found, len(rows))


def _text(value: Any, bad: Bad, place: Place, index: int, valid: bool) -> list[str]:
    """The document that row `index` holds, or none."""
    if value is None:
        bad.skipped["without text"] += 1
    elif not isinstance(value, str):
        bad.report("not text", place, index, f"text wanted, found {type(value).__name__} {value!r:.60}")
    elif not value:
        bad.skipped["empty"] += 1
    elif not (valid or encodable(value)):
        bad.report("lone surrogate", place, index, "half of a surrogate pair, which is no Unicode text")
    else:
        return [value]
    return []


def encodable(text: str) -> bool:
    """Whether `text` has a UTF-8 form, that is, no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def line_blocks(file: IO[bytes], start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """(offset, block) of whole lines, for the lines that start in bytes `start` … `stop - 1`, about BATCH_BYTES each."""
    if start:
        file.seek(start - 1)
        file.readline()  # the line under way at `start` belongs to the range before
    offset = file.tell()
    while offset < stop:
        block = file.read(min(BATCH_BYTES, stop - offset))
        if not block:
            return
        if not block.endswith(b"\n"):
            block += file.readline()
        yield offset, block
        offset += len(block)


def parse_lines(block: bytes, column: str, bad: Bad, place: Place) -> Batch:
    """The documents of a block of JSON lines."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        values = [orjson.loads(line)[column] for line in lines]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return _joined([_parse_line(line, column, bad, place, index) for index, line in enumerate(lines)])
    return clean(values, bad, place, valid=True)


def _parse_line(line: bytes, column: str, bad: Bad, place: Place, index: int) -> list[str]:
    """The document of one line, or none: what `orjson` refuses goes to the more lenient `json` (NaN, escaped surrogates)."""
    line = line.removeprefix(_BOM) if index == 0 else line
    if not line.strip():
        return []
    try:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        bad.report("invalid UTF-8", place, index, f"invalid UTF-8 at byte {error.start} of the line")
        return []
    except (ValueError, RecursionError) as error:
        bad.report("invalid JSON", place, index, f"not JSON ({error}): {line[:60]!r}")
        return []
    if not isinstance(record, dict):
        bad.report("not an object", place, index, f"a JSON object wanted, found {line[:60]!r}")
        return []
    if column not in record:
        if bad.policy == "error":
            raise missing_column(column, list(record), place(index))
        bad.skipped[f"no column {column}"] += 1
        return []
    return _text(record[column], bad, place, index, valid=False)


def _line(path: str, before: int, index: int) -> str:
    """Line `index` of a block that `before` lines go before."""
    return f"{path}:{before + index + 1}"


def _line_behind(path: str, offset: int, index: int) -> str:
    """Line `index` of a block that starts at byte `offset`."""
    return _line(path, lines_before(path, offset), index)


def _row(place: str, first: int, index: int) -> str:
    return f"{place}{first + index}"


def lines_before(path: str, offset: int) -> int:
    """How many lines of a file end before byte `offset`."""
    count = 0
    with open(path, "rb") as file:
        while offset > 0 and (block := file.read(min(offset, BATCH_BYTES))):
            count += block.count(b"\n")
            offset -= len(block)
    return count


def compression(path: str) -> str | None:
    """The compression that a file's suffix names, in pyarrow's terms, or None."""
    return COMPRESSION.get(os.path.splitext(path)[1].lower())


def decompressed(path: str) -> Iterator[bytes]:
    """The content of a compressed file in blocks, through all its frames. Raises InputError when it is cut or damaged."""
    import pyarrow as pa

    if os.path.getsize(path) == 0:
        return
    try:
        with pa.input_stream(path, compression=compression(path)) as stream:
            while block := stream.read(BATCH_BYTES):
                yield block
    except OSError as error:
        way_out = (
            "compress it with a smaller window"
            if "memory" in str(error)
            else "the file is cut or damaged; fetch it again"
        )
        raise InputError(f"{path}: {error}; {way_out}") from None


def read_bytes(path: str) -> bytes:
    """A file's content. Raises InputError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _decode(content: bytes, bad: Bad, path: str) -> list[str]:
    """The one document of a text file, or none."""
    try:
        return _text(content.decode(), bad, lambda _: path, 0, valid=True)
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 8]
        line = content.count(b"\n", 0, error.start)
        bad.report("invalid UTF-8", partial(_line, path, line), 0, f"invalid UTF-8 at byte {error.start}: {found!r}")
        return []


def _arrow_texts(column: Any) -> tuple[list[Any], bool]:
    """Values of an Arrow text column, and whether all are UTF-8; where not, lone surrogates stand for the bytes that are none."""
    import pyarrow as pa

    try:
        return column.to_pylist(), True
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [value if value is None else value.decode(errors="surrogateescape") for value in raw], False
