"""step: what our loader adds to an optimizer step of a tiny model, against one batch that stays in memory.

Two ranks on the CPU (torchrun, gloo, one thread each), Trainer without workers, 4 × 256 tokens a rank. One run; by turns of
50 steps the batches come from the loader and from memory, so what else the machine does falls on both. The first pair of turns, in
which shards are opened and checked, does not count. The ratio is the median over pairs of turns.
"""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import median_ratio, run, spread, table, verdict
from tests.benchmarks.write import our_command
from tests.torchrun.start import torchrun

DEFAULT_MEGABYTES = 5
PACKAGES = ("torch", "transformers", "accelerate")
_VOCABULARY = 512
_STEPS, _PAIRS = 50, 10  # steps of a turn; pairs of turns a round
_MOST = 1.03
Turn = tuple[float, float]  # seconds, by the clock and of CPU


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    corpus = write_corpus(folder / "corpus.jsonl", options.megabytes, options.corpus)
    tokenizer = train_tokenizer(corpus.path, folder / "tokenizer", _VOCABULARY)
    shards = folder / "shards"
    run([*our_command(corpus.path, tokenizer, shards, options.workers), "--seq_length", "256"])
    turns = 2 * (options.rounds * _PAIRS + 1)
    ended = torchrun("tests.benchmarks.stepping", str(shards), str(turns), str(_STEPS), str(folder), seconds=1200)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    turns = json.loads((folder / "turns.json").read_text())[2:]
    return figures(turns[::2], turns[1::2])


def figures(ours: Sequence[Turn], constant: Sequence[Turn]) -> str:
    """The table."""
    rows = []
    for clock, name in enumerate(("by the clock", "of CPU, rank 0")):
        mine, other = ([turn[clock] for turn in turns] for turns in (ours, constant))
        ratio = median_ratio(mine, other)
        target = verdict(ratio <= _MOST, f"≤ {_MOST}")
        rows.append([name, milliseconds(mine), milliseconds(other), f"{ratio:.3f}", target])
    headings = [
        "ms a step, median of turns (range)",
        "ShardLoader",
        "one batch in memory",
        "ratio, median of pairs",
        "target",
    ]
    return f"{len(ours)} pairs of turns of {_STEPS} steps.\n\n{table(headings, rows)}"


def milliseconds(seconds: Sequence[float]) -> str:
    """Of a step, from the seconds of turns."""
    return spread([1000 * each / _STEPS for each in seconds], "{:.2f}")
