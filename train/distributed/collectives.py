"""What ranks tell each other before the first step, so that what is wrong on one node stops all of them, at once and by name."""

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from tokentar.shard_writer.errors import SetError, TokentarError

_CLOCKS_APART = 10.0  # seconds
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def all_gather(value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    if not dist.is_available() or not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def together(call: Callable[[], Result]) -> Result:
    """The result of `call`; where it fails on some ranks, SetError on all of them, naming the first one's node. Collective."""
    result, error = None, None
    try:
        result = call()
    except (TokentarError, OSError) as caught:
        error = caught
    failures = all_gather(None if error is None else f"{socket.gethostname()}: {error}")
    if error is not None and len(failures) == 1:
        raise error
    failed = [rank for rank, failure in enumerate(failures) if failure is not None]
    if failed:
        others = f" (and {len(failed) - 1} more of {len(failures)} ranks)" if len(failed) > 1 else ""
        raise SetError(f"rank {failed[0]} on node {failures[failed[0]]}{others}") from error
    return result  # type: ignore[return-value]  # as no rank failed


def odd_one(values: Sequence[Any]) -> tuple[int, int] | None:
    """The first rank whose value differs from that of most, and the first of those; None when all are alike."""
    texts = [repr(value) for value in values]
    usual = Counter(texts).most_common(1)[0][0]  # of two as common, that of the lower rank
    return next(((rank, texts.index(usual)) for rank, text in enumerate(texts) if text != usual), None)


def compare_clocks() -> None:
    """Warn of the rank whose clock differs most from the others', when that is by seconds. Collective."""
    all_gather(None)  # so that all read their clocks at about the same time
    clocks = all_gather((time.time(), socket.gethostname()))
    warning = _clock_warning([clock for clock, _ in clocks], [node for _, node in clocks])
    if warning:
        _log.warning(warning)


def _clock_warning(clocks: list[float], nodes: list[str]) -> str | None:
    """What to say of clocks in seconds, one a rank."""
    middle = sorted(clocks)[len(clocks) // 2]
    rank = max(range(len(clocks)), key=lambda rank: abs(clocks[rank] - middle))
    apart = clocks[rank] - middle
    if abs(apart) <= _CLOCKS_APART:
        return None
    return (
        f"rank {rank} on node {nodes[rank]}: its clock is {apart:+,.0f} s from the others'; set it by NTP, or object stores refuse its "
        "requests and its log lines are out of order"
    )
