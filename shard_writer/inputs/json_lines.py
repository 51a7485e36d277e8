"""JSON lines: a document a line, in byte ranges of a plain file or from a whole compressed one.

`orjson` reads what is strict JSON; a line that it refuses goes to Python's `json`, which knows NaN, numbers of any
length and escaped surrogates. A BOM at the start of a line is no part of it (files put together keep theirs).
"""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, ClassVar

import orjson

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs import columns, compression, documents
from tokentar.shard_writer.inputs.documents import Bad, Batch, Place, SingleSource


@dataclass(frozen=True)
class JsonLines(SingleSource):
    """The lines of a JSONL file that start in bytes `start` … `stop - 1`."""

    first_place: ClassVar[int] = 1
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Bytes of input."""
        return self.stop - self.start

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        with compression.opened(self.path) as file:
            for offset, block in line_blocks(file, self.start, self.stop):
                yield parse_lines(block, column, bad, partial(_line_behind, self.path, offset))


@dataclass(frozen=True)
class CompressedJsonLines(SingleSource):
    """A whole compressed JSONL file, of one or several frames or members."""

    first_place: ClassVar[int] = 1

    @property
    def size(self) -> int:
        """Bytes of input."""
        return os.path.getsize(self.path)

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        line = 0
        for block in compression.unpacked_lines(self.path, bad):
            yield parse_lines(block, column, bad, partial(_line, self.path, line))
            line += block.count(b"\n")


def refuse_other_kinds(path: str) -> None:
    """Raises InputError, whatever the policy, for a file that is no JSON lines at all: skipping its lines would lose it whole."""
    start = compression.head(path, "JSON lines")
    if start.removeprefix(compression.BOM).lstrip().partition(b"\n")[0].strip() == b"{":
        raise InputError(
            f"{path}: one JSON object a line wanted, this one goes over several; put each on a line with `jq -c .`"
        )
    if _is_array(start):
        raise InputError(
            f"{path}: one JSON object a line wanted, this is a JSON array; "
            f"turn it into lines with `jq -c '.[]'`, or read it with `datasets` and give that to write_shards"
        )


def _is_array(start: bytes) -> bool:
    """Whether a file is one array; a line with a whole array that others follow is only a bad line."""
    first, _, others = start.lstrip().partition(b"\n")
    if not first.startswith(b"["):
        return False
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        return True
    return not others.strip()


def line_blocks(file: IO[bytes], start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """(offset, block) of whole lines, for the lines that start in bytes `start` … `stop - 1`, about BATCH_BYTES each."""
    offset = _line_start(file, start)
    while offset < stop:
        end = _line_start(file, min(offset + documents.BATCH_BYTES, stop))
        file.seek(offset)
        if not (block := file.read(end - offset)):
            return
        yield offset, block
        offset = end


def _line_start(file: IO[bytes], place: int) -> int:
    """Where the first line starts that does not start before `place`."""
    if place == 0:
        return 0
    file.seek(place - 1)
    file.readline()
    return file.tell()


def parse_lines(block: bytes, column: str, bad: Bad, place: Place) -> Batch:
    """The documents of a block of JSON lines."""
    lines = list(io.BytesIO(block))
    try:
        values = _values(lines, column)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return documents.joined([_parse_line(line, column, bad, place, index) for index, line in enumerate(lines)])
    return documents.clean(values, bad, place, valid=True)


def _values(lines: list[bytes], column: str) -> list[Any]:
    """The values of a column. Raises what orjson raises, KeyError or TypeError where a line is to be looked at by itself."""
    try:
        return [orjson.loads(line)[column] for line in lines]
    except KeyError:
        if "." not in column:
            raise
    return [columns.value_at(orjson.loads(line), column) for line in lines]


def _parse_line(line: bytes, column: str, bad: Bad, place: Place, index: int) -> list[str]:
    """The document of one line, or none."""
    line = line.removeprefix(compression.BOM).removesuffix(b"\n")
    if not line.strip():
        return []
    try:
        record = _loads(line)
    except UnicodeDecodeError as error:
        bad.report("invalid UTF-8", place, index, f"invalid UTF-8 at byte {error.start} of the line")
        return []
    except (ValueError, RecursionError) as error:
        bad.report("invalid JSON", place, index, f"not JSON ({error}): {line[:60]!r}")
        return []
    if not isinstance(record, dict):
        bad.report("not an object", place, index, f"a JSON object wanted, found {line[:60]!r}")
        return []
    try:
        value = columns.value_at(record, column)
    except (KeyError, TypeError):
        if bad.policy == "error":
            raise columns.missing_value(record, column, place(index)) from None
        bad.skipped[f"no column {column}"] += 1
        return []
    return documents.text_of(value, bad, place, index)


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line.decode(), parse_int=float)  # a number of 5,000 digits is no reason to lose the text


def _line(path: str, before: int, index: int) -> str:
    """Line `index` of a block with `before` lines before it."""
    return f"{path}:{before + index + 1}"


def _line_behind(path: str, offset: int, index: int) -> str:
    """Line `index` of a block that starts at byte `offset`."""
    return _line(path, lines_before(path, offset), index)


def lines_before(path: str, offset: int) -> int:
    """How many lines of a file end before byte `offset`."""
    count = 0
    with open(path, "rb") as file:
        while offset > 0 and (block := file.read(min(offset, documents.BATCH_BYTES))):
            count += block.count(b"\n")
            offset -= len(block)
    return count
