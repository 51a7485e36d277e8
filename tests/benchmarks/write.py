"""write: `tokentar write` against the same job by plain `tokenizers`, both from one JSONL.

Two figures. The whole command, from the start of the process to its end. And the work alone: the same less what the
same command takes for a corpus of a few documents, the median of one such run a round; so start,
imports, loading the tokenizer and starting workers drop out in the same way whatever is measured, and nothing has to be
built into it. The peer is peer_tokenizers.py.
"""

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median

from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import interleaved, median_ratio, python, run, spread, table, verdict
from tokentar import open_shards

DEFAULT_MEGABYTES = 100
PACKAGES = ("fastokens", "tokenizers", "transformers", "numpy", "pyarrow")
_TARGET = 20
_START_MEGABYTES = 0.1
_MOST_DIFFERENT = 1e-4  # of the tokens


@dataclass(frozen=True)
class Job:
    """One run over a corpus."""

    tokens: int
    seconds: float


Jobs = dict[str, list[Job]]  # by contender, one a round


def our_command(corpus: Path, tokenizer: Path, output: Path, workers: int) -> list[str]:
    """Our writer with its default settings."""
    flags = {"--input": corpus, "--tokenizer": tokenizer, "--output": output, "--workers": workers}
    return python("-m", "tokentar", "write", *(word for flag in flags.items() for word in flag))


def ours(corpus: Path, *, tokenizer: Path, output: Path, workers: int) -> Job:
    """Our writer, into a fresh folder."""
    rmtree(output, ignore_errors=True)
    seconds = run(our_command(corpus, tokenizer, output, workers)).seconds
    return Job(open_shards(output).info.totals.tokens, seconds)


def peer(corpus: Path, *, tokenizer: Path, output: Path, workers: int) -> Job:
    """Plain `tokenizers`, into a fresh folder."""
    rmtree(output, ignore_errors=True)
    module = "tests.benchmarks.peer_tokenizers"
    done = run(python("-m", module, corpus, tokenizer / "tokenizer.json", output, workers))
    return Job(int(done.output), done.seconds)


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    corpus = write_corpus(folder / "corpus.jsonl", options.megabytes, options.corpus)
    start = write_corpus(folder / "start.jsonl", _START_MEGABYTES, options.corpus)
    tokenizer = train_tokenizer(corpus.path, folder / "tokenizer")
    writers: dict[str, Callable[[Path], Job]] = {
        "ours": partial(ours, tokenizer=tokenizer, output=folder / "ours", workers=options.workers),
        "tokenizers": partial(peer, tokenizer=tokenizer, output=folder / "peer", workers=options.workers),
    }
    runs = {
        f"{name}, {size.path.stem}": partial(writer, size.path)
        for name, writer in writers.items()
        for size in (start, corpus)
    }
    jobs = interleaved(options.rounds, runs)
    whole, starts = ({name: jobs[f"{name}, {size.path.stem}"] for name in writers} for size in (corpus, start))
    return f"{corpus}; {options.workers} workers, {options.rounds} rounds.\n\n{figures(whole, starts)}"


def figures(whole: Jobs, starts: Jobs) -> str:
    """The table, and below it what the contenders did differently."""
    rates = {
        "tokens/s, whole command": {name: [job.tokens / job.seconds for job in whole[name]] for name in whole},
        "tokens/s, without start-up": {name: work_rates(whole[name], starts[name]) for name in whole},
    }
    rows = []
    for what, by_name in rates.items():
        ratio = median_ratio(by_name["ours"], by_name["tokenizers"])
        target = verdict(ratio >= _TARGET, f"≥ {_TARGET}")
        rows.append([what, *map(spread, by_name.values()), f"{ratio:.1f}", target])
    for what, by_writer in (("seconds, whole command", whole), ("seconds, start-up", starts)):
        rows.append([what, *(spread([job.seconds for job in jobs], "{:.1f}") for jobs in by_writer.values()), "", ""])
    text = table(["median (range)", *whole, "ratio, median of pairs", "target"], rows)
    return "\n\n".join([text, *notes(whole, rates["tokens/s, without start-up"])])


def work_rates(whole: list[Job], starts: list[Job]) -> list[float]:
    """Tokens a second of what each whole run does beyond the start-up, the median of runs that do little else.

    Not a number where the corpus is too small for that.
    """
    start_seconds, start_tokens = median(job.seconds for job in starts), starts[0].tokens
    if min(job.seconds for job in whole) <= start_seconds:
        return [math.nan] * len(whole)
    return [(job.tokens - start_tokens) / (job.seconds - start_seconds) for job in whole]


def notes(whole: Jobs, rates: dict[str, list[float]]) -> list[str]:
    """What a reader of the figures must know: other numbers of tokens than ours, and figures that are none."""
    expected = whole["ours"][0].tokens
    lines = []
    for name, jobs in whole.items():
        tokens = max((job.tokens for job in jobs), key=lambda tokens: abs(tokens - expected))
        if tokens != expected:
            share = (tokens - expected) / expected
            line = f"{name}: {tokens - expected:+,} tokens against ours ({1e6 * share:+.2f} per million)"
            warning = f"WARNING: more than {_MOST_DIFFERENT:g} of the tokens, so this was not the same job: "
            lines.append(warning * (abs(share) > _MOST_DIFFERENT) + line)
    if any(math.isnan(rate) for of_one in rates.values() for rate in of_one):
        lines.append("nan: the corpus is too small to be told from the start-up; use more --megabytes")
    return lines
