"""tokentar write: tokenize documents, pack them into sequences and write them as numbered shards."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields

from tokentar.shard_writer.commands.summary import summary
from tokentar.shard_writer.config import recipes
from tokentar.shard_writer.engines import local
from tokentar.shard_writer.writing.arguments import WriteArguments


def main(prog: str, argv: Sequence[str]) -> int:
    """Write a set as the flags say."""
    (arguments,) = recipes.parse([WriteArguments], "write", argv, prog, str(WriteArguments.__doc__))
    start = time.monotonic()
    if arguments.engine == "local" and arguments.num_workers:
        local.begin()  # it imports what workers need while this process imports the rest
    load_transformers_without_torch()
    from tokentar.shard_writer.writing.write import write_or_find

    manifest, is_new = write_or_find(**{field.name: getattr(arguments, field.name) for field in fields(arguments)})
    print(summary(manifest, time.monotonic() - start if is_new else None))
    return 0


def load_transformers_without_torch() -> None:
    """Tokenizers do without torch, whose import takes longer than all the rest of the start.

    transformers looks for it once; what else wants it later still finds it.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # or it says that it has no models
    if "torch" in sys.modules or "transformers" in sys.modules:  # the latter knows by now whether there is torch
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        from transformers import AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]
