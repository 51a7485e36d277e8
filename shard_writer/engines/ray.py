"""Ray as an engine: the same steps as tasks on a cluster, behind the interface of local.py.

A task whose worker or node is lost runs again elsewhere. Spool and output lie on storage that all nodes share, and all
nodes run the same code: both are looked at on each of them before its first task. Ray is imported only when asked for.
"""

import importlib
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from tokentar.shard_writer.engines.local import Engine, one_core
from tokentar.shard_writer.errors import SettingError, StoreError, TokentarError
from tokentar.shard_writer.storage import files
from tokentar.shard_writer.versions import difference, versions

Result = TypeVar("Result")
_RETRIES = 5  # of a task whose worker or node was lost
_PATIENCE = 10  # seconds for an address to answer
_STORE_BYTES = 256 << 20  # shared memory of a Ray of our own: hardly anything goes through it
_AHEAD = 2  # tasks under way for each core


@contextmanager
def connected(address: str | None, cores: int) -> Iterator[None]:
    """A Ray to work on: the one at `address` ("auto": that of this machine), or one of our own with so many cores.

    One that the caller has started already is used and left as it is. Raises SettingError when Ray is not installed or the address
    does not answer.
    """
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        own = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        ray.init(address="local", **own, **quiet)
    else:
        _probe(address)
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SettingError(f"ray_address: {address}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise SettingError(
            "engine: ray, but Ray is not installed; `pip install tokentar[ray]`, or use --engine local"
        ) from None


def _probe(address: str) -> None:
    """Raises SettingError when nothing answers: Ray itself would try for many minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise SettingError(
            f"ray_address: {address}, needed: HOST:PORT of a running cluster or `auto`; run the command on a node of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise SettingError(
            f"ray_address: {address} does not answer ({error.strerror or error}); start one with `ray start --head`, "
            "or leave --ray_address out for a Ray of its own on this machine"
        ) from None


@contextmanager
def engine(workers: int | None, prepare: Callable[[Any], None], argument: Any, shared_file: Path) -> Iterator[Engine]:
    """An engine of the Ray that is connected: `workers` tasks at a time, or enough to keep all cores of the cluster at work.

    Every worker process runs prepare(argument) first. shared_file: a file that every node must see as it is here.
    """
    ray = _ray()
    cores = int(ray.cluster_resources().get("CPU", 0))
    if not cores:
        raise TokentarError("Ray: the cluster has no CPU to run on; start nodes with `ray start --address …`")
    setup = Setup(
        prepare=prepare,
        argument=argument,
        shared_file=shared_file.absolute(),
        content=shared_file.read_bytes(),
        folder=Path.cwd(),
        versions=versions(),
    )
    with RayExecutor(ray, ray.put(setup)) as pool:
        yield Engine(pool, workers or _AHEAD * cores)


class RayExecutor(Executor):
    """Calls as Ray tasks of one core each."""

    def __init__(self, ray: Any, setup: Any) -> None:
        self._ray, self._setup = ray, setup
        options = {"num_cpus": 1, "max_retries": _RETRIES, "scheduling_strategy": "SPREAD"}
        self._task = ray.remote(**options)(_call)
        self._under_way: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        """Run `fn` somewhere in the cluster."""
        call = partial(fn, *args, **kwargs)
        reference = self._task.remote([self._setup], call)  # in a list, else Ray would send what it refers to
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()
        self._under_way[future] = reference
        reference.future().add_done_callback(partial(self._settle, future))
        return future

    def _settle(self, ours: Future[Any], theirs: Future[Any]) -> None:
        self._under_way.pop(ours, None)
        error = theirs.exception()
        if error is None:
            ours.set_result(theirs.result())
        else:
            ours.set_exception(_worded(error))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End what is still under way: only after an error, as it would be done again anyway."""
        for reference in list(self._under_way.values()):
            self._ray.cancel(reference, force=True)


def _worded(error: BaseException) -> BaseException:
    """What a call raised on its node, or what Ray says of a task that it has given up."""
    cause: BaseException | None = getattr(error, "cause", None)
    if cause is not None:
        cause.add_note(str(error))  # the traceback on the node
        return cause
    reason = str(error).strip().partition("\n")[0]
    return TokentarError(
        f"Ray gave up a task ({type(error).__name__}: {reason}) after {_RETRIES} more tries; out of memory, killed, or its nodes "
        "lost; the same command goes on from what is done"
    )


# On the nodes


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a worker process does before its first call, and what must hold there."""

    prepare: Callable[[Any], None]
    argument: Any
    shared_file: Path
    content: bytes
    folder: Path  # that relative paths start from
    versions: dict[str, str]

    def begin(self) -> None:
        """Raises TokentarError, naming this node, when it has other code or does not see the output."""
        unlike = difference(versions(), self.versions)
        if unlike:
            raise TokentarError(
                f"node {socket.gethostname()} runs other code: {unlike} where the command runs; install the same on all nodes"
            )
        if not self.shared_file.exists() or self.shared_file.read_bytes() != self.content:
            raise TokentarError(
                f"node {socket.gethostname()} does not see {self.shared_file.parent} as the command does; needed: an output (or, for "
                "a URL, a --spool_dir) on storage that all nodes share"
            )
        if self.folder.is_dir():
            os.chdir(self.folder)
        one_core()
        os.environ[files.ATTEMPT] = f".{socket.gethostname()}-{os.getpid()}"
        self.prepare(self.argument)


@lru_cache(maxsize=1)
def _begin(setup: Any) -> None:
    """Once a process and run."""
    _ray().get(setup).begin()


def _call(setup: list[Any], call: Callable[[], Result]) -> Result:
    """One task."""
    _begin(setup[0])
    try:
        return call()
    except StoreError as error:
        raise StoreError(
            f"{error}; so on node {socket.gethostname()}, whose variables are those that `ray start` was given there"
        ) from error
    except OSError as error:
        if error.errno is None:
            raise
        what = f"{error.strerror or ''} on node {socket.gethostname()}"
        raise OSError(error.errno, what, error.filename) from error
