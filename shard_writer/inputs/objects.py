"""Inputs in object stores: found by listing, and copied to the disk of the worker that reads them, for as long as it does."""

import fnmatch
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from tokentar.shard_writer.errors import InputError, SetError
from tokentar.shard_writer.inputs.documents import Bad, Batch, Reader
from tokentar.shard_writer.storage import places
from tokentar.shard_writer.storage.urls import Url

_MAGIC = "*?["
_ONE_BY_ONE = (
    "jsonl",
    "parquet",
    "csv",
    "tsv",
)  # of these a worker copies one file at a time; of texts, as many as a task has


def find(name: str) -> dict[str, list[Any]]:
    """The objects that a URL names, itself, below it or by glob: of each its URL, size and tag, by its URL and sorted.

    Hidden objects are passed over. Raises InputError when there are none, StoreError when the store fails.
    """
    pattern, depth = name, len(name)
    if any(character in name for character in _MAGIC):
        depth = name.rindex("/", 0, min(name.find(character) for character in _MAGIC if character in name))
    place = _url(name[:depth])
    if depth == len(name) and not name.endswith("/") and place.exists():
        stat = place.stat()
        return {str(place): [str(place), stat.size, stat.tag]}
    below = [(str(url), stat) for url, stat in place.files()]
    if depth == len(name):
        pattern = f"{place}/**"
    found = {
        url: [url, stat.size, stat.tag] for url, stat in below if _matches(url, pattern) and not _hidden(url, place)
    }
    if not found:
        raise InputError(f"input {name!r} names no object; check the URL (`**` goes through folders)")
    return found


def _url(name: str) -> Url:
    place = places.place(name)
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


def readers(kind: str, stamps: list[list[Any]], task_bytes: int, text_column: str) -> Iterator[Reader]:
    """Tasks for objects of one format. Raises InputError for a format that is read from disk only."""
    if kind not in (*_ONE_BY_ONE, "text"):
        raise InputError(f"{stamps[0][0]}: {kind} is read from a disk only; copy it there, or write JSONL or Parquet")
    make = StoredLines if kind == "jsonl" else Stored
    group: list[list[Any]] = []
    for stamp in stamps:
        group.append(stamp)
        if kind in _ONE_BY_ONE or sum(size for _, size, _ in group) >= task_bytes:
            yield make(kind, tuple(url for url, _, _ in group), tuple(size for _, size, _ in group), text_column)
            group = []
    if group:
        yield make(kind, tuple(url for url, _, _ in group), tuple(size for _, size, _ in group), text_column)


@dataclass(frozen=True)
class Stored:
    """Objects of one format that one worker reads."""

    first_place: ClassVar[int] = 0
    kind: str
    urls: tuple[str, ...]
    sizes: tuple[int, ...]  # bytes
    text_column: str

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(self.sizes)

    @property
    def sources(self) -> tuple[str, ...]:
        """See Reader."""
        return self.urls

    def read(self, column: str, bad: Bad) -> Iterator[Batch]:
        """See Reader; messages name URLs."""
        from tokentar.shard_writer.inputs.readers import file_readers

        with TemporaryDirectory(prefix="tokentar-") as name:
            copies = [os.path.join(name, str(number), url.rpartition("/")[2]) for number, url in enumerate(self.urls)]
            for copy, url, size in zip(copies, self.urls, self.sizes, strict=True):
                _copy(_url(url), size, Path(copy))
            try:
                for reader in file_readers(self.kind, copies, sys.maxsize, self.text_column):
                    yield from reader.read(column, bad)
            except InputError as error:
                raise InputError(_with_urls(str(error), copies, self.urls)) from None


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
