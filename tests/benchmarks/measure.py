"""How figures are made: fresh processes, interleaved rounds, ratios pair by pair, a Markdown table.

Machines are shared and noisy, so a figure counts only beside another one of the same run: all contenders take turns,
each round in the opposite order of the one before, and what is reported is the median of the ratios within a round, not
the ratio of medians.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TypeVar

import psutil

ROOT = Path(__file__).parents[2]
_SAMPLE_SECONDS = 0.02
Result = TypeVar("Result")


@dataclass(frozen=True)
class Run:
    """What one command took."""

    seconds: float  # wall time, from before the process starts until it has ended
    output: str  # its standard output
    peak_sum: int = (
        0  # bytes: peak of the summed RSS of all its processes (shared pages count in each), if it was watched
    )
    peak_max: int = 0  # bytes: peak RSS of its largest process


def python(*arguments: object) -> list[str]:
    """The command line of this interpreter."""
    return [sys.executable, *map(str, arguments)]


def run(command: Sequence[str], *, watch_memory: bool = False) -> Run:
    """Run a command in the project's root. Watching its memory costs some of a core, so times are taken without.

    Exits with the command's error output when it fails.
    """
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    peak_sum = peak_max = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = psutil.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=errors)
        while watch_memory and process.poll() is None:
            sizes = tree_rss(process)
            peak_sum, peak_max = max(peak_sum, sum(sizes)), max(peak_max, *sizes)
            time.sleep(_SAMPLE_SECONDS)
        status = process.wait()
        seconds = time.perf_counter() - start
        output.seek(0)
        errors.seek(0)
        if status:
            raise SystemExit(f"{subprocess.list2cmdline(command)}: exit status {status}\n{errors.read()}")
        return Run(seconds, output.read(), peak_sum, peak_max)


def tree_rss(process: psutil.Process) -> list[int]:
    """RSS in bytes of a process and of all below it; [0] when it is gone."""
    sizes = [0]
    try:
        for member in [process, *process.children(recursive=True)]:
            try:
                sizes.append(member.memory_info().rss)
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        pass
    return sizes


def interleaved(rounds: int, contenders: Mapping[str, Callable[[], Result]]) -> dict[str, list[Result]]:
    """Let all contenders run in each round, every other round backwards; results by name, one a round."""
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in names:
            print(f"round {number + 1} of {rounds}: {name} …", file=sys.stderr, flush=True)
            results[name].append(contenders[name]())
    return results


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ours[i] / theirs[i]: the two of a pair ran side by side."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=True))


def spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    """The median of some figures and, where there are several, the least and the greatest."""
    text = form.format(median(values))
    return text if len(values) == 1 else f"{text} ({form.format(min(values))} … {form.format(max(values))})"


def verdict(is_met: bool, target: str) -> str:
    """A target and whether it was met."""
    return f"{target}: {'met' if is_met else 'MISSED'}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is of words, the others of figures."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))


def circumstances(packages: Sequence[str]) -> str:
    """Date, machine and versions, in one line."""
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total / 2**30
    return (
        f"{now}; {platform.machine()}, {cores} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f} at the end; "
        f"Python {platform.python_version()}, {versions}"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
