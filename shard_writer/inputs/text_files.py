"""Text and source files, one document each."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs import compression, documents
from tokentar.shard_writer.inputs.documents import Bad, Batch, line_of


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
        return documents.batches(_document(path, bad) for path in self.paths)


def _document(path: str, bad: Bad) -> list[str]:
    """The one document of a text file, or none."""
    try:
        content = b"".join(compression.pieces(path)) if compression.compression(path) else _read(path)
    except InputError as error:
        bad.report("unreadable file", partial(line_of, path, 0), 0, str(error).removeprefix(f"{path}: "))
        return []
    content = content.removeprefix(compression.BOM)
    try:
        return documents.text_of(content.decode(), bad, partial(line_of, path, 0), 0, valid=True)
    except UnicodeDecodeError as error:
        found = compression.signature(content) or repr(content[error.start : error.start + 8])
        line = content.count(b"\n", 0, error.start) + 1
        bad.report(
            "invalid UTF-8", partial(line_of, path, line), 0, f"invalid UTF-8 at byte {error.start}: this is {found}"
        )
        return []


def _read(path: str) -> bytes:
    with compression.opened(path) as file:
        return file.read()
