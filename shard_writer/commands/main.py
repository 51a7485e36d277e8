"""Finds the command that was typed and turns errors of users into one line on standard error.

Exit status: 0 done; 1 the command could not do it, or found faults; 2 no such command; 130 and 141 as shells count
Ctrl-C and a closed pipe.
"""

import difflib
import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokentar.shard_writer.commands.interrupts import STATUS, end_at_once
from tokentar.shard_writer.errors import TokentarError

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what can be mended outside


@dataclass(frozen=True)
class Command:
    """A command: the module that has its `main`, imported when it is typed, and a line for --help."""

    module: str
    summary: str


_ROOM = "tokentar.shard_writer.commands"
COMMANDS = {
    "write": Command(f"{_ROOM}.write", "tokenize documents, pack them and write numbered shards"),
    "show": Command(f"{_ROOM}.show", "print decoded sequences with their document boundaries"),
    "verify": Command(f"{_ROOM}.verify", "compare every byte of a set with its manifest, and repair it"),
    "reshard": Command(f"{_ROOM}.reshard", "copy a set into another number of shards"),
}


def usage(prog: str, commands: Mapping[str, Command]) -> str:
    """What --help prints."""
    lines = [f"  {name:<8} {command.summary}" for name, command in commands.items()]
    return "\n".join(
        [
            f"usage: {prog} COMMAND …",
            "",
            *lines,
            "",
            f"`{prog} COMMAND --help` lists the flags of a command, `{prog} --version` prints the version.",
        ]
    )


def main(prog: str, commands: Mapping[str, Command], argv: Sequence[str]) -> int:
    """Run a command; returns the exit status."""
    word = argv[0] if argv else ""
    if word in ("-h", "--help"):
        print(usage(prog, commands))
        return 0
    if word == "--version":
        from importlib import metadata

        print(f"tokentar {metadata.version('tokentar')}")
        return 0
    if word not in commands:
        if word:
            print(_no_command(word, commands), file=sys.stderr)
        print(usage(prog, commands), file=sys.stderr)
        return 2
    try:
        return _run(prog, commands[word], argv)
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
        return STATUS
    return 1


def _no_command(word: str, commands: Mapping[str, Command]) -> str:
    near = difflib.get_close_matches(word, commands, n=1)
    return f"error: no command {word!r}" + (f"; nearest: {near[0]}" if near else "")


def _run(prog: str, command: Command, argv: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as on Ctrl-C
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("tokentar").setLevel(logging.INFO)  # and what clients of stores say of themselves is left out
    with end_at_once():
        module = importlib.import_module(command.module)
    status: int = module.main(f"{prog} {argv[0]}", argv[1:])
    sys.stdout.flush()
    return status
