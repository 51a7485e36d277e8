"""python -m train.trace, from the root of the repository; everywhere else the command is `tokentar trace`."""

import sys

from tokentar.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["trace", *sys.argv[1:]]))
