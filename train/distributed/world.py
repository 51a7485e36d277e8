"""Who am I: the one module that reads RANK, WORLD_SIZE, LOCAL_WORLD_SIZE or the DataLoader's worker number. Everybody else is told."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tokentar.shard_writer.errors import SettingError

Stage = Callable[[Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True)
class World:
    """One reader among many: rank of world_size processes, worker of num_workers in each (0: the process itself reads)."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise SettingError(f"world_size: {self.world_size}, needed: at least 1")
        if not 0 <= self.rank < self.world_size:
            raise SettingError(
                f"rank: {self.rank}, needed: 0 … {self.world_size - 1} (world_size is {self.world_size})"
            )
        if self.num_workers < 0:
            raise SettingError(f"num_workers: {self.num_workers}, needed: 0 or more")

    @classmethod
    def detect(cls, rank: int | None = None, world_size: int | None = None, num_workers: int = 0) -> "World":
        """This process; where the arguments are None, by torch.distributed if it is at work, or by torchrun's variables.

        Alone where there is none of these. Raises SettingError for half of them.
        """
        if (rank is None) != (world_size is None):
            raise SettingError(f"rank {rank} and world_size {world_size}: give both or neither")
        if rank is None or world_size is None:
            rank, world_size = _of_process_group() or _of_environment() or (0, 1)
        return cls(rank, world_size, 0, num_workers)

    @property
    def workers(self) -> int:
        """Readers in each rank."""
        return max(1, self.num_workers)

    @property
    def readers(self) -> int:
        """Readers in the whole job."""
        return self.world_size * self.workers

    @property
    def ranks_here(self) -> int:
        """Ranks on this machine, as torchrun says; where it says nothing, all."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    def in_worker(self) -> "World":
        """The same, seen from the DataLoader worker that calls this."""
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return self if info is None else replace(self, worker=info.id, num_workers=info.num_workers)

    def starting_at(self, sample: int) -> "World":
        """The same, turned so that rank 0 takes sample number `sample`, rank 1 the next one, and so on."""
        return replace(self, rank=(self.rank + sample) % self.world_size)

    def with_worker(self, worker: int) -> "World":
        """The same as another worker of the same rank."""
        return replace(self, worker=worker)

    def sees(self, split: Stage) -> Stage:
        """A WebDataset splitter as a pipeline stage that this world, and not the process's environment, decides."""

        def stage(source: Iterable[Any]) -> Iterator[Any]:
            with self._environment():
                dealt = list(split(source))
            return iter(dealt)

        return stage

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """WebDataset's own variables, which it reads before anything else, set for a moment."""
        mine = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "WORKER": self.worker, "NUM_WORKERS": self.workers}
        before = {name: os.environ.get(name) for name in mine}
        os.environ.update({name: str(value) for name, value in mine.items()})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _of_process_group() -> tuple[int, int] | None:
    """Rank and world size by torch.distributed, which whoever has it at work has imported."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _of_environment() -> tuple[int, int] | None:
    """Rank and world size by torchrun's variables. Raises SettingError where one is missing: all would be rank 0."""
    found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if set(found.values()) == {None}:
        return None
    try:
        return int(str(found["RANK"])), int(str(found["WORLD_SIZE"]))
    except ValueError:
        raise SettingError(
            f"environment: {found}, needed: two numbers or neither; start with torchrun, or give rank and world_size"
        ) from None


def is_main_process() -> bool:
    """Whether this process speaks for the whole job."""
    return not name_of_rank()


def name_of_rank() -> str:
    """`rank 3: `, to be put before what a process says that does not speak for the whole job; else nothing."""
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "
