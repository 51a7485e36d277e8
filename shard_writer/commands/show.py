"""tokentar show: print decoded sequences with their document boundaries."""

import argparse
from collections.abc import Sequence

from tokentar.shard_writer.commands.write import load_transformers_without_torch
from tokentar.shard_writer.format.manifest import open_shards
from tokentar.shard_writer.maintenance.show import rows_as_text
from tokentar.shard_writer.tokenizing.loading import load_matching_tokenizer


def main(prog: str, argv: Sequence[str]) -> int:
    """Print some sequences of a set."""
    parser = argparse.ArgumentParser(prog, description="Print decoded sequences with their document boundaries.")
    parser.add_argument("set", help="folder or URL of the set")
    parser.add_argument("--rows", type=int, default=3, help="how many sequences (default: 3)")
    parser.add_argument("--split", help="which split (default: all)")
    parser.add_argument(
        "--tokenizer", help="name or folder of the tokenizer (default: the one that dataset.json names)"
    )
    arguments = parser.parse_args(argv)
    manifest = open_shards(arguments.set)
    manifest = manifest.split(arguments.split) if arguments.split else manifest
    load_transformers_without_torch()
    for line in rows_as_text(manifest, load_matching_tokenizer(manifest, arguments.tokenizer), arguments.rows):
        print(line)
    return 0
