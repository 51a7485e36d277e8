"""Ctrl-C and SIGTERM while a command starts."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = 128 + signal.SIGINT
_LINE = b"interrupted while starting; nothing was done\n"


@contextmanager
def end_at_once() -> Iterator[None]:
    """Around imports: Ctrl-C and SIGTERM end the process, with one line on standard error.

    An exception would not do: Python prints some that come in the middle of an import, and libraries catch others.
    """
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, _LINE)
    os._exit(STATUS)
