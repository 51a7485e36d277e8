"""Opening shards for readers: checked against the manifest before the first row is read, by threads ahead of need.

Size and checksum are compared once in a run, whoever of a process and its DataLoader workers opens the shard first.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ctypes import c_double, c_ubyte
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from shard_writer.check import check_shard
from shard_writer.errors import SetError, SettingError
from shard_writer.manifest import Manifest
from shard_writer.remote import Url
from shard_writer.shards import ShardFile
from train.cache import Cache, CachedShard, default_folder, parse_bytes
from train.world import World

_THREADS = 4
_FOR_EVALUATION = 2  # shards that a rank may have open beside those it trains on
_RIGHT, _DAMAGED = 1, 2
_log = logging.getLogger("train")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Access:
    """How shards are got at. The names are those of the flags of `python -m train`."""

    cache_dir: str | None = None  # None: below ~/.cache
    cache_bytes: int | str = "50GB"
    bad_shards: str = "error"

    def __post_init__(self) -> None:
        if self.bad_shards not in ("error", "skip"):
            raise SettingError(f"bad_shards: {self.bad_shards!r}, needed: error or skip")

    @property
    def cache(self) -> Cache:
        """The cache for sets in a store. Raises SettingError for a size that is none."""
        folder = Path(self.cache_dir) if self.cache_dir else default_folder()
        return Cache(folder, parse_bytes(str(self.cache_bytes)))


class Opened(NamedTuple):
    """What opening shards has cost one reader, or several."""

    shards: float = 0
    fetched: float = 0  # of those, from the store
    fetched_bytes: float = 0
    waits: float = 0  # times that a reader waited for a shard
    wait_seconds: float = 0

    def plus(self, other: "Opened") -> "Opened":
        """Both together."""
        return Opened(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Notes:
    """What all readers of a process and its DataLoader workers know, in memory that they share."""

    seen: Any  # a byte a shard: whether its bytes are right, when somebody has looked
    tallies: Any  # Opened of each worker

    @classmethod
    def of(cls, shards: int, workers: int) -> "Notes":
        """Nothing known yet."""
        return cls(RawArray(c_ubyte, shards), RawArray(c_double, workers * len(Opened._fields)))

    def add(self, worker: int, tally: Opened) -> None:
        """Note what one worker did; each has its own place."""
        start = worker * len(tally)
        for place, value in enumerate(tally, start):
            self.tallies[place] += value

    def damaged(self) -> list[int]:
        """Shards that were found to be damaged."""
        return [index for index, seen in enumerate(self.seen) if seen == _DAMAGED]

    def total(self) -> Opened:
        """Of all workers."""
        width = len(Opened._fields)
        rows = (Opened(*self.tallies[i : i + width]) for i in range(0, len(self.tallies), width))
        return Opened(*map(sum, zip(*rows, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """How the readers of a process open shards of a set: at most `ahead` of them before they are needed."""

    manifest: Manifest
    notes: Notes
    ahead: int
    cache: Cache | None = None  # of a set in a store
    skip: bool = False  # leave out damaged shards

    @classmethod
    def of(cls, manifest: Manifest, access: Access, world: World, streams: int) -> "Shelf":
        """For the readers of `world`, each with so many shards open at a time.

        Raises SettingError when these do not fit the cache.
        """
        cache = access.cache if isinstance(manifest.root, Url) else None
        if cache is not None:
            cache.prepare()
        return cls(
            manifest=manifest,
            notes=Notes.of(len(manifest.shards), world.workers),
            ahead=max(_THREADS, streams) if cache is None else _room_ahead(manifest, cache, world, streams),
            cache=cache,
            skip=access.bad_shards == "skip",
        )

    @classmethod
    def for_evaluation(cls, manifest: Manifest, access: Access, world: World) -> "Shelf":
        """For the ranks of `world`, which each have one shard open at a time, beside those that they train on."""
        shelf = cls.of(manifest, access, world, streams=1)
        return shelf if shelf.cache is None else replace(shelf, ahead=_FOR_EVALUATION - 1)

    def opener(self, upcoming: Iterator[int], worker: int = 0) -> "Opener":
        """Opens shards for one reader, which will want those that `upcoming` says, about in that order."""
        return Opener(self, upcoming, worker)

    def is_at_hand(self, index: int) -> bool:
        """Whether a shard is on disk and was found to be right, so that opening it takes no more than handing it to a thread."""
        return self.cache is None and bool(self.notes.seen[index] == _RIGHT)

    def get(self, index: int) -> tuple[ShardFile | None, Opened]:
        """A shard that is what the manifest says, None for a damaged one where those are left out, and what it cost.

        Raises SetError, or StoreError when its store fails.
        """
        seen = self.notes.seen
        if self.skip and seen[index] == _DAMAGED:
            return None, Opened()
        try:
            found = self._from_disk(index) if self.cache is None else self._from_store(self.cache, index)
        except SetError as error:
            seen[index] = _DAMAGED
            if not self.skip:
                raise
            _log.warning("left out: %s", error)
            return None, Opened()
        seen[index] = _RIGHT
        return found

    def _from_disk(self, index: int) -> tuple[ShardFile, Opened]:
        entry = self.manifest.shards[index]
        if self.notes.seen[index] != _RIGHT:
            check_shard(self.manifest.path(entry), entry, self.manifest.info.row_format)
        return self.manifest.open(index), Opened(shards=1)

    def _from_store(self, cache: Cache, index: int) -> tuple[ShardFile, Opened]:
        manifest, entry = self.manifest, self.manifest.shards[index]
        place = manifest.root / entry.file_name
        assert isinstance(place, Url)
        held, fetched = cache.hold(place, entry, checked=self.notes.seen[index] == _RIGHT)
        first = int(manifest.first_sequences[index])
        shard = CachedShard(held, cache.path(entry), manifest.info.row_format, entry.num_sequences, first)
        return shard, Opened(shards=1, fetched=fetched, fetched_bytes=entry.bytes * fetched)


def _room_ahead(manifest: Manifest, cache: Cache, world: World, streams: int) -> int:
    """Shards that each reader may hold beside the one that each of its streams is at."""
    sizes, ranks = [entry.bytes for entry in manifest.shards], world.ranks_here
    wanted, readers, largest = max(_THREADS, streams), ranks * world.workers, max(sizes)
    aside = ranks * _FOR_EVALUATION * largest
    if sum(sizes) + aside <= cache.limit:
        return wanted
    room = (cache.limit - aside) // largest // readers - streams
    if room < 1:
        needed = min(sum(sizes), readers * (streams + 1) * largest) + aside
        raise SettingError(
            f"cache_bytes: {cache.limit:,}, needed: {needed:,} ({ranks} ranks on this machine × {world.workers} workers × {streams} "
            f"streams each, and one ahead, × {largest:,} bytes a shard, or the whole set, and room to evaluate); raise it or set "
            "fewer --streams"
        )
    return min(wanted, room)


@dataclass
class Opener:
    """What one reader has open and what is under way for it. Used as a context, and by one thread."""

    shelf: Shelf
    upcoming: Iterator[int]
    worker: int
    _calls: int = 0  # of `open`,
    _looked: int = 0  # and how many of them `upcoming` has told of
    _open: "WeakValueDictionary[int, ShardFile]" = field(default_factory=WeakValueDictionary)
    _under_way: "dict[int, Future[ShardFile | None]]" = field(default_factory=dict)
    _noting: threading.Lock = field(default_factory=threading.Lock)  # threads of a worker share its place in the notes

    def __enter__(self) -> "Opener":
        self._threads = _Threads(_THREADS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._threads.stop()
        for future in self._under_way.values():
            future.cancel()
        self._under_way.clear()

    def open(self, index: int) -> ShardFile | None:
        """A shard, mapped once however many streams read from it, and let go when none does; see `Shelf.get`."""
        self._calls += 1
        self._look_ahead()
        shard = self._open.get(index) or self._wait(index)
        if shard is not None:
            self._open[index] = shard
        return shard

    def _wait(self, index: int) -> ShardFile | None:
        if index not in self._under_way and self.shelf.is_at_hand(index):
            return self._get(index)
        future = self._under_way.pop(index, None) or self._begin(index)
        if future.done():
            return future.result()
        start = time.perf_counter()
        try:
            if self.shelf.cache is None and future.cancel():  # no thread has begun, and waiting for one takes longer
                return self._get(index)
            return future.result()
        finally:
            self._note(Opened(waits=1, wait_seconds=time.perf_counter() - start))

    def _begin(self, index: int) -> "Future[ShardFile | None]":
        return self._threads.submit(lambda: self._get(index))

    def _get(self, index: int) -> ShardFile | None:
        shard, cost = self.shelf.get(index)
        self._note(cost)
        return shard

    def _note(self, cost: Opened) -> None:
        with self._noting:
            self.shelf.notes.add(self.worker, cost)

    def _look_ahead(self) -> None:
        """Begin what this call of `open` and the next ones ask for: few at first, as opening many holds up the first row."""
        limit = self._calls + min(self.shelf.ahead, self._calls)
        while self._looked < limit and (index := next(self.upcoming, None)) is not None:
            self._looked += 1
            if not (index in self._under_way or index in self._open or self.shelf.is_at_hand(index)):
                self._under_way[index] = self._begin(index)


class _Threads:
    """Threads that, unlike those of concurrent.futures, do not keep a process alive that wants to end."""

    def __init__(self, count: int) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, call: Callable[[], Result]) -> "Future[Result]":
        future: Future[Result] = Future()
        self._calls.put((future, call))
        return future

    def stop(self) -> None:
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:
                    future.set_exception(error)
            del future, call, item  # or the shard stays open until the next one comes
