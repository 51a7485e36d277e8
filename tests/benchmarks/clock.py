"""What every contender is measured with, in its own process and environment: the standard library alone."""

import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

Epoch = Callable[[], Iterator[Any]]  # a new pass over int64 batches, tensors (8, seq_length)
_WARM_UP = 0.5  # of the time that counts


def tokens_per_second(epoch: Epoch, seconds: float) -> float:
    """Read epoch after epoch; what the first part of the time gives does not count."""
    batches = chain.from_iterable(start() for start in repeat(epoch))
    _tokens_within(batches, seconds * _WARM_UP)
    start = time.perf_counter()
    tokens = _tokens_within(batches, seconds)
    return tokens / (time.perf_counter() - start)


def _tokens_within(batches: Iterator[Any], seconds: float) -> int:
    tokens, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        tokens += next(batches).numel()
    return tokens


def seconds_to_first(build: Callable[[], Epoch]) -> float:
    """From nothing built, but all imported, to the first batch."""
    start = time.perf_counter()
    next(build()())
    return time.perf_counter() - start
