"""python -m shard_writer write | verify | reshard | show: see `--help` of each."""

import argparse
import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import fields

from shard_writer import engines, open_shards, recipes, remote, write_shards
from shard_writer.arguments import WriteArguments
from shard_writer.errors import TokentarError
from shard_writer.manifest import Manifest

USAGE = """usage: python -m shard_writer COMMAND …

  write    tokenize documents, pack them and write numbered shards   (write --help lists the flags)
  verify   read every byte of a set and compare it with its manifest; write damaged files again
  reshard  copy a set into another number of shards
  show     print decoded sequences with their document boundaries
"""


def write(argv: Sequence[str]) -> int:
    """The command `write`."""
    (arguments,) = recipes.parse(
        [WriteArguments], "write", argv, "python -m shard_writer write", str(WriteArguments.__doc__)
    )
    start = time.monotonic()
    manifest = write_shards(**{field.name: getattr(arguments, field.name) for field in fields(arguments)})
    print(summary(manifest, time.monotonic() - start))
    return 0


def summary(manifest: Manifest, seconds: float) -> str:
    """What a set holds and how fast it was written, in a few lines."""
    lines = []
    for split, totals in manifest.info.splits.items():
        shards = manifest.split(split).shards
        lines.append(
            f"{split}: {totals.documents:,} documents, {totals.tokens:,} tokens = {totals.sequences:,} sequences × "
            f"{manifest.info.seq_length} + {totals.tail} left over; {len(shards)} shards, {sum(e.bytes for e in shards) / 1e6:,.1f} MB"
        )
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in manifest.info.skipped.items())
    lines.append(f"skipped: {skipped or 'nothing'}")
    lines.append(f"{manifest.root}: done in {seconds:.1f} s, {manifest.info.totals.tokens / seconds:,.0f} tokens/s")
    return "\n".join(lines)


def verify(argv: Sequence[str]) -> int:
    """The command `verify`."""
    from shard_writer.repair import repair
    from shard_writer.verify import faults

    parser = argparse.ArgumentParser(
        "python -m shard_writer verify", description="Read every byte of a set; exit status 1 if any differs."
    )
    parser.add_argument("set", help="folder or URL of the set")
    parser.add_argument(
        "--repair", action="store_true", help="first write damaged files again from the input, if that is still there"
    )
    arguments = parser.parse_args(argv)
    if arguments.repair:
        for line in repair(remote.on_disk(remote.place(arguments.set))):
            print(line)
    manifest = open_shards(arguments.set)
    found = list(faults(manifest))
    for fault in found:
        print(fault, file=sys.stderr)
    if found:
        print(f"{manifest.root}: {len(found)} faults; {WAYS_OUT[arguments.repair]}", file=sys.stderr)
        return 1
    size = sum(size for entry in manifest.shards for size, _ in entry.files.values())
    print(f"{manifest.root}: {len(manifest.shards)} shards, {size:,} bytes, all as written")
    return 0


def reshard(argv: Sequence[str]) -> int:
    """The command `reshard`."""
    from shard_writer.reshard import reshard

    parser = argparse.ArgumentParser(
        "python -m shard_writer reshard",
        description="Copy a set into another number of shards, its sequences in their order.",
    )
    parser.add_argument("source", help="folder or URL of the set")
    parser.add_argument("output", help="folder or URL of the new set")
    parser.add_argument("--num_shards", type=int, help="shards of its first split (default: as `write` cuts them)")
    parser.add_argument("--overwrite", action="store_true", help="replace what the output holds")
    parser.add_argument("--spool_dir", help="as with write")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    manifest = reshard(**vars(arguments))
    print(summary(manifest, time.monotonic() - start))
    return 0


def show(argv: Sequence[str]) -> int:
    """The command `show`."""
    from shard_writer.show import load_matching_tokenizer, rows_as_text

    parser = argparse.ArgumentParser(
        "python -m shard_writer show", description="Print decoded sequences with their document boundaries."
    )
    parser.add_argument("set", help="folder or URL of the set")
    parser.add_argument("--rows", type=int, default=3, help="how many sequences (default: 3)")
    parser.add_argument("--split", help="which split (default: all)")
    parser.add_argument(
        "--tokenizer", help="name or folder of the tokenizer (default: the one that dataset.json names)"
    )
    arguments = parser.parse_args(argv)
    manifest = open_shards(arguments.set)
    manifest = manifest.split(arguments.split) if arguments.split else manifest
    for line in rows_as_text(manifest, load_matching_tokenizer(manifest, arguments.tokenizer), arguments.rows):
        print(line)
    return 0


WAYS_OUT = {
    False: "restore these files, write them again with --repair, or write the set again",
    True: "restore these files, or write the set again",
}
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what can be mended outside
COMMANDS = {"write": write, "verify": verify, "reshard": reshard, "show": show}


def main(argv: Sequence[str]) -> int:
    """Run a command; returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("shard_writer").setLevel(logging.INFO)  # and what clients of stores say of themselves is left out
    if not argv or argv[0] not in COMMANDS:
        asked_for_help = argv[:1] in (["-h"], ["--help"])
        print(USAGE, end="", file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    try:
        status = COMMANDS[argv[0]](argv[1:])
        sys.stdout.flush()
        return status
    except TokentarError as error:
        print(f"error: {error}", file=sys.stderr)
    except BrokenPipeError:  # nobody reads what is printed: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails once more as it ends
        return 128 + signal.SIGPIPE
    except OSError as error:
        way_out = "; the same command goes on from what is done" if error.errno in _PASSING else ""
        print(f"error: {error.filename or ''}: {error.strerror or error}{way_out}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from what is done", file=sys.stderr)
    return 1


def _load_transformers_without_torch() -> None:
    """Tokenizers do without torch, whose import takes longer than all the rest of the start.

    transformers looks for it once; what else wants it later still finds it.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # or it says that it has no models
    sys.modules["torch"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        from transformers import AutoTokenizer  # noqa: F401
    finally:
        del sys.modules["torch"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        engines.begin()
    if sys.argv[1:2] in (["write"], ["show"]):
        _load_transformers_without_torch()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as on Ctrl-C
    sys.exit(main(sys.argv[1:]))
