"""python -m train.plan, from the root of the repository; everywhere else the command is `tokentar plan`."""

import sys

from tokentar.__main__ import COMMANDS
from tokentar.shard_writer.commands.main import main

if __name__ == "__main__":
    sys.exit(main("tokentar", COMMANDS, ["plan", *sys.argv[1:]]))
