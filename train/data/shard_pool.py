"""The shards of a set as the readers of a process open them: checked once, from disk or through the cache."""

import logging
from ctypes import c_double, c_ubyte
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format.checksums import check_shard
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.shard_writer.format.shards import ShardFile
from tokentar.shard_writer.storage.urls import Url
from tokentar.train.data.access import Access
from tokentar.train.data.cache import Cache, CachedShard
from tokentar.train.distributed.world import World

THREADS = 4
_FOR_EVALUATION = 2  # shards that a rank may have open beside those it trains on
_RIGHT, _DAMAGED = 1, 2
_log = logging.getLogger(__name__)


class OpenCosts(NamedTuple):
    """What opening shards has cost one reader, or several."""

    shards: float = 0
    fetched: float = 0  # of those, from the store
    fetched_bytes: float = 0
    waits: float = 0  # times that a reader waited for a shard
    wait_seconds: float = 0

    def plus(self, other: "OpenCosts") -> "OpenCosts":
        """Both together."""
        return OpenCosts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True)
class SharedNotes:
    """What all readers of a process and its DataLoader workers know, in memory that they share."""

    seen: Any  # a byte a shard: whether its bytes are right, when somebody has looked
    tallies: Any  # OpenCosts of each worker

    @classmethod
    def of(cls, shards: int, workers: int) -> "SharedNotes":
        """Nothing known yet."""
        return cls(RawArray(c_ubyte, shards), RawArray(c_double, workers * len(OpenCosts._fields)))

    def add(self, worker: int, tally: OpenCosts) -> None:
        """Note what one worker did; each has its own place."""
        start = worker * len(tally)
        for place, value in enumerate(tally, start):
            self.tallies[place] += value

    def note_damage(self, index: int) -> None:
        """Note that a shard was found to be damaged before."""
        self.seen[index] = _DAMAGED

    def damaged(self) -> list[int]:
        """Shards that were found to be damaged."""
        return [index for index, seen in enumerate(self.seen) if seen == _DAMAGED]

    def total(self) -> OpenCosts:
        """Of all workers."""
        width = len(OpenCosts._fields)
        rows = (OpenCosts(*self.tallies[i : i + width]) for i in range(0, len(self.tallies), width))
        return OpenCosts(*map(sum, zip(*rows, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ShardPool:
    """How the readers of a process open shards of a set: at most `ahead` of them before they are needed."""

    manifest: Manifest
    notes: SharedNotes
    ahead: int
    cache: Cache | None = None  # of a set in a store
    skip: bool = False  # leave out damaged shards
    skipped: frozenset[int] = frozenset()  # numbers of sequences to leave out

    @classmethod
    def of(cls, manifest: Manifest, access: Access, world: World, streams: int, *, sharing: int = 1) -> "ShardPool":
        """For the readers of `world`, each with so many shards open at a time; so many pools share the cache.

        Raises SettingError when these do not fit the cache.
        """
        cache = access.cache if isinstance(manifest.root, Url) else None
        if cache is not None:
            cache.prepare()
        return cls(
            manifest=manifest,
            notes=SharedNotes.of(len(manifest.shards), world.workers),
            ahead=max(THREADS, streams) if cache is None else _room_ahead(manifest, cache, world, streams, sharing),
            cache=cache,
            skip=access.bad_shards == "skip",
        )

    @classmethod
    def for_evaluation(cls, manifest: Manifest, access: Access, world: World) -> "ShardPool":
        """For the ranks of `world`, which each have one shard open at a time, beside those that they train on."""
        pool = cls.of(manifest, access, world, streams=1)
        return pool if pool.cache is None else replace(pool, ahead=_FOR_EVALUATION - 1)

    @property
    def leaves_out(self) -> bool:
        """Whether rows may be left out."""
        return self.skip or bool(self.skipped)

    def is_ready(self, index: int) -> bool:
        """Whether a shard is on disk and was found to be right, so that opening it takes no more than handing it to a thread."""
        return self.cache is None and bool(self.notes.seen[index] == _RIGHT)

    def get(self, index: int) -> tuple[ShardFile | None, OpenCosts]:
        """A shard that is what the manifest says, None for a damaged one where those are left out, and what it cost.

        Raises SetError, or StoreError when its store fails.
        """
        seen = self.notes.seen
        if self.skip and seen[index] == _DAMAGED:
            return None, OpenCosts()
        try:
            found = self._from_disk(index) if self.cache is None else self._from_store(self.cache, index)
        except SetError as error:
            seen[index] = _DAMAGED
            if not self.skip:
                raise
            _log.warning("left out: %s", error)
            return None, OpenCosts()
        seen[index] = _RIGHT
        return found

    def _from_disk(self, index: int) -> tuple[ShardFile, OpenCosts]:
        entry = self.manifest.shards[index]
        if self.notes.seen[index] != _RIGHT:
            check_shard(self.manifest.path(entry), entry, self.manifest.info.row_format)
        return self.manifest.open(index), OpenCosts(shards=1)

    def _from_store(self, cache: Cache, index: int) -> tuple[ShardFile, OpenCosts]:
        manifest, entry = self.manifest, self.manifest.shards[index]
        place = manifest.root / entry.file_name
        assert isinstance(place, Url)
        held, fetched = cache.hold(place, entry, checked=self.notes.seen[index] == _RIGHT)
        first = int(manifest.first_sequences[index])
        shard = CachedShard(held, cache.path(entry), manifest.info.row_format, entry.num_sequences, first)
        return shard, OpenCosts(shards=1, fetched=fetched, fetched_bytes=entry.bytes * fetched)


def _room_ahead(manifest: Manifest, cache: Cache, world: World, streams: int, sharing: int) -> int:
    """Shards that each reader may hold beside the one that each of its streams is at."""
    limit = cache.limit // sharing
    sizes, ranks = [entry.bytes for entry in manifest.shards], world.ranks_here
    wanted, readers, largest = max(THREADS, streams), ranks * world.workers, max(sizes)
    aside = ranks * _FOR_EVALUATION * largest
    if sum(sizes) + aside <= limit:
        return wanted
    room = (limit - aside) // largest // readers - streams
    if room < 1:
        needed = min(sum(sizes), readers * (streams + 1) * largest) + aside
        sources = f", × {sharing} sources" if sharing > 1 else ""
        raise SettingError(
            f"cache_bytes: {cache.limit:,}, needed: {needed * sharing:,} ({ranks} ranks on this machine × {world.workers} workers × "
            f"{streams} streams each, and one ahead, × {largest:,} bytes a shard, or the whole set, and room to evaluate{sources}); "
            "raise it or set fewer --streams"
        )
    return min(wanted, room)
