"""memory: the peak RSS of our writer for a corpus and for one four times as large; it must not grow (G11).

Sampled every 20 ms over the tree of processes. The sum counts pages that processes share once in each of them.
"""

from argparse import Namespace
from functools import partial
from pathlib import Path
from shutil import rmtree

from tests.benchmarks.corpus import Corpus, train_tokenizer, write_corpus
from tests.benchmarks.measure import Run, interleaved, median_ratio, run, spread, table, verdict
from tests.benchmarks.write import our_command

DEFAULT_MEGABYTES = 100
PACKAGES = ("fastokens", "numpy", "pyarrow")
_TIMES = 4
_MOST_GROWTH = 1.15
_MOST_BYTES = 1 << 30  # of any one process


def watched(corpus: Corpus, tokenizer: Path, output: Path, workers: int) -> Run:
    """Our writer, into a fresh folder, with its memory watched."""
    rmtree(output, ignore_errors=True)
    return run(our_command(corpus.path, tokenizer, output, workers), watch_memory=True)


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    small = write_corpus(folder / "small.jsonl", options.megabytes, options.corpus)
    large = write_corpus(folder / "large.jsonl", _TIMES * options.megabytes, options.corpus)
    tokenizer = train_tokenizer(small.path, folder / "tokenizer")
    runs = interleaved(
        options.rounds,
        {
            corpus.path.stem: partial(watched, corpus, tokenizer, folder / "out", options.workers)
            for corpus in (small, large)
        },
    )
    sums = {name: [done.peak_sum / 2**20 for done in found] for name, found in runs.items()}
    largest = {name: [done.peak_max / 2**20 for done in found] for name, found in runs.items()}
    rows = []
    for what, sizes in (("sum of all processes", sums), ("largest process", largest)):
        growth = median_ratio(sizes["large"], sizes["small"])
        target = verdict(growth <= _MOST_GROWTH, f"≤ {_MOST_GROWTH}")
        rows.append([what, spread(sizes["small"]), spread(sizes["large"]), f"{growth:.2f}", target])
    most = max(largest["large"])
    headings = ["peak RSS, MiB, median (range)", "small", f"{_TIMES} times", "growth, median of pairs", "target"]
    return "\n".join(
        [
            f"Small: {small}; {_TIMES} times: {large}; {options.workers} workers, {options.rounds} rounds.",
            "",
            table(headings, rows),
            "",
            f"Largest process of all: {most:,.0f} MiB; target {verdict(most < _MOST_BYTES / 2**20, '< 1024 MiB')}",
        ]
    )
