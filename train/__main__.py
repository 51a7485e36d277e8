"""torchrun --nproc-per-node N -m tokentar.train; from the root of the repository also `-m train`."""

import sys

try:
    from tokentar.shard_writer.commands.interrupts import end_at_once
except ModuleNotFoundError as error:
    if error.name != "tokentar":
        raise
    sys.exit(
        "error: tokentar is not installed here; `pip install --constraint constraints.txt .`, then `torchrun -m tokentar.train …`"
    )

if __name__ == "__main__":
    with end_at_once():
        import tokentar.train.trainer.trainer  # noqa: F401  # torch and transformers, which take seconds
        from tokentar.train.commands.train import main
    sys.exit(main("torchrun -m tokentar.train", sys.argv[1:]))
