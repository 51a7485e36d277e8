"""Exact evaluation: the sum of all token losses over the number of tokens, each validation sequence once, on any number of ranks."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shard_writer.errors import SettingError
from train.batches import IGNORED, labels_of, position_ids
from train.feed import all_gather
from train.loader import Batch
from train.order import share
from train.shelf import Shelf
from train.world import World


def batches(shelf: Shelf, world: World, batch_size: int, *, separate_documents: bool) -> Iterator[Batch]:
    """This rank's batches of all rows in order: rank r of W takes every W-th from row r on.

    Every rank gets equally many batches of equal shape, as FSDP needs; rows that fill one up, or are of damaged shards
    that are left out, have no labels and count nothing.
    """
    info, total = shelf.manifest.info, int(shelf.manifest.num_sequences.sum())
    mine = share(0, total, world.rank, world.world_size)
    most = -(-total // world.world_size)
    rows = _rows(shelf, [j * world.world_size + world.rank for j in mine])
    for _ in range(0, most, batch_size):
        ids = np.zeros((batch_size, info.seq_length), np.int64)
        is_there = np.zeros(batch_size, np.bool_)
        for i, row in enumerate(islice(rows, batch_size)):
            if row is not None:
                ids[i], is_there[i] = row, True
        labels = np.array(labels_of(ids, info, is_there))
        batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        if separate_documents:
            batch["position_ids"] = torch.from_numpy(position_ids(ids, info.tokenizer.eos_token_id))
        yield batch


def _rows(shelf: Shelf, numbers: list[int]) -> Iterator[NDArray[np.generic] | None]:
    """Rows of a set by their place in it, ascending; one shard open at a time."""
    ends = np.cumsum(shelf.manifest.num_sequences)
    places = np.searchsorted(ends, numbers, side="right")
    with shelf.opener(iter(np.unique(places).tolist())) as opener:
        for index in np.unique(places).tolist():
            shard = opener.open(index)
            for number in np.asarray(numbers)[places == index].tolist():
                row = number - int(ends[index] - shelf.manifest.num_sequences[index])
                yield None if shard is None else shard.rows[row]
            del shard  # or two would be open


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
