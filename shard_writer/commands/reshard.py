"""tokentar reshard: copy a set into another number of shards, its sequences in their order."""

import argparse
import time
from collections.abc import Sequence

from tokentar.shard_writer.commands.summary import summary
from tokentar.shard_writer.maintenance.reshard import reshard_or_find


def main(prog: str, argv: Sequence[str]) -> int:
    """Reshard a set."""
    parser = argparse.ArgumentParser(
        prog, description="Copy a set into another number of shards, its sequences in their order."
    )
    parser.add_argument("source", help="folder or URL of the set")
    parser.add_argument("output", help="folder or URL of the new set")
    parser.add_argument("--num_shards", type=int, help="shards of its first split (default: as `write` cuts them)")
    parser.add_argument("--overwrite", action="store_true", help="replace what the output holds")
    parser.add_argument("--spool_dir", help="as with write")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    manifest, is_new = reshard_or_find(**vars(arguments))
    print(summary(manifest, time.monotonic() - start if is_new else None))
    return 0
