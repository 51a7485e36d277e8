"""CSV and TSV files."""

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokentar.shard_writer.inputs import columns, compression, documents
from tokentar.shard_writer.inputs.documents import Bad, Batch, Place, SingleSource, line_of


@dataclass(frozen=True)
class CsvRows(SingleSource):
    """A whole CSV or TSV file with a header line; every cell is the text that stands there, numbers and `NA` too."""

    delimiter: str
    size: int

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader."""
        csv.field_size_limit(sys.maxsize)  # of this process: a document may be as long as its file
        yield from documents.batches(self._rows(column, bad))

    def _rows(self, column: str, bad: Bad) -> Iterator[list[str]]:
        """The document of each record below the header, or none; what lies behind a damage of the file is left out."""
        try:
            with compression.unpacked(self.path) as raw:
                text = io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline="")
                records = _records(csv.reader(text, delimiter=self.delimiter, strict=True))
                header = next(records, None)
                if header is None:
                    return
                at = columns.one_column(column, header[1], self.path)
                for line, cells in records:
                    yield _cell(cells, at, len(header[1]), bad, partial(line_of, self.path, line))
        except OSError as error:
            bad.report("unreadable file", partial(line_of, self.path, 0), 0, compression.damage(error))


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
