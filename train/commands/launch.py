"""tokentar train: training takes a process for each GPU, which torchrun starts; this says what to type."""

import shlex
import sys
from collections.abc import Sequence

COMMAND = "torchrun --nproc-per-node gpu -m tokentar.train"  # gpu: as many processes as this machine has GPUs


def main(prog: str, argv: Sequence[str]) -> int:
    """Print the command line that trains; with --help, the flags of training."""
    del prog
    if {"-h", "--help"} & set(argv):
        from tokentar.train.commands.train import run

        run(COMMAND, argv)
    print(
        f"error: torchrun starts training, with a process for each GPU; type:\n  {COMMAND} {shlex.join(argv)}",
        file=sys.stderr,
    )
    return 2
