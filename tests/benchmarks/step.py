"""step: what our loader adds to an optimizer step of a tiny model, against one batch that stays in memory.

Two ranks on the CPU (torchrun, gloo, one thread each), Trainer without workers, 4 × 256 tokens a rank. One run; by turns of
10 steps the batches come from the loader and from memory, so what else the machine does falls on both; which comes first changes from
pair to pair. The first two pairs, in which shards are opened and checked, do not count. The ratio is the median over pairs. On a busy
machine the clock tells little, CPU time more; the last line is what the loader itself takes of it, beside a step without it.
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
_STEPS, _PAIRS = 10, 50  # steps of a turn; pairs of turns a round
_MOST = 1.03
Turn = tuple[float, float, float]  # seconds: by the clock, of CPU, of CPU in the loader


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    corpus = write_corpus(folder / "corpus.jsonl", options.megabytes, options.corpus)
    tokenizer = train_tokenizer(corpus.path, folder / "tokenizer", _VOCABULARY)
    shards = folder / "shards"
    run([*our_command(corpus.path, tokenizer, shards, options.workers), "--seq_length", "256"])
    turns = 2 * (options.rounds * _PAIRS + 2)
    ended = torchrun("tests.benchmarks.stepping", str(shards), str(turns), str(_STEPS), str(folder), seconds=1200)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    turns = json.loads((folder / "turns.json").read_text())[4:]
    return figures(*by_source(turns))


def by_source(turns: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """The turns of the loader, and those from memory, which come first in every other pair."""
    pairs = [turns[i : i + 2][:: 1 if i % 4 == 0 else -1] for i in range(0, len(turns), 2)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def figures(ours: Sequence[Turn], constant: Sequence[Turn]) -> str:
    """The table."""
    (clock, cpu, inside), (other_clock, other_cpu, _) = (zip(*turns, strict=True) for turns in (ours, constant))
    added = 1 + median_ratio(inside, other_cpu)
    rows = [row("by the clock", clock, other_clock, median_ratio(clock, other_clock))]
    rows += [row("of CPU, rank 0", cpu, other_cpu, median_ratio(cpu, other_cpu))]
    rows += [row("of CPU within the loader, rank 0", inside, other_cpu, added)]
    headings = ["ms a step, median of turns (range)", "ShardLoader", "one batch in memory", "ratio, median of pairs"]
    return f"{len(ours)} pairs of turns of {_STEPS} steps.\n\n{table([*headings, 'target'], rows)}"


def row(name: str, mine: Sequence[float], other: Sequence[float], ratio: float) -> list[str]:
    """A line of the table."""
    return [name, milliseconds(mine), milliseconds(other), f"{ratio:.3f}", verdict(ratio <= _MOST, f"≤ {_MOST}")]


def milliseconds(seconds: Sequence[float]) -> str:
    """Of a step, from the seconds of turns."""
    return spread([1000 * each / _STEPS for each in seconds], "{:.2f}")
