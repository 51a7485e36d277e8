"""The commands as functions: what they would do with these words, in this process."""

from collections.abc import Sequence

from tokentar.__main__ import main
from tokentar.train.commands import train


def train_main(argv: Sequence[str]) -> int:
    """torchrun -m tokentar.train."""
    return train.main("tokentar.train", argv)


def plan_main(argv: Sequence[str]) -> int:
    """tokentar plan."""
    return main(["plan", *argv])
