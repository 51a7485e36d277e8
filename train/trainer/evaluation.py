"""Exact evaluation: the sum of all token losses over the number of tokens, each validation sequence once, on any number of ranks."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SettingError
from tokentar.train.data.batches import IGNORED, labels_of, position_ids
from tokentar.train.data.loader import Batch
from tokentar.train.data.prefetch import Prefetcher
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.distributed.collectives import all_gather
from tokentar.train.distributed.world import World


def batches(pool: ShardPool, world: World, batch_size: int, *, separate_documents: bool) -> Iterator[Batch]:
    """This rank's batches: the rows of all shards end to end are cut into equal ranges, one a rank.

    Every rank gets equally many batches of equal shape, as FSDP needs; rows that fill one up, or are of damaged shards
    that are left out, have no labels and count nothing.
    """
    info, total = pool.manifest.info, int(pool.manifest.num_sequences.sum())
    first, stop = (total * rank // world.world_size for rank in (world.rank, world.rank + 1))
    rows = _rows(pool, np.arange(first, stop))
    for _ in range(0, -(-total // world.world_size), batch_size):
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
    return mean_of(all_gather(sum_of_losses(model, batches, prepare, context)))


def sum_of_losses(
    model: Any,
    batches: Iterable[Batch],
    prepare: Callable[[Batch], Batch],
    context: Callable[[], AbstractContextManager[Any]],
) -> tuple[float, int]:
    """Sum of the losses of all tokens that a model predicts in this rank's batches, and their number."""
    loss, tokens, was_training = 0.0, 0, model.training
    model.eval()
    for batch in batches:
        with torch.no_grad(), context():
            mean = model(**prepare(batch), use_cache=False).loss
        predicted = int((batch["labels"][:, 1:] != IGNORED).sum())
        if predicted:  # else the mean is not a number
            loss, tokens = loss + float(mean) * predicted, tokens + predicted
    model.train(was_training)
    return loss, tokens


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
