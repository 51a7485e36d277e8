"""peers-read: ShardLoader against litdata, mosaicml-streaming, webdataset and `datasets`, the same rows in the form of each.

Each peer reads as its own documentation shows, shuffled, in an environment of its own (see peers.py and the peer_*.py);
ours in its canonical order, with 192 streams where the set has enough rows. What is counted are int64 batches
of 8 rows of 2048 tokens, from the page cache, without start-up and after a warm-up; workers are DataLoader processes.
The bare numpy loop (see readers.py) is the bound. The second table tells how long it takes from nothing built, but all imported, to
the first batch of a set of many shards, no workers.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tests.benchmarks import peers
from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import Run, interleaved, median_ratio, python, run, spread, table, verdict
from tests.benchmarks.write import our_command
from tokentar import open_shards

DEFAULT_MEGABYTES = 150
PACKAGES = ("torch", "numpy")
OURS, BOUND = "ours", "bare numpy loop, order known"
_SECONDS = 2.0  # each reader reads at least so long
_MODULES = {"litdata": "litdata", "mosaicml-streaming": "mosaicml", "webdataset": "webdataset", "datasets": "datasets"}
_TARGETS = {
    ("litdata", 0): 4,
    ("webdataset", 0): 30,
    ("mosaicml-streaming", 0): 80,
    ("litdata", 2): 6,
    (BOUND, 0): 0.5,
}


@dataclass(frozen=True)
class Reader:
    """A contender: `command(what, set, workers, seconds)` prints one figure."""

    name: str
    words: Sequence[str]  # the start of its command line
    shards: Path  # its form of the set

    def figure(self, what: str, workers: int) -> float:
        """Tokens a second, or seconds to the first batch."""
        return last_figure(run(self._command(what, workers)))

    def peak(self, workers: int) -> float:
        """Peak memory of all processes while it reads, pages of mapped files counted, MiB."""
        return run(self._command("rate", workers), watch_memory=True).peak_sum / 2**20

    def _command(self, what: str, workers: int) -> list[str]:
        return [*self.words, what, str(self.shards), str(workers), str(_SECONDS)]


def last_figure(done: Run) -> float:
    """The number that a contender prints last."""
    return float(done.output.split()[-1])


def add_options(parser: ArgumentParser) -> None:
    """See peers."""
    peers.add_options(parser)
    parser.add_argument("--shards", type=int, default=10_000, help="shards of the second table (default: %(default)s)")


def our_set(folder: Path, name: str, corpus: Path, tokenizer: Path, more: Sequence[str] = ()) -> Path:
    """A set of ours; beside it lie its rows as one array, for the peers."""
    run([*our_command(corpus, tokenizer, folder / name, 2), *more])
    manifest = open_shards(folder / name)
    parts = [manifest.open(index).rows for index in range(len(manifest.shards))]
    np.save(folder / f"{name}.npy", np.concatenate(parts))
    return folder / name


def readers(found: dict[str, Path], ours: Path, shards: int) -> list[Reader]:
    """All contenders, each with its form of the set, in about so many shards."""
    folder, ours_words = ours.parent, python("-m", "tests.benchmarks.readers")
    contenders = [Reader(OURS, [*ours_words, "ours"], ours), Reader(BOUND, [*ours_words, "numpy"], ours)]
    for name, interpreter in found.items():
        words = [str(interpreter), "-m", f"tests.benchmarks.peer_{_MODULES[name]}"]
        own = ours if name == "webdataset" else folder / f"{ours.name}-{name}"
        if own != ours:
            run([*words, "prepare", str(folder / f"{ours.name}.npy"), str(own), str(shards)])
        contenders.append(Reader(name, words, own))
    return contenders


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    found, missing = peers.install(list(_MODULES), options.venvs)
    corpus = write_corpus(folder / "corpus.jsonl", options.megabytes, options.corpus)
    tokenizer = train_tokenizer(corpus.path, folder / "tokenizer")
    texts = []
    few = our_set(folder, "few", corpus.path, tokenizer, ["--num_shards", "64"])
    texts += [head(few, options), rates(readers(found, few, 64), options.rounds)]
    many = our_set(
        folder, "many", corpus.path, tokenizer, ["--num_shards", str(options.shards), "--provenance", "false"]
    )
    texts += [head(many, options), firsts(readers(found, many, options.shards), options.rounds)]
    return "\n\n".join(texts + [f"Not installed: {name}: {why}." for name, why in missing.items()])


def head(shards: Path, options: Namespace) -> str:
    """What is read."""
    manifest = open_shards(shards)
    return f"{manifest.info.totals.sequences:,} sequences in {len(manifest.shards):,} shards; {options.rounds} rounds."


def rates(contenders: Sequence[Reader], rounds: int) -> str:
    """Tokens a second, without workers and with two."""
    kinds = {(reader.name, workers): (reader, workers) for reader in contenders for workers in (0, 2)}
    del kinds[BOUND, 2]
    calls: dict[str, Callable[[], float]] = {
        f"{name}, {workers} workers": partial(reader.figure, "rate", workers)
        for (name, workers), (reader, _) in kinds.items()
    }
    found = interleaved(rounds, calls)
    rows = []
    for (name, workers), (reader, _) in kinds.items():
        seen, ours = found[f"{name}, {workers} workers"], found[f"{OURS}, {workers} workers"]
        ratio, target = median_ratio(ours, seen), _TARGETS.get((name, workers))
        rows.append(
            [
                peers.label(name) if name in peers.PEERS else name,
                str(workers),
                spread([rate / 1e6 for rate in seen], "{:,.1f}"),
                f"{ratio:.2f}",
                verdict(ratio >= target, f"≥ {target}") if target else "",
                f"{reader.peak(workers):,.0f}",
            ]
        )
    headings = ["reader", "workers", "M tokens/s, median (range)", "ours as a multiple, median of pairs", "target"]
    return table([*headings, "peak RSS of all processes, MiB"], rows)


def firsts(contenders: Sequence[Reader], rounds: int) -> str:
    """Seconds to the first batch."""
    kinds = {reader.name: partial(reader.figure, "first", 0) for reader in contenders if reader.name != BOUND}
    found = interleaved(rounds, kinds)
    rows = []
    for name, seen in found.items():
        ratio = median_ratio(seen, found[OURS])
        target = "" if name == OURS else verdict(ratio > 1, "ours faster")
        label = peers.label(name) if name in peers.PEERS else name
        rows.append([label, spread(seen, "{:.3f}"), f"{ratio:.2f}", target])
    headings = ["reader", "seconds to the first batch, median (range)", "times ours, median of pairs", "target"]
    return table(headings, rows)
