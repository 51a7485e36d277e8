"""What Trainer iterates: a ShardLoader with a clock, the comparison of ranks at the first step (G8) and the tally of reads."""

import time
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import chain
from typing import Any

from tokentar.train.data.loader import Batch, ShardLoader
from tokentar.train.data.shard_pool import OpenCosts
from tokentar.train.data.state import damaged_shards
from tokentar.train.distributed.collectives import all_gather, compare_clocks, together
from tokentar.train.trainer.rank_check import compare_ranks
from tokentar.train.trainer.read_counts import Tally

NOTHING: dict[str, Any] = {"rows": 0, "shards": []}


class TrainLoader:
    """Iterates over a loader as it is: an epoch, or what is left of it. `accelerate` leaves it alone as it is no DataLoader."""

    def __init__(self, loader: ShardLoader, recipe: dict[str, Any] | None = None) -> None:
        """recipe: settings that must be the same on all ranks, beside those of the order."""
        self.loader, self._recipe = loader, recipe or {}
        self.batch_size = loader.batch_size
        self.waited = 0.0  # seconds spent in the loader
        self.tally = Tally(loader)
        self.left_out_before = NOTHING  # by the runs before this one
        self.listeners: list[Callable[[ShardLoader], None]] = []  # called with the loader after each batch
        self.has_begun = False  # whether a batch was asked for since the position was set
        self._epoch: int | None = None  # that was begun
        self._compared = False

    def __len__(self) -> int:
        return len(self.loader)

    def go_to(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin at a position: what ShardLoader.state_dict gives, and `left_out` where it is known."""
        self.loader.load_state_dict(state)
        self.left_out_before = state.get("left_out", NOTHING)
        self.has_begun, self._epoch = False, None

    @property
    def epochs_done(self) -> float:
        """Epochs that lie behind the batches returned so far, by the steps of the present batch."""
        loader, plan = self.loader, self.loader.plan
        if loader.endless:
            return round(loader.position / plan.samples, 5)
        return loader.epoch + (plan.steps - plan.steps_from(loader.position)) / plan.steps

    def left_out(self) -> dict[str, Any]:
        """Rows that the whole job has left out since its start, and the damaged shards among them. Collective."""
        before, names = self.left_out_before, damaged_shards(self.loader.reading)
        rows, shards = zip(*all_gather((self.loader.left_out, names)), strict=True)
        return {"rows": before["rows"] + sum(rows), "shards": sorted({*before["shards"], *chain(*shards)})}

    def opened(self) -> OpenCosts:
        """What opening shards has cost the whole job. Collective."""
        mine = reduce(OpenCosts.plus, (pool.notes.total() for pool in self.loader.reading.named_pools.values()))
        totals: list[OpenCosts] = all_gather(mine)
        return reduce(OpenCosts.plus, totals)

    def __iter__(self) -> Iterator[Batch]:
        self.has_begun = True
        # Trainer takes as many batches as an epoch has and does not ask for the end of it
        if self._epoch == self.loader.epoch:
            self.loader.set_epoch(self._epoch + 1)
        self._epoch = self.loader.epoch
        batches = iter(self.loader)
        while True:
            start = time.perf_counter()
            batch = next(batches, None) if self._compared else self._first(batches)
            self.waited += time.perf_counter() - start
            if batch is None:
                return
            self.tally.add(self.loader.epochs_read, self.loader.sample_numbers)
            for listener in self.listeners:
                listener(self.loader)
            yield batch

    def _first(self, batches: Iterator[Batch]) -> Batch | None:
        """The first batch, which every rank must get, and which must be another one on each."""
        batch = together(lambda: next(batches, None))
        compare_clocks()
        compare_ranks(self.loader, self._recipe)
        self._compared = True
        return batch
