"""tokentar train: training takes a process for each GPU, which torchrun starts; this says what to type."""

import shlex
import sys
from collections.abc import Sequence

from tokentar.shard_writer.commands.interrupts import end_at_once

COMMAND = "torchrun --nproc-per-node gpu -m tokentar.train"  # gpu: as many processes as this machine has GPUs


def main(prog: str, argv: Sequence[str]) -> int:
    """Print the command line that trains; with --help, the flags of training."""
    if {"-h", "--help"} & set(argv):
        with end_at_once():
            import tokentar.train.trainer.trainer  # noqa: F401  # torch and transformers, which take seconds
            from tokentar.train.commands.train import run

        run(COMMAND, argv)
    print(
        f"error: {prog} starts no processes, torchrun does; type this (without a GPU: --nproc-per-node 1):\n"
        f"  {shlex.join([*COMMAND.split(), *argv])}",
        file=sys.stderr,
    )
    return 2
