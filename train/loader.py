"""ShardLoader: batches in the canonical order, for Trainer (trainer.py) or for a training loop of one's own.

    loader = ShardLoader("out/", batch_size=8, seed=0)          # rank and world size from torchrun
    for epoch in range(3):
        for batch in loader: ...                                # {"input_ids": int64 (8, seq_length), "labels": the same}

Every rank gets the same number of batches; an epoch ends on a whole global batch. `accelerate` must not wrap it: it would split again.
"""

import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from shard_writer.errors import SetError, SettingError
from shard_writer.manifest import Manifest
from shard_writer.shards import KEY_DIGITS
from train import order as orders
from train.dataset import Block, ShardRows, Span
from train.plan import Plan
from train.select import select_shards
from train.world import World

BLOCK_BYTES = 1 << 20  # what a worker hands over at once
Batch = dict[str, torch.Tensor]
_log = logging.getLogger("train")


class ShardLoader:
    """Iterates over one epoch at a time; after a whole epoch the next iteration is the next epoch.

    shards: a folder, a brace pattern or glob of a set's shards, or a Manifest. batch_size: sequences a rank gets at once.
    global_batch_size: sequences an optimizer step trains on in all, a multiple of world_size × batch_size (default: just that).
    streams: see order.py; kept in the state. Raises SettingError or SetError for what could not work, before anything is read.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Manifest,
        *,
        batch_size: int,
        seed: int = 0,
        order: str = "epoch",
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        streams: int | None = None,
        global_batch_size: int | None = None,
    ) -> None:
        if order != "epoch":
            raise SettingError(f"order: {order!r}, needed: epoch")
        self.manifest = shards if isinstance(shards, Manifest) else select_shards(shards)
        self.world = World.detect(rank, world_size, num_workers)
        self.order = orders.build(self.manifest.num_sequences, seed=seed, readers=self.world.readers, streams=streams)
        self.plan = Plan.of(self.order, self.world, batch_size, global_batch_size)
        self.epoch = 0
        self._start = self._returned = (
            0  # samples of the whole job: where this iteration began, and those returned since
        )
        self._numbers = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank."""
        return self.plan.batches

    @property
    def batch_size(self) -> int:
        """Sequences in a batch."""
        return self.plan.batch_size

    @property
    def sample_numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Numbers of the sequences in the batch last returned: (batch_size,) int64."""
        return self._numbers

    @property
    def sample_keys(self) -> list[str]:
        """Keys, as in the tar, of the sequences in the batch last returned."""
        return [f"{number:0{KEY_DIGITS}d}" for number in self._numbers.tolist()]

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch number `epoch`; one that is the next anyway keeps a position loaded from a state."""
        if epoch != self.epoch:
            self.epoch, self._start, self._returned = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """The position of the whole job after the batches returned so far: the same on every rank."""
        return self._identity() | {"epoch": self.epoch, "position": self._start + self._returned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position, with any world size, workers or batch size. Raises SetError when it is of other data or another order."""
        mine = self._identity()
        for key, value in mine.items():
            if state.get(key) != value:
                raise SetError(
                    f"state: {key} is {state.get(key)!r}, this loader's is {value!r}; load it with the same data, seed and streams"
                )
        self.epoch, self._start, self._returned = state["epoch"], state["position"], 0

    def _identity(self) -> dict[str, Any]:
        return {
            "order": "epoch",
            "seed": self.order.seed,
            "streams": self.order.streams,
            "fingerprint": self.manifest.fingerprint,
        }

    def __iter__(self) -> Iterator[Batch]:
        start, self._returned = self._start, 0
        span = Span(self.epoch, start, start + self.plan.usable(self.order.samples - start))
        for numbers, ids in self._batches(span):
            self._numbers = numbers
            self._returned += self.plan.samples_per_batch
            yield {"input_ids": (tokens := torch.from_numpy(ids)), "labels": tokens}
        self.epoch, self._start, self._returned = self.epoch + 1, 0, 0

    def _batches(self, span: Span) -> Iterator[Block]:
        """This rank's rows of a span as int64 batches."""
        if not self.world.num_workers:
            yield from ShardRows(self.manifest, self.order, self.world, span, self.batch_size, np.dtype(np.int64))
            return
        info = self.manifest.info
        block_rows = max(1, BLOCK_BYTES // info.row_format.payload)
        rows = ShardRows(self.manifest, self.order, self.world, span, block_rows, info.row_format.dtype)
        workers = DataLoader(
            rows,
            batch_size=None,
            num_workers=self.world.num_workers,
            collate_fn=_as_is,  # type: ignore[arg-type]
            generator=torch.Generator(),  # its own, so that the global one, which dropout draws from, does not move
        )
        yield from rebatch(iter(workers), self.world.num_workers, self.batch_size, info.seq_length)


def rebatch(blocks: Iterator[Block], workers: int, batch_size: int, seq_length: int) -> Iterator[Block]:
    """Interleave the workers' rows, one from each in turn, into int64 batches of batch_size; what fills no batch is not yielded.

    blocks: one block of each worker in turn, all of equal size but the last round's.
    """
    numbers, ids, filled = _empty_batch(batch_size, seq_length)
    while turn := [block for _ in range(workers) if (block := next(blocks, None)) is not None]:
        taken = 0
        total = sum(len(block[0]) for block in turn)
        while taken < total:
            count = min(batch_size - filled, total - taken)
            for lane in range(min(workers, count)):
                worker, row = (taken + lane) % workers, (taken + lane) // workers
                target = slice(filled + lane, filled + count, workers)
                rows = slice(row, row + len(range(filled + lane, filled + count, workers)))
                numbers[target] = turn[worker][0][rows]
                ids[target] = turn[worker][1][rows]
            filled, taken = filled + count, taken + count
            if filled == batch_size:
                yield numbers, ids
                numbers, ids, filled = _empty_batch(batch_size, seq_length)


def _empty_batch(batch_size: int, seq_length: int) -> tuple[Any, Any, int]:
    return np.empty(batch_size, np.int64), np.empty((batch_size, seq_length), np.int64), 0


def _as_is(block: Block) -> Block:
    """Blocks stay numpy arrays: pickling them through a pipe is faster than sharing tensors of this size."""
    return block
