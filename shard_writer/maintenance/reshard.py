"""reshard: the sequences of a set in another number of shards, in their order, at the speed of the disk; nothing is tokenized."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokentar.shard_writer.engines.local import Engine
from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format import provenance
from tokentar.shard_writer.format.dataset_info import DATASET_FILE, VERSION
from tokentar.shard_writer.format.manifest import (
    MANIFEST_FILE,
    Manifest,
    ShardEntry,
    first_numbers,
    manifest_text,
    open_shards,
)
from tokentar.shard_writer.packing import layout
from tokentar.shard_writer.packing.layout import Piece
from tokentar.shard_writer.storage import files, places
from tokentar.shard_writer.storage.urls import Url
from tokentar.shard_writer.writing import complete, progress, upload
from tokentar.shard_writer.writing.output import Output
from tokentar.shard_writer.writing.shard_step import Built, ShardTask, make_shard, shard_tasks

_MADE_LAST = (MANIFEST_FILE, DATASET_FILE)  # of the files of a set
_MOST_THREADS = 4  # copying, checksums and Parquet release the interpreter's lock


def reshard(
    source: str | os.PathLike[str] | Url,
    output: str | os.PathLike[str] | Url,
    *,
    num_shards: int | None = None,
    overwrite: bool = False,
    spool_dir: str | None = None,
) -> Manifest:
    """Copy a set into `num_shards` shards of its first split (other splits, or None: as `write` would cut them).

    Keys are numbered anew; where tokens come from is carried over. Where the output holds the very set already, nothing
    is written. Raises SetError when the source is damaged, or when the output holds something else, SettingError when some
    shard would be empty.
    """
    return reshard_or_find(source, output, num_shards=num_shards, overwrite=overwrite, spool_dir=spool_dir)[0]


def reshard_or_find(
    source: str | os.PathLike[str] | Url,
    output: str | os.PathLike[str] | Url,
    *,
    num_shards: int | None = None,
    overwrite: bool = False,
    spool_dir: str | None = None,
) -> tuple[Manifest, bool]:
    """The same, and whether anything was written: not where the output holds all of it already."""
    if num_shards is not None and num_shards < 1:
        raise SettingError(f"num_shards: {num_shards}, needed: at least 1")
    if not str(output):
        raise SettingError("output: empty, needed: a folder or URL")
    manifest, where = open_shards(source), places.place(output)
    if where == manifest.root or (isinstance(where, Path) and where.resolve() == Path(str(source)).resolve()):
        raise SettingError(f"output: {output} is the set itself, needed: another folder")
    if not upload.is_under_way(where, spool_dir) and not overwrite and (there := _find(manifest, where, num_shards)):
        return there, False
    texts = (manifest_text(manifest.shards), manifest.info.to_json())
    plan = json.dumps(["reshard", VERSION, *(files.checksum(text.encode()) for text in texts), num_shards])

    def build(folder: Path) -> Manifest:
        with upload.local_copy(source) as copy:
            return _reshard(open_shards(copy), Output(folder, plan, overwrite), num_shards)

    return upload.publish(where, spool_dir, plan, overwrite, build), True


def _find(source: Manifest, where: Path | Url, num_shards: int | None) -> Manifest | None:
    """The set at `where`, if it is what `source` becomes and younger than that."""
    there = complete.opened(where)
    if there is None or there.info != replace(source.info, shards=there.info.shards, resharded=True):
        return None
    tasks = [(task.name, task.split, task.num_sequences) for task in _tasks(source, num_shards)]
    if tasks != [(entry.shard, entry.split, entry.num_sequences) for entry in there.shards]:
        return None
    is_older = all(complete.is_older(_changed_ns(source.root / name), where, there.shards) for name in _MADE_LAST)
    return complete.said(there) if is_older else None


def _changed_ns(place: Path | Url) -> int | None:
    return place.stat().changed_ns if isinstance(place, Url) else files.changed_ns(place)


def _reshard(manifest: Manifest, target: Output, num_shards: int | None) -> Manifest:
    with files.locked(target.spool):
        target.prepare()
        if target.is_publishing:
            return target.finish()
        try:
            entries = _copy(manifest, target.shards, num_shards)
        except (SetError, SettingError):
            target.discard()
            raise
        info = replace(manifest.info, shards=len(entries), resharded=True)
        new = Manifest(target.folder, info, entries, first_numbers(entries))
        return target.publish(new, new)


def _copy(manifest: Manifest, folder: Path, num_shards: int | None) -> tuple[ShardEntry, ...]:
    tasks = list(_tasks(manifest, num_shards))
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool:
        step = ReshardStep(manifest, folder)
        return progress.make_shards(Engine(pool, threads), step, folder, tasks, len(tasks))


def _tasks(manifest: Manifest, num_shards: int | None) -> Iterator[ShardTask[Piece]]:
    """The new shards, split by split; `run` of a piece is the index of its shard in the manifest."""
    first = 0
    for split in dict.fromkeys(entry.split for entry in manifest.shards):
        mine = np.array([entry.split == split for entry in manifest.shards])
        rows = np.where(mine, manifest.num_sequences, 0)
        total = int(rows.sum())
        count = num_shards or layout.default_num_shards(total, manifest.info.row_format.stride)
        yield from shard_tasks(split, total, count, partial(layout.pieces, rows), first_sequence=first)
        first, num_shards = first + total, None


@dataclass(frozen=True)
class ReshardStep:
    """task → a whole shard under its name in `folder`, its provenance beside it."""

    manifest: Manifest
    folder: Path

    def __call__(self, task: ShardTask[Piece]) -> ShardEntry:
        """Build one shard, or only read it when an earlier run did; returns its line of the manifest."""

        def build() -> Built:
            for piece in task.pieces:
                if piece.start == 0:  # so each shard of the source is checked once
                    self._check(self.manifest.shards[piece.run])
            parts = [self.manifest.open(piece.run).rows[piece.start : piece.stop] for piece in task.pieces]
            rows: Any = np.concatenate(parts)
            return Built(rows, np.arange(len(rows)), self._origins(task.pieces))

        return make_shard(self.folder, task, self.manifest.info.row_format, build)

    def _check(self, entry: ShardEntry) -> None:
        for name, (size, digest) in entry.files.items():
            if files.file_checksum(self.manifest.folder / name) != (size, digest):
                raise SetError(
                    f"{self.manifest.folder / name}: not the {size} bytes with checksum {digest} that the manifest lists; "
                    "restore it (`tokentar verify --repair`), then run the same command"
                )

    def _origins(self, pieces: tuple[Piece, ...]) -> pa.Table | None:
        """Where the tokens of these rows come from; None when the source does not say so of all of them."""
        entries = [self.manifest.shards[piece.run] for piece in pieces]
        if any(entry.docs_bytes is None for entry in entries):
            return None
        first, tables = 0, []
        for piece, entry in zip(pieces, entries, strict=True):
            table = pq.read_table(provenance.path_of(self.manifest.folder, entry.shard), use_threads=False)
            tables.append(provenance.rows_between(table, piece.start, piece.stop, first))
            first += piece.stop - piece.start
        return provenance.join(tables)
