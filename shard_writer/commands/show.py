"""tokentar show: print decoded sequences with their document boundaries."""

import argparse
from collections.abc import Sequence
from typing import Any

from tokentar.shard_writer.commands.interrupts import end_at_once
from tokentar.shard_writer.format.manifest import Manifest, open_shards
from tokentar.shard_writer.maintenance.show import rows_as_text
from tokentar.shard_writer.tokenizing.loading import load_matching_tokenizer, load_transformers_without_torch
from tokentar.shard_writer.tokenizing.tokenizer_file import load_for_reading


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
    for line in rows_as_text(manifest, _tokenizer(manifest, arguments.tokenizer), arguments.rows):
        print(line)
    return 0


def _tokenizer(manifest: Manifest, name: str | None) -> Any:
    """The tokenizer of a set, by transformers only where its file alone will not do."""
    folder = name or manifest.info.tokenizer.name
    quick = load_for_reading(folder, manifest.info.tokenizer) if folder else None
    if quick is not None:
        return quick
    with end_at_once():
        load_transformers_without_torch()
    return load_matching_tokenizer(manifest, name)
