"""What happens to rows in memory: interleaving those of several workers, position ids. No files, no torch."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.packing import policies
from tokentar.train.data.dataset import Block

IGNORED = -100  # label of what is not trained on


def rebatch(blocks: Iterator[Block], workers: int, batch_size: int, seq_length: int) -> Iterator[Block]:
    """Interleave the workers' rows, one from each in turn, into int64 batches of batch_size; an unfilled one is not yielded.

    blocks: one block of each worker in turn, all of equal size but the last round's.
    """
    numbers, ids = _empty(batch_size, seq_length)
    filled = 0
    while turn := [block for _ in range(workers) if (block := next(blocks, None)) is not None]:
        taken, total = 0, sum(len(block[0]) for block in turn)
        while taken < total:
            count = min(batch_size - filled, total - taken)
            for lane in range(min(workers, count)):
                row, worker = divmod(taken + lane, workers)
                target = range(filled + lane, filled + count, workers)
                source = slice(row, row + len(target))
                numbers[target.start : target.stop : workers] = turn[worker][0][source]
                ids[target.start : target.stop : workers] = turn[worker][1][source]
            filled, taken = filled + count, taken + count
            if filled == batch_size:
                yield numbers, ids
                numbers, ids = _empty(batch_size, seq_length)
                filled = 0


def _empty(batch_size: int, seq_length: int) -> Block:
    return np.empty(batch_size, np.int64), np.empty((batch_size, seq_length), np.int64)


def labels_of(
    ids: NDArray[np.int64],
    eos_token_id: int,
    *,
    is_padded: bool | NDArray[np.bool_] = False,
    is_there: NDArray[np.bool_] | None = None,
    positions: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """What rows of a set are trained on: the ids themselves, or IGNORED where there is nothing to predict.

    Ignored are rows that are not there, ids that only fill up and, with separate documents, the first token of each
    document: nothing before it tells of it. is_padded: whether rows may end in fill, (batch,) bool or one for all.
    is_there: (batch,) bool, None when all are. positions: those of `position_ids`, None when a row is one text. Returns
    shape as ids, (batch, seq_length); `ids` itself when all count.
    """
    ignored = []
    if is_there is not None and not is_there.all():
        ignored.append(~is_there[:, None])
    if np.any(is_padded):
        fill = policies.padding(ids, eos_token_id)
        ignored.append(fill if is_padded is True else fill & np.reshape(is_padded, (-1, 1)))
    if positions is not None:
        ignored.append(positions == 0)
    labels = ids.copy() if ignored else ids
    for places in ignored:
        np.copyto(labels, IGNORED, where=places)
    return labels


def position_ids(ids: NDArray[np.int64], eos_token_id: int) -> NDArray[np.int64]:
    """Positions that restart behind each EOS: shape as ids, (batch, seq_length), int64.

    Without an attention mask, transformers takes such positions for packed documents and keeps attention inside each.
    """
    place = np.arange(ids.shape[1], dtype=np.int64)
    starts = np.zeros_like(ids)
    starts[:, 1:] = np.where(ids[:, :-1] == eos_token_id, place[1:], 0)
    return place - np.maximum.accumulate(starts, axis=1)
