"""Text and source files, one document each."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs import compression, documents
from tokentar.shard_writer.inputs.documents import Bad, Batch


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
            files.append(_document(path, bad))
            held += sum(map(len, files[-1]))
            if held >= documents.BATCH_BYTES:
                yield documents.joined(files)
                files, held = [], 0
        yield documents.joined(files)


def _document(path: str, bad: Bad) -> list[str]:
    """The one document of a text file, or none."""
    try:
        content = b"".join(compression.pieces(path)) if compression.compression(path) else _read(path)
    except InputError as error:
        bad.report("unreadable file", partial(_place, path, 0), 0, str(error).removeprefix(f"{path}: "))
        return []
    content = content.removeprefix(compression.BOM)
    try:
        return documents.text_of(content.decode(), bad, partial(_place, path, 0), 0, valid=True)
    except UnicodeDecodeError as error:
        found = compression.signature(content) or repr(content[error.start : error.start + 8])
        line = content.count(b"\n", 0, error.start) + 1
        bad.report(
            "invalid UTF-8", partial(_place, path, line), 0, f"invalid UTF-8 at byte {error.start}: this is {found}"
        )
        return []


def _read(path: str) -> bytes:
    with compression.opened(path) as file:
        return file.read()


def _place(path: str, line: int, index: int) -> str:
    """The one row of a file, with the line where there is one to name."""
    return f"{path}:{line}" if line else path
