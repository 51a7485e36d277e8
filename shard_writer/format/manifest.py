"""What a finished set says of itself: dataset.json (written last) and manifest.jsonl (one line per shard).

`open_shards` reads both, checks that they fit each other and this version of the format, and touches no shard.
"""

import json
import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import Struct, ValidationError, structs
from msgspec.json import Decoder
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.format.dataset_info import DATASET_FILE, Count, DatasetInfo, place_and_fault, read_info
from tokentar.shard_writer.format.shards import ShardFile
from tokentar.shard_writer.storage import files, places
from tokentar.shard_writer.storage.urls import Url

MANIFEST_FILE = "manifest.jsonl"


class ShardEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One line of manifest.jsonl."""

    shard: str  # name without .tar
    split: str
    num_sequences: Count
    bytes: Count  # size of the file
    xxh3: str  # XXH3-64 of the file, 16 hexadecimal digits
    docs_bytes: Count | None = None  # the same of the provenance beside it, if there is one
    docs_xxh3: str | None = None

    def __post_init__(self) -> None:
        if (self.docs_bytes is None) != (self.docs_xxh3 is None):
            raise ValueError("docs_bytes and docs_xxh3 belong together, one is missing")

    @property
    def file_name(self) -> str:
        """The shard's file name in its folder."""
        return f"{self.shard}.tar"

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Size and XXH3-64 of the shard and of its provenance, if it has one, by file name."""
        found = {self.file_name: (self.bytes, self.xxh3)}
        if self.docs_bytes is not None and self.docs_xxh3 is not None:
            found[f"{self.shard}.docs.parquet"] = (self.docs_bytes, self.docs_xxh3)
        return found


@dataclass(frozen=True)
class Manifest:
    """A finished set: where it is, what it says of itself and its shards in order."""

    root: Path | Url
    info: DatasetInfo
    shards: tuple[ShardEntry, ...]
    firsts: dict[str, int]  # number of each shard's first sequence; also of shards that `choose` left out

    def choose(self, names: Collection[str]) -> "Manifest":
        """The same set with these shards only, in their order."""
        return replace(self, shards=tuple(entry for entry in self.shards if entry.shard in names))

    def split(self, name: str) -> "Manifest":
        """The same set with the shards of one split. Raises SetError when there are none."""
        chosen = replace(self, shards=tuple(entry for entry in self.shards if entry.split == name))
        if not chosen.shards:
            there = sorted({entry.split for entry in self.shards})
            raise SetError(f"{self.root}: no split {name!r}; there are {there}")
        return chosen

    @cached_property
    def num_sequences(self) -> NDArray[np.int64]:
        """Sequences of each shard: shape (shards,), int64."""
        return np.array([entry.num_sequences for entry in self.shards], np.int64)

    @cached_property
    def first_sequences(self) -> NDArray[np.int64]:
        """Number of the first sequence of each shard, which its first member bears: shape (shards,), int64."""
        return np.array([self.firsts[entry.shard] for entry in self.shards], np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when any byte, name or number of the chosen shards does: 16 hexadecimal digits."""
        shards = (structs.replace(entry, docs_bytes=None, docs_xxh3=None) for entry in self.shards)
        return files.checksum(manifest_text(shards).encode())

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Size and XXH3-64 of all shards and of their provenance, by file name."""
        return {name: wanted for entry in self.shards for name, wanted in entry.files.items()}

    @property
    def folder(self) -> Path:
        """The folder of a set on disk. Raises SettingError when it is elsewhere."""
        return places.on_disk(self.root)

    def path(self, entry: ShardEntry) -> Path:
        """Where a shard of a set on disk lies."""
        return self.folder / entry.file_name

    def open(self, index: int) -> ShardFile:
        """Map shard number `index` of this manifest into memory; one of a store is fetched for it, and gone with the map."""
        entry = self.shards[index]
        row_format, rows, first = self.info.row_format, entry.num_sequences, int(self.first_sequences[index])
        if isinstance(self.root, Path):
            return ShardFile(self.root / entry.file_name, row_format, rows, first)
        with tempfile.NamedTemporaryFile(prefix="tokentar-", suffix=".tar") as file:
            (self.root / entry.file_name).download(file, entry.bytes, entry.xxh3)
            return ShardFile(file.name, row_format, rows, first)


def first_numbers(shards: Iterable[ShardEntry]) -> dict[str, int]:
    """The number of each shard's first sequence, by shard name; numbers are unique in the whole set."""
    firsts, number = {}, 0
    for entry in shards:
        firsts[entry.shard] = number
        number += entry.num_sequences
    return firsts


