"""peers-write: `tokentar write` against datatrove, litdata and gigatoken, from the same JSONL files.

Each peer does what its own documentation shows, in an environment of its own (see peers.py and the peer_*.py), and once more
with fastokens under it where it lets one. Only ours shuffles documents over the whole corpus, packs them into
sequences, keeps checksums and notes where each token is from. The slow peers get a corpus, the fast ones one of four times the
size. As in `write`, the work alone is a whole command less one over a few documents; `fastokens` is timed
within its process, over text in memory: the bound that a tokenizer sets. A peer that gives another number of tokens is
named below the table: gigatoken knows letters of a later Unicode than `tokenizers`, and cuts words elsewhere there.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree

from tests.benchmarks import peers
from tests.benchmarks.corpus import Corpus, split_lines, train_tokenizer, write_corpus
from tests.benchmarks.measure import Run, interleaved, median_ratio, python, run, spread, table, verdict
from tests.benchmarks.write import Job, Jobs, notes, our_command, work_rates
from tokentar import open_shards

DEFAULT_MEGABYTES = 320  # the work of less is hardly told from the noise of the start
PACKAGES = ("fastokens", "tokenizers", "transformers", "numpy", "pyarrow")
_START_MEGABYTES = 0.1
_TIMES = 4  # the corpus of the fast contenders
_SLOW_TARGET, _GIGATOKEN_TARGET, _BARE_TARGET = 40, 1.0, 0.5
OURS = "ours"


@dataclass(frozen=True)
class Writer:
    """A contender."""

    command: Callable[[Path, Path], list[str]]  # (folder of JSONL, output) → command line
    tokens: Callable[[Path, Run], int]  # (output, what ran) → tokens, an EOS for each document counted
    target: float | None = None  # times as fast as it that we want to be
    times_itself: bool = False  # prints its seconds behind its tokens


def add_options(parser: ArgumentParser) -> None:
    """See peers."""
    peers.add_options(parser)
    parser.add_argument(
        "--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="which tables (default: both)"
    )


def last_number(_: Path, done: Run) -> int:
    """The tokens that a peer prints last."""
    return int(done.output.split()[-1])


def slow_writers(found: dict[str, Path], tokenizer: Path, workers: int) -> dict[str, Writer]:
    """Ours, and the peers that tokenize through Python objects."""
    writers = {OURS: our_writer(tokenizer, workers)}
    for name in ("datatrove", "litdata"):
        for engine in ("shipped", "fastokens") if name in found else ():
            words = ["-m", f"tests.benchmarks.peer_{name}", *(["write"] if name == "litdata" else [])]
            base = [str(found[name]), *words]
            writers[f"{peers.label(name)}{'' if engine == 'shipped' else ' with fastokens'}"] = Writer(
                partial(_peer_command, base, tokenizer, [str(workers), engine]),
                last_number,
                _SLOW_TARGET if engine == "shipped" else None,
            )
    return writers


def fast_writers(found: dict[str, Path], tokenizer: Path, workers: int) -> dict[str, Writer]:
    """Ours, and what goes through no Python object."""
    writers = {OURS: our_writer(tokenizer, workers)}
    if "gigatoken" in found:
        base = [str(found["gigatoken"]), "-m", "tests.benchmarks.peer_gigatoken"]
        command = partial(_peer_command, base, tokenizer, [])
        gigatoken = Writer(command, last_number, _GIGATOKEN_TARGET)
        writers[f"{peers.label('gigatoken')} encode_files, raw dump"] = gigatoken
    command = partial(_peer_command, python("-m", "tests.benchmarks.peer_fastokens"), tokenizer, [])
    bare = Writer(command, lambda _, done: int(done.output.split()[0]), _BARE_TARGET, times_itself=True)
    return writers | {"bare pass of fastokens, text in memory": bare}


GROUPS = {"slow": slow_writers, "fast": fast_writers}


def our_writer(tokenizer: Path, workers: int) -> Writer:
    """Ours with its default settings."""
    return Writer(
        lambda folder, output: our_command(folder / "*.jsonl", tokenizer, output, workers),
        lambda output, _: open_shards(output).info.totals.tokens,
    )


def _peer_command(base: Sequence[str], tokenizer: Path, more: Sequence[str], folder: Path, output: Path) -> list[str]:
    return [*base, str(folder), str(tokenizer / "tokenizer.json"), str(output), *more]


def job(writer: Writer, folder: Path, output: Path) -> Job:
    """One run into a fresh folder."""
    rmtree(output, ignore_errors=True)
    done = run(writer.command(folder, output))
    seconds = float(done.output.split()[1]) if writer.times_itself else done.seconds
    return Job(writer.tokens(output, done), seconds)


def peak(writer: Writer, folder: Path, output: Path) -> float:
    """Peak memory of all processes of one more run, MiB."""
    rmtree(output, ignore_errors=True)
    return run(writer.command(folder, output), watch_memory=True).peak_sum / 2**20


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    found, missing = peers.install(["datatrove", "litdata", "gigatoken"], options.venvs)
    sizes = {"start": _START_MEGABYTES, "slow": options.megabytes}
    if "fast" in options.groups:
        sizes["fast"] = _TIMES * options.megabytes
    corpora = {name: write_corpus(folder / f"{name}.jsonl", size, options.corpus) for name, size in sizes.items()}
    for name, corpus in corpora.items():  # a file a worker: most peers deal out files
        split_lines(corpus.path, folder / name, options.workers)
    tokenizer = train_tokenizer(corpora["slow"].path, folder / "tokenizer")
    texts = [
        compare(GROUPS[name](found, tokenizer, options.workers), corpora[name], folder, name, options)
        for name in options.groups
    ]
    return "\n\n".join(texts + [f"Not installed: {name}: {why}." for name, why in missing.items()])


def compare(writers: dict[str, Writer], corpus: Corpus, folder: Path, name: str, options: Namespace) -> str:
    """One table."""
    runs = {
        f"{title}, {size}": partial(job, writer, folder / size, folder / "out")
        for title, writer in writers.items()
        for size in ("start", name)
    }
    jobs = interleaved(options.rounds, runs)
    whole, starts = ({title: jobs[f"{title}, {size}"] for title in writers} for size in (name, "start"))
    peaks = {title: peak(writer, folder / name, folder / "out") for title, writer in writers.items()}
    head = f"{corpus}; {options.workers} workers or all cores, {options.rounds} rounds."
    return f"{head}\n\n{figures(writers, whole, starts, peaks)}"


def figures(writers: dict[str, Writer], whole: Jobs, starts: Jobs, peaks: dict[str, float]) -> str:
    """The table, and below it what the contenders did differently."""
    rates = {
        title: [done.tokens / done.seconds for done in whole[title]]
        if writer.times_itself
        else work_rates(whole[title], starts[title])
        for title, writer in writers.items()
    }
    rows = []
    for title, writer in writers.items():
        ratio = median_ratio(rates[OURS], rates[title])
        commands = median_ratio([job.seconds for job in whole[title]], [job.seconds for job in whole[OURS]])
        rows.append(
            [
                title,
                f"{whole[title][0].tokens:,}",
                spread([rate / 1e6 for rate in rates[title]], "{:.2f}"),
                f"{ratio:.2f}",
                verdict(ratio >= writer.target, f"≥ {writer.target}") if writer.target else "",
                spread([done.seconds for done in whole[title]], "{:.1f}"),
                "" if writer.times_itself else f"{commands:.2f}",
                f"{peaks[title]:,.0f}",
            ]
        )
    headings = [
        "writer",
        "tokens",
        "M tokens/s without start-up, median (range)",
        "ours as a multiple, median of pairs",
        "target",
    ]
    headings += ["seconds, whole command", "ours as a multiple", "peak RSS of all processes, MiB"]
    return "\n\n".join([table(headings, rows), *notes(whole, rates)])
