"""Whether an output holds already what a command would write: a job that is started again then has nothing to do.

dataset.json has the names of the inputs and their size. Whether they hold the same still is known by time: an input that
was changed after the first shard of its writing was made counts as another input. Stores tell times in whole seconds.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.format.dataset_info import DATASET_FILE, DatasetInfo
from tokentar.shard_writer.format.manifest import Manifest, ShardEntry, open_shards
from tokentar.shard_writer.inputs.source import Source
from tokentar.shard_writer.storage.urls import Url
from tokentar.shard_writer.writing.arguments import WriteArguments

_SECOND = 1_000_000_000
_log = logging.getLogger(__name__)


def find(root: Path | Url, wanted: DatasetInfo, source: Source, *, append: bool) -> Manifest | None:
    """The set, if a writing of it is what `wanted` says (of `append`, one of those that were appended); else None.

    Raises StoreError when a store fails.
    """
    manifest = opened(root)
    if manifest is None or source.identity is None:
        return None
    info = manifest.info
    if info.resharded or any(
        getattr(info, key) != getattr(wanted, key) for key in ("seq_length", "dtype", "tokenizer")
    ):
        return None
    base, *appended = _writings(manifest)
    for writing, shards in appended if append else [base]:
        if _is_same(writing, wanted) and is_older(source.last_change_ns(), root, shards):
            return said(manifest)
    return None


def opened(root: Path | Url) -> Manifest | None:
    """The finished set at a place; None when there is none, or none that can be read."""
    try:
        if isinstance(root, Path) and not (root / DATASET_FILE).exists():
            return None
        return open_shards(root)
    except SetError:
        return None


def said(manifest: Manifest) -> Manifest:
    """The set, with a line that says that nothing is to be done."""
    _log.info("%s: complete already; --overwrite writes it again", manifest.root)
    return manifest


def is_older(change_ns: int | None, root: Path | Url, shards: Sequence[ShardEntry]) -> bool:
    """Whether a change lies before all of these shards were made, and they are all there in their size."""
    sizes = {name: size for entry in shards for name, (size, _) in entry.files.items()}
    made = dict(_made(root, sizes))
    if change_ns is None or sizes != {name: size for name, (size, _) in made.items()}:
        return False
    return all(time_ns is not None and change_ns < time_ns for _, time_ns in made.values())


def _made(root: Path | Url, names: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, int | None]]]:
    """Size and time of making of those of some files that are there."""
    if isinstance(root, Url):
        published_ns = (root / DATASET_FILE).stat().changed_ns  # where listings tell no times
        for url, stat in root.files():
            changed_ns = stat.changed_ns or published_ns
            if url.name in names:
                yield url.name, (stat.size, changed_ns and changed_ns + _SECOND)
        return
    for name in names:
        if os.path.exists(root / name):
            found = os.stat(root / name)
            yield name, (found.st_size, found.st_mtime_ns)


def _writings(manifest: Manifest) -> Iterator[tuple[Mapping[str, Any], Sequence[ShardEntry]]]:
    """What dataset.json says of each writing, with its shards: first that of the set, then those that were appended."""
    counts = [writing["shards"] for writing in manifest.info.appended]
    bounds = accumulate([len(manifest.shards) - sum(counts), *counts], initial=0)
    for writing, (start, stop) in zip(manifest.info.writings, pairwise(bounds), strict=True):
        yield writing, manifest.shards[start:stop]


def _is_same(writing: Mapping[str, Any], wanted: DatasetInfo) -> bool:
    """Whether input, settings and seed are the same; a flag that a set of an older version lacks had its default."""
    defaults = {field.name: field.default for field in fields(WriteArguments) if field.name in wanted.settings}
    return (writing["source"], defaults | writing["settings"], writing["seed"]) == (
        wanted.source,
        wanted.settings,
        wanted.seed,
    )
