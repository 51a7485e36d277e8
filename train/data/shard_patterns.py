"""From what --shards names to a manifest: a folder, a brace pattern or a glob of a finished set's shards."""

import fnmatch
import logging
import os
import re
from pathlib import Path

from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format.manifest import Manifest, open_shards
from tokentar.shard_writer.storage import places
from tokentar.shard_writer.storage.urls import Url

DEFAULT_SPLIT = "train"
Shards = str | os.PathLike[str] | Url | Manifest  # what names shards: see select_shards
_LITERAL_BRACES = re.compile(r"[{}]|\.{3}")
_log = logging.getLogger(__name__)


def set_of(shards: str | os.PathLike[str] | Url) -> Path | Url:
    """The place of the set that --shards is of."""
    place = places.place(shards)
    is_whole = not place.name.endswith(".tar") or (isinstance(place, Path) and place.is_dir())
    return place if is_whole else place.parent


def select_shards(shards: Shards, prefer: str = DEFAULT_SPLIT) -> Manifest:
    """The shards that a folder (its split `prefer`, or else its first one), a brace pattern or a glob names; a Manifest as it is.

    Raises SettingError for a pattern that is none, SetError for names that the set does not have.
    """
    if isinstance(shards, Manifest):
        return shards
    name = str(shards)
    if not name:
        raise SettingError("shards: empty; name a folder, or shards like out/train-{000000..000063}.tar")
    root, place = set_of(shards), places.place(shards)
    manifest = open_shards(root)
    if place == root:
        return _split_of(manifest, prefer)
    known = {entry.file_name: entry.shard for entry in manifest.shards}
    wanted = _expand(place.name, list(known))
    missing = [file for file in wanted if file not in known or (isinstance(root, Path) and not (root / file).exists())]
    if missing:
        raise SetError(
            f"shards: {name}: {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''} ({len(missing)} of {len(wanted)}) not there; "
            f"the set has {_span(list(known))}"
        )
    chosen = manifest.choose({known[file] for file in wanted})
    same_split = [entry for entry in manifest.shards if entry.split in {e.split for e in chosen.shards}]
    if len(chosen.shards) < len(same_split):
        _log.warning(
            "shards: %s names %d shards, the manifest has %d; training on part of the set",
            name,
            len(chosen.shards),
            len(same_split),
        )
    return chosen


def _split_of(manifest: Manifest, prefer: str) -> Manifest:
    names = [entry.split for entry in manifest.shards]
    if not names:
        raise SetError(
            f"{manifest.root}: its manifest lists no shard, so there is nothing to train on; write the set again"
        )
    return manifest.split(prefer if prefer in names else names[0])


def _expand(pattern: str, known: list[str]) -> list[str]:
    """The file names that a pattern stands for."""
    if any(character in pattern for character in "*?["):
        found = fnmatch.filter(known, pattern)
        if not found:
            raise SetError(f"shards: {pattern!r} matches none of {_span(known)}")
        return found
    try:
        names = list(braceexpand(pattern))
    except UnbalancedBracesError:
        raise SettingError(f"shards: {pattern!r}: unbalanced braces; write {_span(known)}") from None
    if any(_LITERAL_BRACES.search(name) for name in names):
        raise SettingError(
            f"shards: {pattern!r} is not a range of shards (two dots between two numbers); write {_span(known)}"
        )
    return names


def _span(files: list[str]) -> str:
    """The names of shards in short: first … last."""
    return f"{files[0]} … {files[-1]}" if len(files) > 1 else files[0]
