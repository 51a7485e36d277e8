"""How many streams a job reads, and how samples are dealt to ranks and workers: pure arithmetic."""

import math

from tokentar.shard_writer.errors import SettingError

DEFAULT_STREAMS = 192  # 64 × 3: most numbers of ranks and workers divide it
_LOSS = 64  # the default number of streams leaves out at most one row in so many


def share(start: int, stop: int, part: int, parts: int) -> range:
    """What part number `part` of `parts` gets when numbers are dealt in turn: all j with start ≤ j·parts + part < stop."""
    return range(-((part - start) // parts), -((part - stop) // parts))


def default_streams(rows: int, readers: int) -> int:
    """The number of streams for a set of `rows` sequences and `readers` = ranks × workers.

    The least common multiple of 192 and `readers`, or, where its last, incomplete round would leave out more than one
    row in 64, the largest of its divisors that `readers` divides and that does not (or that leaves out least). Raises
    SettingError when there are fewer rows than readers.
    """
    if rows < readers:
        raise SettingError(
            f"{rows} sequences for {readers} ranks × workers: each needs one at least; use fewer workers or ranks, or more data"
        )
    most = math.lcm(DEFAULT_STREAMS, readers)
    candidates = [s for s in range(readers, min(most, rows) + 1, readers) if most % s == 0]
    return max(candidates, key=lambda s: (-max(rows % s, rows // _LOSS), s))


def check_streams(streams: int, readers: int) -> None:
    """Raises SettingError when there is no stream, or `readers` = ranks × workers does not divide their number."""
    if streams < 1:
        raise SettingError(f"streams: {streams}, needed: at least 1")
    if streams % readers:
        works = [n for n in range(1, streams + 1) if streams % n == 0]
        raise SettingError(
            f"streams: {streams} cannot be dealt to {readers} ranks × workers; ranks × workers that work: {works}"
        )
