"""read: ShardLoader in one process against stock WebDataset on the same shards, and against a bare numpy loop.

All (see readers.py) read epochs of int64 batches of 8 rows of 2048 tokens, from the page cache, after a warm-up that
is not counted; start and imports are left out. ShardLoader reads in its shuffled order, so does the bare loop;
WebDataset reads from front to back.
"""

from argparse import Namespace
from functools import partial
from pathlib import Path

from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import interleaved, median_ratio, python, run, spread, table, verdict
from tests.benchmarks.readers import READERS
from tests.benchmarks.write import our_command
from tokentar import open_shards

DEFAULT_MEGABYTES = 100
PACKAGES = ("webdataset", "torch", "numpy")
_TARGET = 20
_SECONDS = 2.0  # each reader reads at least so long


def tokens_per_second(name: str, shards: Path) -> float:
    """One contender in a fresh process."""
    return float(run(python("-m", "tests.benchmarks.readers", name, "rate", shards, 0, _SECONDS)).output)


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    corpus = write_corpus(folder / "corpus.jsonl", options.megabytes, options.corpus)
    tokenizer = train_tokenizer(corpus.path, folder / "tokenizer")
    shards = folder / "shards"
    run(our_command(corpus.path, tokenizer, shards, options.workers))
    rates = interleaved(options.rounds, {name: partial(tokens_per_second, name, shards) for name in READERS})
    rows = []
    for name, seen in rates.items():
        ratio = median_ratio(rates["ours"], seen)
        target = verdict(ratio >= _TARGET, f"≥ {_TARGET}") if name == "webdataset" else ""
        rows.append([name, spread(seen), f"{ratio:.2f}", target])
    manifest = open_shards(shards)
    headings = ["reader", "tokens/s, median (range)", "ours as a multiple, median of pairs", "target"]
    sequences = f"{manifest.info.totals.sequences:,} sequences in {len(manifest.shards)} shards"
    return f"{sequences}; one process, {options.rounds} rounds.\n\n{table(headings, rows)}"
