"""python -m shard_writer, from the root of the repository; everywhere else the command is `tokentar`."""

import sys

try:
    from tokentar.shard_writer.commands.main import COMMANDS, main
except ModuleNotFoundError as error:
    if error.name != "tokentar":
        raise
    sys.exit(
        "error: tokentar is not installed here; `pip install --constraint constraints.txt .`, then `tokentar write …`"
    )

if __name__ == "__main__":
    sys.exit(main("python -m shard_writer", COMMANDS, sys.argv[1:]))
