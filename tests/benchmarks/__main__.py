"""python -m tests.benchmarks BENCHMARK: side-by-side figures as a Markdown table.

Run it in the project's root, on an otherwise idle machine if there is one. Each measurement is a fresh process.
It takes minutes and is no part of the tests.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import memory, mixtures, peers_read, peers_write, read, resume, scaling, step, storage, write
from tests.benchmarks.measure import circumstances

BENCHMARKS = {
    "write": write,
    "read": read,
    "memory": memory,
    "peers-write": peers_write,
    "peers-read": peers_read,
    "mixtures": mixtures,
    "scaling": scaling,
    "resume": resume,
    "step": step,
    "storage": storage,
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, module in BENCHMARKS.items():
        text = str(module.__doc__)
        command = commands.add_parser(name, help=text.splitlines()[0].partition(": ")[2], description=text)
        command.add_argument(
            "--megabytes",
            type=float,
            default=module.DEFAULT_MEGABYTES,
            help="text in the corpus, in 10**6 bytes; of `memory` the smaller one (default: %(default)s)",
        )
        command.add_argument("--rounds", type=int, default=3, help="each contender runs so often (default: 3)")
        command.add_argument("--workers", type=int, default=2, help="processes that write (default: 2)")
        command.add_argument(
            "--corpus",
            metavar="GLOB",
            help="files to take the text from: .jsonl with the key `text`, or one document a file "
            "(default: the Python source of the standard library and of installed packages)",
        )
        if hasattr(module, "add_options"):
            module.add_options(command)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run one benchmark and print its report."""
    options = parse(argv)
    module = BENCHMARKS[options.benchmark]
    with tempfile.TemporaryDirectory(prefix="tokentar-benchmark-") as folder:
        text = module.report(options, Path(folder))
    print(f"### {options.benchmark}\n\n{text}\n\n{circumstances(module.PACKAGES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