def manifest_text(shards: Iterable[ShardEntry]) -> str:
    """manifest.jsonl of these shards."""
    lines = ({key: value for key, value in structs.asdict(entry).items() if value is not None} for entry in shards)
    return "".join(json.dumps(line) + "\n" for line in lines)


def write_manifest(manifest: Manifest) -> None:
    """Publish a set whose shards are all in place."""
    put_manifest(manifest.folder, manifest_text(manifest.shards), manifest.info.to_json())


def put_manifest(root: Path, manifest: str, dataset: str) -> None:
    """The texts of manifest.jsonl and dataset.json: the latter last, so that a set is there, or grows, all at once (G3)."""
    files.put(root / MANIFEST_FILE, manifest.encode())
    files.put(root / DATASET_FILE, dataset.encode())


def open_shards(folder: str | os.PathLike[str] | Url) -> Manifest:
    """Read what a finished set, in a folder or under a URL, says of itself.

    Raises SetError when it is missing, unfinished, damaged or of another version, StoreError when its store fails.
    """
    root = places.place(folder)
    info = read_info(root)
    shards = _read_entries(root, info.shards)
    if info.shards is not None and len(shards) < info.shards:
        raise SetError(
            f"{root / MANIFEST_FILE}: {len(shards)} lines where {DATASET_FILE} counts {info.shards} shards; a line was lost, "
            "`tokentar verify --repair` writes it again"
        )
    listed = sum(entry.num_sequences for entry in shards)
    if listed != info.totals.sequences:
        raise SetError(
            f"{root / MANIFEST_FILE}: lists {listed} sequences where {DATASET_FILE} counts {info.totals.sequences}; "
            "a line was lost or added"
        )
    return Manifest(root, info, shards, first_numbers(shards))


def _read_entries(root: Path | Url, count: int | None) -> tuple[ShardEntry, ...]:
    """The first `count` lines of the manifest, or all: behind them may be those of an append under way."""
    path = root / MANIFEST_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SetError(f"{path}: missing beside {DATASET_FILE}; restore it or write the set again") from None
    decoder = Decoder(ShardEntry)
    entries: list[ShardEntry] = []
    with suppress(ValueError, RecursionError):
        entries = decoder.decode_lines(content)
    if len(entries) != content.count(b"\n"):  # some line is broken, blank or holds several
        entries = []
        for number, line in enumerate(content.splitlines()[:count], 1):
            try:
                entries.append(decoder.decode(line))
            except (ValueError, RecursionError) as error:
                why = place_and_fault(error) if isinstance(error, ValidationError) else f"not JSON ({error})"
                raise SetError(f"{path}:{number}: {why}; restore the file, or write the set again") from None
    _check_names(path, [entry.shard for entry in entries[:count]])
    return tuple(entries[:count])


def _check_names(path: Path | Url, names: Sequence[str]) -> None:
    """Raises SetError for a shard that is listed twice or is no plain name. That all is well is known without a loop over them."""
    if len(set(names)) == len(names) and _are_plain(names):
        return
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        plain = _are_plain([name])
        if not plain or name in seen:
            why = "listed twice" if plain else "not a plain name; a manifest names files of its own folder only"
            raise SetError(f"{path}:{number}: shard {name!r} is {why}; write the set again")
        seen.add(name)


def _are_plain(names: Sequence[str]) -> bool:
    """Whether none is empty, hidden, or of several lines or folders."""
    text = "\n".join(["", *names, ""])  # so that each stands between two ends of line
    return text.count("\n") == len(names) + 1 and not any(odd in text for odd in ("/", "\0", "\n.", "\n\n"))
