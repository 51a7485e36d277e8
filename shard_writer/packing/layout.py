"""Which tokens go where: pure arithmetic, no files (G1, G2).

All documents of a split form one virtual stream of tokens. A run is a piece of that stream whose documents stand
together in the spool: a cell of hashed documents (shuffle) or a part (input order). Sequence j is tokens j·L …
(j+1)·L-1 of the stream, shard i owns a range of sequences, and what is left behind the last sequence is the tail.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHARD_BYTES, _SMALL_SHARD_BYTES = 64 << 20, 4 << 20
_DIVISIBLE = 192  # 64 × 3: most numbers of ranks and workers divide it, see train/order/units.py
_FEWEST_SHARDS = 24
_CELL_BYTES = 4 << 20
_MOST_CELLS = 4096


@dataclass(frozen=True)
class Piece:
    """Tokens `start` … `stop - 1` of run number `run`."""

    run: int
    start: int
    stop: int


def even_split(total: int, parts: int) -> NDArray[np.int64]:
    """Boundaries that cut range(total) into `parts` ranges equal up to one, longer ones first: shape (parts + 1,), int64."""
    short, longer = divmod(total, parts)
    index = np.arange(parts + 1, dtype=np.int64)
    return index * short + np.minimum(index, longer)


def default_num_shards(num_sequences: int, stride: int) -> int:
    """Shards of at most 64 MiB, of about 4 where there is enough for 24, in a number that divides 192 or is a multiple of it; none empty.

    192 of them as soon as these have 2 MiB each, so that each stream of a reader has a shard of its own.
    """
    size = num_sequences * stride
    wanted = max(
        -(-size // SHARD_BYTES), min(_DIVISIBLE, size // _SMALL_SHARD_BYTES), min(_FEWEST_SHARDS, num_sequences)
    )
    if wanted > _DIVISIBLE:
        return -(-wanted // _DIVISIBLE) * _DIVISIBLE
    divisors = [d for d in range(1, _DIVISIBLE + 1) if _DIVISIBLE % d == 0]
    return next((d for d in divisors if wanted <= d <= num_sequences), divisors_up_to(num_sequences, divisors))


def divisors_up_to(limit: int, divisors: list[int]) -> int:
    """The largest of `divisors` that is at most `limit`."""
    return max(d for d in divisors if d <= limit)


def num_cells(input_bytes: int | None) -> int:
    """How many cells documents are hashed into: about 4 MiB of text each, so that a shard reads little that is not its own."""
    return _MOST_CELLS if input_bytes is None else min(_MOST_CELLS, max(1, input_bytes // _CELL_BYTES))


def cell_of(keys: NDArray[np.uint64], cells: int) -> NDArray[np.int64]:
    """The cell of each key: cells are equal ranges of keys in ascending order. Shape as `keys`, int64."""
    return (((keys >> np.uint64(32)) * np.uint64(cells)) >> np.uint64(32)).astype(np.int64)


def pieces(run_tokens: NDArray[np.int64], start: int, stop: int) -> Iterator[Piece]:
    """The pieces of runs that make up tokens `start` … `stop - 1` of the stream; `run_tokens` has each run's length."""
    ends = np.cumsum(run_tokens)
    run = int(np.searchsorted(ends, start, side="right"))
    while start < stop:
        begin = int(ends[run] - run_tokens[run])
        last = min(stop, int(ends[run]))
        if last > start:
            yield Piece(run, start - begin, last - begin)
        start, run = max(start, last), run + 1
