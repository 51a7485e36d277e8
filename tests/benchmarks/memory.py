"""memory: the peak RSS of our writer for a corpus and for one four times as large; it must not grow (G11).

And for the larger one as a Parquet file of a single row group, which one worker has to read alone. Sampled every 20 ms
over the tree of processes. The sum counts pages that processes share once in each of them.
"""

from argparse import Namespace
from functools import partial
from pathlib import Path
from shutil import rmtree

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import Run, interleaved, median_ratio, run, spread, table, verdict
from tests.benchmarks.write import our_command

DEFAULT_MEGABYTES = 100
PACKAGES = ("fastokens", "numpy", "pyarrow")
_TIMES = 4
_GROUP = "one row group"
_MOST_GROWTH = 1.15
_MOST_BYTES = 1 << 30  # of any one process


def watched(corpus: Path, tokenizer: Path, output: Path, workers: int) -> Run:
    """Our writer, into a fresh folder, with its memory watched."""
    rmtree(output, ignore_errors=True)
    return run(our_command(corpus, tokenizer, output, workers), watch_memory=True)


def single_row_group(corpus: Path) -> Path:
    """The same documents in a Parquet file that cannot be cut."""
    with open(corpus, "rb") as lines:
        texts = [orjson.loads(line)["text"] for line in lines]
    path = corpus.with_suffix(".parquet")
    pq.write_table(pa.table({"text": texts}), path, row_group_size=len(texts))
    return path


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    small = write_corpus(folder / "small.jsonl", options.megabytes, options.corpus)
    large = write_corpus(folder / "large.jsonl", _TIMES * options.megabytes, options.corpus)
    tokenizer = train_tokenizer(small.path, folder / "tokenizer")
    inputs = {"small": small.path, "large": large.path, _GROUP: single_row_group(large.path)}
    calls = {name: partial(watched, path, tokenizer, folder / "out", options.workers) for name, path in inputs.items()}
    runs = interleaved(options.rounds, calls)
    sums = {name: [done.peak_sum / 2**20 for done in found] for name, found in runs.items()}
    largest = {name: [done.peak_max / 2**20 for done in found] for name, found in runs.items()}
    rows = []
    for what, sizes in (("sum of all processes", sums), ("largest process", largest)):
        growth = median_ratio(sizes["large"], sizes["small"])
        target = verdict(growth <= _MOST_GROWTH, f"≤ {_MOST_GROWTH}")
        rows.append([what, *(spread(sizes[name]) for name in inputs), f"{growth:.2f}", target])
    most = max(max(found) for found in largest.values())
    headings = ["peak RSS, MiB, median (range)", "small", f"{_TIMES} times", f"the same as {_GROUP}"]
    headings += ["growth, median of pairs", "target"]
    return "\n".join(
        [
            f"Small: {small}; {_TIMES} times: {large}; {options.workers} workers, {options.rounds} rounds.",
            "",
            table(headings, rows),
            "",
            f"Largest process of all: {most:,.0f} MiB; target {verdict(most < _MOST_BYTES / 2**20, '< 1024 MiB')}",
        ]
    )
