"""Before the first step the ranks compare what they read (G8)."""

import socket
from dataclasses import dataclass
from typing import Any

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.versions import versions
from tokentar.train.data.loader import ShardLoader
from tokentar.train.distributed.collectives import all_gather, odd_one


@dataclass(frozen=True)
class Report:
    """What one rank tells the others about its first batch."""

    state: dict[str, Any]  # what must be the same on all
    rank: int  # as its loader has it
    numbers: list[int]  # sequences that no other rank may read
    node: str

    @classmethod
    def of(cls, loader: ShardLoader, recipe: dict[str, Any]) -> "Report":
        """Streams that resample may draw the same, and so may two epochs in one batch: these have no such sequences."""
        alone = loader.order.kind != "resample" and loader.is_of_one_epoch
        mine = {key: value for key, value in loader.state_dict().items() if key != "damaged_shards"}
        state = versions() | mine | recipe
        numbers = loader.sample_numbers.tolist() if alone else []
        return cls(state, loader.world.rank, numbers, socket.gethostname())


def compare_ranks(loader: ShardLoader, recipe: dict[str, Any] | None = None) -> None:
    """Raises SetError, on every rank, when ranks read the same sequence or are not at the same place of the same data (G8)."""
    reports: list[Report] = all_gather(Report.of(loader, recipe or {}))
    for key in reports[0].state:
        values = [report.state.get(key) for report in reports]
        if odd := odd_one(values):
            rank, other = odd
            raise SetError(
                f"rank {rank} has {key} {values[rank]!r}, rank {other} has {values[other]!r}; all ranks need the same data, recipe and "
                f"code (rank {rank} is on node {reports[rank].node})"
            )
    _refuse_sharing([report.numbers for report in reports], "read sequence")
    _refuse_sharing([[report.rank] for report in reports], "read as rank")


def _refuse_sharing(by_rank: list[list[int]], what: str) -> None:
    owner: dict[int, int] = {}
    for rank, numbers in enumerate(by_rank):
        for number in numbers:
            if owner.setdefault(number, rank) != rank:
                raise SetError(
                    f"ranks {owner[number]} and {rank} both {what} {number}; something splits or repeats the data below tokentar: "
                    "give ShardLoader each process's own rank, and do not pass it through accelerate"
                )
