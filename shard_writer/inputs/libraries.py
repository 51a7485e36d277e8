"""What the libraries that read inputs have to say: no log lines, and their errors in one line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = ("datasets", "huggingface_hub", "fsspec", "httpx", "urllib3", "filelock")


@contextmanager
def silent() -> Iterator[None]:
    """Let none of them log: what they cannot read they raise as well, and our error says it once."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def one_line(error: Exception) -> str:
    """The type of an error and its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
