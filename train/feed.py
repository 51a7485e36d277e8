"""What Trainer iterates: a ShardLoader with a clock, the comparison of ranks at the first step (G8) and the tally of reads."""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_writer.errors import SetError
from shard_writer.versions import versions
from train.agree import all_gather, compare_clocks, odd_one, together
from train.loader import Batch, ShardLoader
from train.shelf import Opened

_MOST_TALLIED = 1 << 26  # sequences; larger sets are not tallied, two bytes a sequence and rank are too much
NOTHING: dict[str, Any] = {"rows": 0, "shards": []}
_PART = 1 << 20  # sequences whose counts the ranks exchange at once


class Feed:
    """Iterates over a loader as it is. `accelerate` leaves it alone because it is no DataLoader."""

    def __init__(self, loader: ShardLoader, recipe: dict[str, Any] | None = None) -> None:
        """recipe: settings that must be the same on all ranks, beside those of the order."""
        self.loader, self._recipe = loader, recipe or {}
        self.batch_size = loader.batch_size
        self.waited = 0.0  # seconds spent in the loader
        self.tally = Tally(loader)
        self.left_out_before = NOTHING  # by the runs before this one
        self._compared = False

    def __len__(self) -> int:
        return len(self.loader)

    def left_out(self) -> dict[str, Any]:
        """Rows of damaged shards that the whole job has left out since its start, and those shards. Collective."""
        shelf, before = self.loader.shelf, self.left_out_before
        names = [shelf.manifest.shards[index].shard for index in shelf.notes.damaged()]
        rows, shards = zip(*all_gather((self.loader.left_out, names)), strict=True)
        return {"rows": before["rows"] + sum(rows), "shards": sorted({*before["shards"], *chain(*shards)})}

    def opened(self) -> Opened:
        """What opening shards has cost the whole job. Collective."""
        totals: list[Opened] = all_gather(self.loader.shelf.notes.total())
        return reduce(Opened.plus, totals)

    def set_epoch(self, epoch: int) -> None:
        """See ShardLoader."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        while True:
            start = time.perf_counter()
            batch = next(batches, None) if self._compared else self._first(batches)
            self.waited += time.perf_counter() - start
            if batch is None:
                return
            self.tally.add(self.loader.epochs_read, self.loader.sample_numbers)
            yield batch

    def _first(self, batches: Iterator[Batch]) -> Batch | None:
        """The first batch, which every rank must get, and which must be another one on each."""
        batch = together(lambda: next(batches, None))
        compare_clocks()
        compare_ranks(self.loader, self._recipe)
        self._compared = True
        return batch


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
        alone = loader.order.kind != "resample" and len(loader.epochs_read) == 1
        state = versions() | loader.state_dict() | recipe
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


class Tally:
    """How often each sequence was read by this rank, and in how many epochs."""

    def __init__(self, loader: ShardLoader) -> None:
        firsts, counts = loader.manifest.first_sequences, loader.manifest.num_sequences
        size = int((firsts + counts).max())
        self._reads: NDArray[np.uint16] | None = np.zeros(size, np.uint16) if size <= _MOST_TALLIED else None
        self._epochs: set[int] = set()
        self.sequences = 0

    def add(self, epochs: range, numbers: NDArray[np.int64]) -> None:
        """Note one batch."""
        self._epochs.update(epochs)
        self.sequences += len(numbers)
        if self._reads is not None:
            np.add.at(self._reads, numbers, 1)

    def by_rank(self) -> list[int]:
        """Sequences read by each rank. Collective: all ranks call it."""
        return all_gather(self.sequences)

    def overlap(self) -> int | None:
        """Reads of all ranks beyond one a sequence and epoch; None for a set too large to tally. Collective."""
        if self._reads is None:
            return None
        parts = (self._reads[start : start + _PART] for start in range(0, len(self._reads), _PART))
        reads = (np.sum(all_gather(part), axis=0, dtype=np.int64) for part in parts)
        return sum(int(np.maximum(part - len(self._epochs), 0).sum()) for part in reads)
