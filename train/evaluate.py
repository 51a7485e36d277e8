"""Exact evaluation: the sum of all token losses over the number of tokens, each validation sequence once, on any number of ranks."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shard_writer.errors import SettingError
from shard_writer.manifest import Manifest
from train.batches import IGNORED, labels_of, position_ids
from train.feed import all_gather
from train.loader import Batch
from train.order import share
from train.world import World


def batches(manifest: Manifest, world: World, batch_size: int, *, separate_documents: bool) -> Iterator[Batch]:
    """This rank's batches of all rows in order: rank r of W takes every W-th from row r on.

    Every rank gets equally many batches of equal shape, as FSDP needs; rows that fill one up have no labels and count
    nothing.
    """
    total = int(manifest.num_sequences.sum())
    mine = share(0, total, world.rank, world.world_size)
    most = -(-total // world.world_size)
    rows = _rows(manifest, [j * world.world_size + world.rank for j in mine])
    for start in range(0, most, batch_size):
        ids = np.zeros((batch_size, manifest.info.seq_length), np.int64)
        labels = np.full_like(ids, IGNORED)
        count = min(batch_size, max(0, len(mine) - start))
        for i in range(count):
            ids[i] = next(rows)
        labels[:count] = labels_of(ids[:count], manifest.info)
        batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        if separate_documents:
            batch["position_ids"] = torch.from_numpy(position_ids(ids, manifest.info.tokenizer.eos_token_id))
        yield batch


def _rows(manifest: Manifest, numbers: list[int]) -> Iterator[NDArray[np.generic]]:
    """Rows of a set by their place in it, ascending; one shard open at a time."""
    ends = np.cumsum(manifest.num_sequences)
    opened, shard = -1, None
    for number in numbers:
        index = int(np.searchsorted(ends, number, side="right"))
        if shard is None or index != opened:
            opened, shard = index, manifest.open(index)
        yield shard.rows[number - int(ends[index] - manifest.num_sequences[index])]


def mean_loss(
    model: Any,
    batches: Iterable[Batch],
    prepare: Callable[[Batch], Batch],
    context: Callable[[], AbstractContextManager[Any]],
) -> tuple[float, int]:
    """Mean loss over all predicted tokens of all ranks' batches, and their number. Collective: all ranks call it.

    prepare moves a batch to the device, context is what the forward pass runs in. Raises SettingError when no token is
    predicted.
    """
    total, was_training = LossSum(), model.training
    model.eval()
    for batch in batches:
        with torch.no_grad(), context():
            loss = model(**prepare(batch), use_cache=False).loss
        total.add(float(loss), batch["labels"])
    model.train(was_training)
    return total.over_ranks()


class LossSum:
    """Adds up token losses in double precision."""

    def __init__(self) -> None:
        self.loss, self.tokens = 0.0, 0

    def add(self, mean_loss: float, labels: torch.Tensor) -> None:
        """Add a batch by its mean loss over the labels that its model predicts: all but the first of a row."""
        tokens = int((labels[:, 1:] != IGNORED).sum())
        if tokens:
            self.loss, self.tokens = self.loss + mean_loss * tokens, self.tokens + tokens

    def over_ranks(self) -> tuple[float, int]:
        """Mean loss and tokens of all ranks. Collective. Raises SettingError when there are none."""
        parts = all_gather((self.loss, self.tokens))
        tokens = sum(count for _, count in parts)
        if not tokens:
            raise SettingError("evaluate: no token to predict: sequences of one token have none; write longer ones")
        return math.fsum(loss for loss, _ in parts) / tokens, tokens


def perplexity(loss: float) -> float:
    """exp(loss), or infinity where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
