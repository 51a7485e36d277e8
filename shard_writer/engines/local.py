"""Where the steps run: any `concurrent.futures.Executor`. Local processes here, a cluster in ray.py."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from tokentar.shard_writer.errors import TokentarError

_PRELOADED = (
    "tokentar.shard_writer.writing.tokenize_step",
    "tokentar.shard_writer.writing.shard_step",
    "fastokens",
    "tokenizers",
)
_ENDING = (signal.SIGINT, signal.SIGTERM)
Item = TypeVar("Item")
Result = TypeVar("Result")


class SerialExecutor(Executor):
    """Runs each call at once in this process: workers=0, for tests and debuggers."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        """Run `fn` now; an exception goes straight to the caller."""
        future: Future[Result] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _Processes(ProcessPoolExecutor):
    """Finishes the start of a worker before Ctrl-C is heard: else it would start while the main process ends, and fail."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        """Starts a worker too, where all that there are have work."""
        with _interrupts_wait():
            return super().submit(fn, *args, **kwargs)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C and SIGTERM take effect behind the block. Only the main thread hears of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@dataclass(frozen=True)
class Engine:
    """An executor, and how many calls are under way on it at most."""

    pool: Executor
    ahead: int

    def run(self, step: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """See `run`."""
        return run(self.pool, step, items, self.ahead)


def begin() -> None:
    """Start the process that workers are forked from: it imports what they need while this one goes on with something else.

    It inherits that Ctrl-C and SIGTERM, which whole groups of processes get, are not for it: it ends with the main process.
    """
    resource_tracker.ensure_running()  # else the call below starts it, and lets the signals through again
    get_context("forkserver").set_forkserver_preload(list(_PRELOADED))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def local(workers: int, prepare: Callable[[Any], None], argument: Any) -> Iterator[Engine]:
    """An engine of `workers` processes, each of which runs prepare(argument) first. They end at once when the body does."""
    if workers == 0:
        prepare(argument)
        yield Engine(SerialExecutor(), 1)
        return
    begin()
    context = get_context("forkserver")
    theirs, ours = context.Pipe(duplex=False)
    first = (theirs, dict(os.environ), prepare, argument)
    with ours, theirs, _Processes(workers, context, _start_worker, first) as pool:
        try:
            yield Engine(pool, 2 * workers)
        finally:
            ours.close()  # nothing that they hold is needed: what they are at after a failure would be done again anyway


def run(pool: Executor, step: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """step(item) for each item, results as they come, at most `ahead` items under way: lazy inputs stay lazy.

    Raises what a step raises, and TokentarError when a worker process dies.
    """
    source = iter(items)
    pending: set[Future[Result]] = set()
    try:
        pending |= {pool.submit(step, item) for item in islice(source, ahead)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {pool.submit(step, item) for item in islice(source, len(done))}
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise TokentarError(
            "a worker process died (out of memory, killed, or write_shards called at the top of a script without "
            "`if __name__ == '__main__':`); the same command goes on from what is done"
        ) from None


def one_core() -> None:
    """Let this process and its libraries use one core."""
    os.environ |= {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def _start_worker(
    lifeline: Connection, environment: dict[str, str], prepare: Callable[[Any], None], argument: Any
) -> None:
    """The main process's environment of now, one core a worker, no traceback on Ctrl-C, and no life without the main process."""
    os.environ.clear()
    os.environ.update(environment)
    one_core()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # by which the main process ends it
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    prepare(argument)


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end of the pipe is closed: by the main process, or with it."""
    lifeline.poll(None)
    os._exit(1)
