"""The planned input: its tasks, and by what its files are known again."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs.documents import Reader
from tokentar.shard_writer.storage import files, places
from tokentar.shard_writer.storage.urls import Url


@dataclass(frozen=True)
class Task:
    """A part of the input for one worker."""

    index: int
    reader: Reader


@dataclass(frozen=True)
class Source:
    """The planned input."""

    tasks: Iterable[Task]  # lazy for iterables
    size: int | None  # bytes of input; None when it is not known before reading
    identity: list[list[Any]] | None  # what must be the same for a rerun to go on; None: cannot go on
    names: list[str]  # for dataset.json; a signed link is there without its query
    files: tuple[str | Url, ...] = ()
    stamps: tuple[list[Any], ...] = ()  # of the files, see `stamp`

    def refuse_changes(self) -> None:
        """Raises InputError when a file is not the one that was planned: parts of two states of it may have been read."""
        for file, before in zip(self.files, self.stamps, strict=True):
            if stamp(file) != before:
                raise InputError(f"{file}: changed while it was read; write again when nothing writes to it any more")

    def last_change_ns(self) -> int | None:
        """When any of its files was changed last, in ns since 1970; None when a server does not say so.

        A data set that the hub has under its name counts as never changed.
        """
        folders = [name for name in self.names if not places.is_url(name) and os.path.isdir(name)]
        paths = {*self.files, *(path for folder in folders for path in files.all_below(folder))}
        changes = [files.changed_ns(path) if isinstance(path, str) else path.stat().changed_ns for path in paths]
        known = [change for change in changes if change is not None]
        return max(known, default=0) if len(known) == len(changes) else None


def stamp(file: str | Url) -> list[Any]:
    """Name, size and what else changes when a file does. Raises InputError when it cannot be read."""
    try:
        if isinstance(file, Url):
            stat = file.stat()
            return [str(file), stat.size, stat.tag]
        found = os.stat(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or 'no such object'}") from None
    return [file, found.st_size, found.st_mtime_ns]
