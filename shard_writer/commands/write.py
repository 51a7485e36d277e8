"""tokentar write: tokenize documents, pack them into sequences and write them as numbered shards."""

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tokentar.shard_writer.commands.interrupts import end_at_once
from tokentar.shard_writer.config import recipes
from tokentar.shard_writer.engines import local
from tokentar.shard_writer.writing.arguments import WriteArguments


def main(prog: str, argv: Sequence[str]) -> int:
    """Write a set as the flags say."""
    (arguments,) = recipes.parse([WriteArguments], "write", argv, prog, str(WriteArguments.__doc__))
    start = time.monotonic()
    if arguments.engine == "local" and arguments.num_workers:
        local.begin()  # it imports what workers need while this process imports the rest
    settings: dict[str, Any] = {field.name: getattr(arguments, field.name) for field in fields(arguments)}
    with end_at_once():
        settings["tokenizer"] = _tokenizer(arguments)
        from tokentar.shard_writer.commands.summary import summary
        from tokentar.shard_writer.writing.write import write_or_find

    manifest, is_new = write_or_find(**settings)
    print(summary(manifest, time.monotonic() - start if is_new else None))
    return 0


def _tokenizer(arguments: WriteArguments) -> Any:
    """The tokenizer from its file or, where that will not do, its name, with transformers imported to load it."""
    from tokentar.shard_writer.tokenizing.loading import load_transformers_without_torch
    from tokentar.shard_writer.tokenizing.tokenizer_file import load_for_writing

    found = None if arguments.tokenizer_engine == "transformers" else load_for_writing(arguments.tokenizer)
    if found is not None:
        return found
    load_transformers_without_torch()
    return arguments.tokenizer
