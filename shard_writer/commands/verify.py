"""tokentar verify: compare every byte of a set with its manifest, and write damaged files again."""

import argparse
import sys
from collections.abc import Sequence

from tokentar.shard_writer.format.manifest import open_shards
from tokentar.shard_writer.maintenance.verify import faults
from tokentar.shard_writer.storage import places

WAYS_OUT = {
    False: "restore these files, write them again with --repair, or write the set again",
    True: "restore these files, or write the set again",
}


def main(prog: str, argv: Sequence[str]) -> int:
    """Read a set; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog, description="Read every byte of a set; exit status 1 if any differs.")
    parser.add_argument("set", help="folder or URL of the set")
    parser.add_argument(
        "--repair", action="store_true", help="first write damaged files again from the input, if that is still there"
    )
    arguments = parser.parse_args(argv)
    if arguments.repair:
        from tokentar.shard_writer.maintenance.repair import repair

        for line in repair(places.on_disk(places.place(arguments.set))):
            print(line)
    manifest = open_shards(arguments.set)
    found = list(faults(manifest))
    for fault in found:
        print(fault, file=sys.stderr)
    if found:
        print(f"{manifest.root}: {len(found)} faults; {WAYS_OUT[arguments.repair]}", file=sys.stderr)
        return 1
    size = sum(size for size, _ in manifest.files.values())
    print(f"{manifest.root}: {len(manifest.shards)} shards, {size:,} bytes, all as written")
    return 0
