"""The command `tokentar`, also `python -m tokentar`: see `tokentar --help`."""

import sys
from collections.abc import Sequence

from tokentar.shard_writer.commands.interrupts import end_at_once

with end_at_once():
    from tokentar.shard_writer.commands import main as dispatcher
    from tokentar.shard_writer.commands.main import Command

COMMANDS = dispatcher.COMMANDS | {
    "trace": Command("tokentar.train.commands.trace", "show the sequences and documents behind a training step"),
    "plan": Command("tokentar.train.commands.plan", "show what a training job on a set would do"),
    "train": Command("tokentar.train.commands.launch", "train a model: prints the torchrun command line to type"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    return dispatcher.main("tokentar", COMMANDS, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
