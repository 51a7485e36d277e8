"""Inputs in object stores: found by listing, and copied to the disk of the worker that reads them, for as long as it does."""

import fnmatch
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from tokentar.shard_writer.errors import InputError, SetError
from tokentar.shard_writer.inputs.documents import Bad, Batch, Reader
from tokentar.shard_writer.storage import places
from tokentar.shard_writer.storage.urls import Url

_MAGIC = "*?["
# of these a worker copies one file at a time; of texts, as many as a task has
_ONE_BY_ONE = ("jsonl", "parquet", "csv", "tsv")


def find(name: str) -> list[Url]:
    """The objects that a URL names, itself, below it or by glob, sorted. Hidden objects are passed over.

    What follows the `?` of a web address is its query: of such a link only the one file that it names is asked for.
    Raises InputError when there are none, StoreError when the store fails.
    """
    path = places.without_query(name)
    nothing = InputError(f"input {path!r} names no object; check the URL (`**` goes through folders)")
    if path != name:
        if not (link := _url(name)).exists():
            raise nothing
        return [link]
    magic = [place for place, character in enumerate(name) if character in _MAGIC]
    place = _url(name[: name.rindex("/", 0, magic[0])] if magic else name)
    if not magic and not name.endswith("/") and place.exists():
        return [place]
    pattern = name if magic else f"{place}/**"
    if not (found := [url for url, _ in place.files() if _matches(str(url), pattern) and not _hidden(str(url), place)]):
        raise nothing
    return found


def _url(name: str) -> Url:
    place = places.place(name, with_query=True)
    assert isinstance(place, Url)
    return place


def _hidden(url: str, place: Url) -> bool:
    parts = url.removeprefix(f"{place}/").split("/")
    return any(part.startswith(".") or part == "__pycache__" for part in parts) or not parts[-1]


def _matches(url: str, pattern: str) -> bool:
    """Whether a URL fits a glob, part by part; `**` stands for any number of folders."""
    return _fits(url.split("/"), pattern.split("/"))


def _fits(parts: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        rest = patterns[1:] or ["*"]
        return any(_fits(parts[start:], rest) for start in range(len(parts)))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], patterns[0]) and _fits(parts[1:], patterns[1:])


def readers(kind: str, found: list[tuple[Url, int]], task_bytes: int, text_column: str) -> Iterator[Reader]:
    """Tasks for objects of one format, each with its size. Raises InputError for a format that is read from disk only."""
    if kind not in (*_ONE_BY_ONE, "text"):
        raise InputError(f"{found[0][0]}: {kind} is read from a disk only; copy it there, or write JSONL or Parquet")
    make = StoredLines if kind == "jsonl" else Stored
    group: list[tuple[Url, int]] = []
    for number, pair in enumerate(found, 1):
        group.append(pair)
        if kind in _ONE_BY_ONE or number == len(found) or sum(size for _, size in group) >= task_bytes:
            urls, sizes = zip(*group, strict=True)
            yield make(kind, urls, sizes, text_column)
            group = []


@dataclass(frozen=True)
class Stored:
    """Objects of one format that one worker reads.

    The query of a signed link is part of this task and in memory only: sent to the worker process or, with Ray, to the
    node among the arguments of the task, which Ray keeps in the memory of the cluster and logs nowhere. A list of links
    beyond 100 kB in one task is an object of Ray's store, which Ray may spill to the disk of a node when memory is short.
    """

    first_place: ClassVar[int] = 0
    kind: str
    urls: tuple[Url, ...]
    sizes: tuple[int, ...]  # bytes
    text_column: str

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(self.sizes)

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return tuple(map(str, self.urls))

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader; messages name URLs."""
        from tokentar.shard_writer.inputs.readers import file_readers

        with TemporaryDirectory(prefix="tokentar-") as name:
            copies = [os.path.join(name, str(number), url.name) for number, url in enumerate(self.urls)]
            for copy, url, size in zip(copies, self.urls, self.sizes, strict=True):
                _copy(url, size, Path(copy))
            try:
                for reader in file_readers(self.kind, copies, sys.maxsize, self.text_column):
                    yield from reader.read(column, bad)
            except InputError as error:
                raise InputError(_with_urls(str(error), copies, self.sources)) from None


class StoredLines(Stored):
    """JSON lines, which are counted from 1."""

    first_place: ClassVar[int] = 1


def _copy(url: Url, size: int, path: Path) -> None:
    path.parent.mkdir()
    try:
        seen = url.stat().size
        if seen != size:
            raise SetError(f"{seen} bytes")
        with open(path, "wb") as file:
            url.download(file, size, None)
    except (SetError, FileNotFoundError) as error:
        raise InputError(
            f"{url}: was listed with {size} bytes: {error}; write again when nothing writes to it any more"
        ) from None


def _with_urls(text: str, copies: list[str], urls: tuple[str, ...]) -> str:
    for copy, url in zip(copies, urls, strict=True):
        text = text.replace(copy, url)
    return text
