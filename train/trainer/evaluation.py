"""Exact evaluation: the sum of all token losses over the number of tokens, each validation sequence once, on any number of ranks."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from accelerate.data_loader import DataLoaderStateMixin  # type: ignore[import-untyped]
from accelerate.state import GradientState  # type: ignore[import-untyped]
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SettingError
from tokentar.train.data.batches import IGNORED, labels_of, position_ids
from tokentar.train.data.loader import Batch
from tokentar.train.data.prefetch import Prefetcher
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.distributed.world import World


class ShardEvalLoader(DataLoaderStateMixin):  # type: ignore[misc]  # untyped
    """What Trainer evaluates on: a set of shards, in batches of equal shape, equally many on every rank.

    in_order: rank 0 has the first batch, rank 1 the next, and so on, so that what Trainer gathers of all ranks stands in
    the order of the set; otherwise each rank has a range of its own, and opens only the shards of that. As a loader of
    accelerate, it tells `gather_for_metrics` which rows of the last batch only fill it up.
    """

    def __init__(
        self, pool: ShardPool, world: World, batch_size: int, *, separate_documents: bool, in_order: bool
    ) -> None:
        self.pool, self._world, self.batch_size = pool, world, batch_size
        self._separate_documents, self._in_order = separate_documents, in_order
        self.gradient_state = GradientState()
        self.dataset = range(int(pool.manifest.num_sequences.sum()))  # Trainer and accelerate ask for its length
        self.total_batch_size, self._drop_last = batch_size * world.world_size, False

    def __len__(self) -> int:
        """Batches of each rank."""
        return -(-len(self.dataset) // self.total_batch_size)

    def __iter__(self) -> Iterator[Batch]:
        self.begin()
        try:
            numbers = row_numbers(len(self.dataset), self._world, self.batch_size, in_order=self._in_order)
            rows = batches(self.pool, numbers, self.batch_size, len(self), separate_documents=self._separate_documents)
            for number, batch in enumerate(rows, 1):
                self.end_of_dataloader = number == len(self)
                yield batch
        finally:
            self.end()


def row_numbers(total: int, world: World, batch_size: int, *, in_order: bool) -> NDArray[np.int64]:
    """Numbers of the rows of a set of `total` that a rank has, ascending, int64: all ranks together have each once."""
    if not in_order:
        first, stop = (total * rank // world.world_size for rank in (world.rank, world.rank + 1))
        return np.arange(first, stop)
    starts = np.arange(world.rank * batch_size, total, world.world_size * batch_size)
    numbers = (starts[:, None] + np.arange(batch_size)).ravel()
    return numbers[numbers < total]


def batches(
    pool: ShardPool, numbers: NDArray[np.int64], batch_size: int, count: int, *, separate_documents: bool
) -> Iterator[Batch]:
    """`count` batches of the rows with these numbers, all of the same shape, as FSDP needs.

    Rows that fill one up, or are of damaged shards that are left out, have no labels and count nothing.
    """
    info, rows = pool.manifest.info, _rows(pool, numbers)
    for _ in range(count):
        ids = np.zeros((batch_size, info.seq_length), np.int64)
        is_there = np.zeros(batch_size, np.bool_)
        for i, row in enumerate(islice(rows, batch_size)):
            if row is not None:
                ids[i], is_there[i] = row, True
        positions = position_ids(ids, info.tokenizer.eos_token_id) if separate_documents else None
        eos = info.tokenizer.eos_token_id
        labels = np.array(labels_of(ids, eos, is_padded=info.is_padded, is_there=is_there, positions=positions))
        batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        if positions is not None:
            batch["position_ids"] = torch.from_numpy(positions)
        yield batch


def _rows(pool: ShardPool, numbers: NDArray[np.int64]) -> Iterator[NDArray[np.generic] | None]:
    """Rows of a set by their place in it, ascending; one shard open at a time. None for one that is left out."""
    ends = np.cumsum(pool.manifest.num_sequences)
    shards = np.searchsorted(ends, numbers, side="right")
    with Prefetcher(pool, iter(np.unique(shards).tolist())) as opener:
        for index in np.unique(shards).tolist():
            shard = opener.open(index)
            mine = slice(*np.searchsorted(shards, [index, index + 1]).tolist())
            first = ends[index] - pool.manifest.num_sequences[index]
            for row in (numbers[mine] - first).tolist():
                yield None if shard is None else shard.rows[row]
            del shard  # or two would be open


class LossSum:
    """The sum of the losses of all tokens of this rank's batches, and their number."""

    def __init__(self) -> None:
        self.loss, self.tokens = 0.0, 0

    def add(self, mean: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a batch: the mean loss over its predicted tokens, and its labels, (batch, seq_length)."""
        if predicted := int((labels[:, 1:] != IGNORED).sum()):  # else the mean may be no number
            self.loss, self.tokens = self.loss + float(mean) * predicted, self.tokens + predicted


def mean_of(sums: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """Mean loss over the tokens of all ranks, and their number. Raises SettingError when there are none."""
    tokens = sum(count for _, count in sums)
    if not tokens:
        raise SettingError("evaluate: no token to predict: sequences of one token have none; write longer ones")
    return math.fsum(loss for loss, _ in sums) / tokens, tokens


def perplexity(loss: float) -> float:
    """exp(loss), or infinity where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
