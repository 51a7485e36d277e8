"""scaling: how the speed of writing and reading changes with the corpus, the shards, the length of sequences and the dtype.

Each setting is written by the whole command, from which a run over a few documents with the same tokenizer is taken off as in
`write`, and read as in `peers-read`, in this project's own order without workers, for a second: of many small shards that is less
than an epoch, so that they are opened for the first time and checked. `--megabytes` is the smallest corpus; the others have 4 and
16 times the text. `--plot` saves a picture.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median

from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import interleaved, python, run, spread, table
from tests.benchmarks.write import Job, our_command, work_rates
from tokentar import open_shards

DEFAULT_MEGABYTES = 40
PACKAGES = ("fastokens", "torch", "numpy")
_START_MEGABYTES = 0.1
_TIMES = (1, 4, 16)
_SHARDS = (64, 1_000, 10_000)
_LENGTHS = (512, 2_048, 8_192, 32_768)
_VOCABULARIES = {"uint16": 32_000, "uint32": 70_000}
_SECONDS = 1.0  # of reading


@dataclass(frozen=True)
class Setting:
    """One point: what varies, its value, and what is written."""

    what: str
    value: str
    times: int  # corpus, in terms of the smallest
    tokenizer: str = "uint16"
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.what} {self.value}"


@dataclass(frozen=True)
class Point:
    """What was measured of a setting; rates in millions of tokens a second, one a round."""

    sequences: int
    shards: int
    write: list[float]
    read: list[float]
    first: list[float]  # seconds to the first batch


def settings(times: Sequence[int] = _TIMES) -> Iterator[Setting]:
    """All points."""
    for factor in times:
        yield Setting("corpus", f"×{factor}", factor)
    for shards in _SHARDS:
        yield Setting("shards", f"{shards:,}", times[-1], flags=("--num_shards", str(shards)))
    for length in _LENGTHS:
        yield Setting("sequence length", f"{length:,}", times[1], flags=("--seq_length", str(length)))
    for name in _VOCABULARIES:
        yield Setting("dtype", name, times[1], name)


def add_options(parser: ArgumentParser) -> None:
    """Where the picture goes."""
    parser.add_argument("--plot", type=Path, metavar="PNG", help="save a picture of the figures")


def write(corpus: Path, tokenizer: Path, output: Path, setting: Setting, workers: int) -> Job:
    """One run of our writer into a fresh folder."""
    rmtree(output, ignore_errors=True)
    seconds = run([*our_command(corpus, tokenizer, output, workers), *setting.flags]).seconds
    return Job(open_shards(output).info.totals.tokens, seconds)


def read(shards: Path, what: str) -> float:
    """One run of our reader: tokens a second, or seconds to the first batch."""
    return float(run(python("-m", "tests.benchmarks.readers", "ours", what, shards, 0, _SECONDS)).output)


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    corpora = {
        factor: write_corpus(folder / f"{factor}.jsonl", factor * options.megabytes, options.corpus).path
        for factor in _TIMES
    }
    corpora[0] = write_corpus(folder / "start.jsonl", _START_MEGABYTES, options.corpus).path
    tokenizers = {
        name: train_tokenizer(corpora[_TIMES[-1]], folder / name, size) for name, size in _VOCABULARIES.items()
    }
    starts = {name: Setting("start", name, 0, name, ("--seq_length", "512")) for name in _VOCABULARIES}
    calls = {
        setting.name: partial(
            write,
            corpora[setting.times],
            tokenizers[setting.tokenizer],
            folder / setting.name,
            setting,
            options.workers,
        )
        for setting in (*starts.values(), *settings())
    }
    jobs = interleaved(options.rounds, calls)
    points = {
        setting: _point(folder / setting.name, jobs[setting.name], jobs[starts[setting.tokenizer].name], options.rounds)
        for setting in settings()
    }
    if options.plot:
        plot(points, options.plot)
    return figures(points)


def _point(shards: Path, jobs: list[Job], starts: list[Job], rounds: int) -> Point:
    manifest = open_shards(shards)
    return Point(
        manifest.info.totals.sequences,
        len(manifest.shards),
        [rate / 1e6 for rate in work_rates(jobs, starts)],
        [read(shards, "rate") / 1e6 for _ in range(rounds)],
        [read(shards, "first") for _ in range(rounds)],
    )


def figures(points: Mapping[Setting, Point]) -> str:
    """The table."""
    rows = [
        [
            setting.name,
            f"{point.sequences:,}",
            f"{point.shards:,}",
            spread(point.write, "{:.1f}"),
            spread(point.read, "{:,.0f}"),
            spread([1000 * seconds for seconds in point.first], "{:.1f}"),
        ]
        for setting, point in points.items()
    ]
    headings = ["setting", "sequences", "shards", "write, M tokens/s, median (range)", "read, M tokens/s"]
    return table([*headings, "first batch, ms"], rows)


def plot(points: Mapping[Setting, Point], path: Path) -> None:
    """Draw writing and reading over each setting."""
    from matplotlib import pyplot

    groups = list(dict.fromkeys(setting.what for setting in points))
    figure, axes = pyplot.subplots(1, len(groups), figsize=(3 * len(groups), 3.4), sharey=True, layout="constrained")
    for axis, what in zip(axes, groups, strict=True):
        shown = {setting.value: point for setting, point in points.items() if setting.what == what}
        for label, colour in (("write", "tab:blue"), ("read", "tab:orange")):
            rates = [getattr(point, label) for point in shown.values()]
            middle = [median(rate) for rate in rates]
            reach = [[m - min(r) for m, r in zip(middle, rates)], [max(r) - m for m, r in zip(middle, rates)]]  # noqa: B905
            axis.errorbar(list(shown), middle, yerr=reach, marker="o", capsize=3, label=label, color=colour)
        axis.set(title=what, yscale="log")
        axis.grid(axis="y", which="both", alpha=0.3)
    axes[0].set_ylabel("million tokens a second")
    axes[0].legend(loc="center right")
    figure.savefig(path, dpi=120)
