"""Shards opened by threads before they are needed."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tokentar.shard_writer.format.shards import ShardFile
from tokentar.train.data.shard_pool import THREADS, OpenCosts, ShardPool

Result = TypeVar("Result")


@dataclass
class Prefetcher:
    """What one reader has open and what is under way for it. Used as a context, and by one thread."""

    pool: ShardPool
    upcoming: Iterator[int]
    worker: int = 0
    _calls: int = 0  # of `open`,
    _looked: int = 0  # and how many of them `upcoming` has told of
    _open: "WeakValueDictionary[int, ShardFile]" = field(default_factory=WeakValueDictionary)
    _under_way: "dict[int, Future[ShardFile | None]]" = field(default_factory=dict)
    _noting: threading.Lock = field(default_factory=threading.Lock)  # threads of a worker share its place in the notes

    def __enter__(self) -> "Prefetcher":
        self._threads = _Threads(THREADS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._threads.stop()
        for future in self._under_way.values():
            future.cancel()
        self._under_way.clear()

    def open(self, index: int) -> ShardFile | None:
        """A shard, mapped once however many streams read from it, and let go when none does; see `ShardPool.get`."""
        self._calls += 1
        self._look_ahead()
        shard = self._open.get(index) or self._wait(index)
        if shard is not None:
            self._open[index] = shard
        return shard

    def _wait(self, index: int) -> ShardFile | None:
        if index not in self._under_way and self.pool.is_ready(index):
            return self._get(index)
        future = self._under_way.pop(index, None) or self._begin(index)
        if future.done():
            return future.result()
        start = time.perf_counter()
        try:
            if self.pool.cache is None and future.cancel():  # no thread has begun, and waiting for one takes longer
                return self._get(index)
            return future.result()
        finally:
            self._note(OpenCosts(waits=1, wait_seconds=time.perf_counter() - start))

    def _begin(self, index: int) -> "Future[ShardFile | None]":
        return self._threads.submit(lambda: self._get(index))

    def _get(self, index: int) -> ShardFile | None:
        shard, cost = self.pool.get(index)
        self._note(cost)
        return shard

    def _note(self, cost: OpenCosts) -> None:
        with self._noting:
            self.pool.notes.add(self.worker, cost)

    def _look_ahead(self) -> None:
        """Begin what this call of `open` and the next ones ask for: few at first, as opening many holds up the first row."""
        limit = self._calls + min(self.pool.ahead, self._calls)
        while self._looked < limit and (index := next(self.upcoming, None)) is not None:
            self._looked += 1
            if not (index in self._under_way or index in self._open or self.pool.is_ready(index)):
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
