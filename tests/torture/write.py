"""python -m tests.torture.write --rounds 50: kill a running writer at random moments and compare every byte of what a rerun gives.

Each round starts a writer, kills it once in one of the phases plan, map, reduce and publish, and runs the same command
until it ends. The kills take turns: SIGKILL, the same for a worker, SIGTERM, SIGINT. With --append the writer adds to a
finished set. Exit status 1 when a set differs from that of a writer that nobody disturbed.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, rmtree

import psutil

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import contents

PHASES = ("plan", "map", "reduce", "publish")
KILLS = ("SIGKILL", "SIGKILL of a worker", "SIGTERM", "SIGINT")
_POLL_SECONDS = 0.0005
_END_SECONDS = 120


@dataclass
class Tally:
    """What happened in all rounds."""

    kills: Counter[str] = field(default_factory=Counter)
    reused: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = "\n".join(f"  {count:4} {name}" for name, count in sorted(self.kills.items()))
        reused = ", ".join(f"{count} {name}" for name, count in sorted(self.reused.items())) or "nothing"
        result = "\n".join(self.different) or "every set is byte-identical to the undisturbed one"
        return f"{self.kills.total()} rounds:\n{kills}\nreused by the reruns: {reused}\n{result}"


@dataclass(frozen=True)
class Writer:
    """The command under test. `before`: a finished set to append to, if any."""

    flags: tuple[str, ...]
    before: Path | None

    def start(self, output: Path) -> subprocess.Popen[str]:
        """Start the command."""
        command = [sys.executable, "-m", "tokentar", "write", *self.flags, "--output", str(output)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def finish(self, output: Path) -> str:
        """Run the command to its end; returns what it says. Raises RuntimeError when it fails."""
        run = self.start(output)
        _, said = run.communicate(timeout=_END_SECONDS)
        if run.returncode:
            raise RuntimeError(f"exit status {run.returncode}: {said}")
        return said

    def fresh(self, output: Path) -> None:
        """Make the output what it is before the command."""
        rmtree(output, ignore_errors=True)
        if self.before:
            copytree(self.before, output)


def phase_of(output: Path) -> str:
    """The phase that a writer is in, by what lies in its output."""
    spool = output / ".spool"
    try:
        if "manifest" in json.loads((spool / "plan.json").read_bytes()):
            return "publish"
    except (OSError, ValueError):
        return "plan"
    return "reduce" if any(spool.glob("shards/*.tar")) else "map"


def is_finished(output: Path, writer: Writer) -> bool:
    """Whether the work of a writer is done and nothing is left to go on with."""
    finished = writer.before / "dataset.json" if writer.before else None
    dataset = output / "dataset.json"
    is_new = dataset.exists() and (finished is None or dataset.read_bytes() != finished.read_bytes())
    return is_new and not (output / ".spool" / "plan.json").exists()


def watch(run: subprocess.Popen[str], output: Path) -> dict[str, float]:
    """When each phase of an undisturbed run began, and the last one's end, in seconds since its start."""
    start, begins = time.monotonic(), {"plan": 0.0}
    while run.poll() is None and not ("publish" in begins and phase_of(output) == "plan"):
        begins.setdefault(phase_of(output), time.monotonic() - start)
        time.sleep(_POLL_SECONDS)
    begins["end"] = time.monotonic() - start
    _, said = run.communicate(timeout=_END_SECONDS)
    if run.returncode:
        raise RuntimeError(f"exit status {run.returncode}: {said}")
    return begins


def durations(begins: dict[str, float]) -> dict[str, float]:
    """Seconds of each phase."""
    times = [begins[phase] for phase in PHASES] + [begins["end"]]
    return {phase: times[i + 1] - times[i] for i, phase in enumerate(PHASES)}


def wait_for(run: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Wait until a phase is reached or the run has ended."""
    while run.poll() is None and not reached():
        time.sleep(_POLL_SECONDS)


def workers_of(run: subprocess.Popen[str]) -> list[psutil.Process]:
    """The worker processes of a writer."""
    try:
        children = psutil.Process(run.pid).children()
        return [
            worker for child in children if "forkserver" in " ".join(child.cmdline()) for worker in child.children()
        ]
    except psutil.NoSuchProcess:
        return []


def kill(run: subprocess.Popen[str], how: str, draw: random.Random) -> str:
    """Kill a writer, or one of its workers if there is any; returns what was done."""
    workers = workers_of(run) if how == "SIGKILL of a worker" else []
    if workers:
        draw.choice(workers).kill()
        return how
    name = how.split()[0]
    run.send_signal(signal.Signals[name])
    return name


def play(writer: Writer, output: Path, phase: str, how: str, seconds: float, draw: random.Random) -> tuple[str, str]:
    """One round; returns what was killed, and when, and what the rerun said."""
    writer.fresh(output)
    run = writer.start(output)
    wait_for(run, lambda: PHASES.index(phase_of(output)) >= PHASES.index(phase))
    time.sleep(draw.uniform(0, seconds))
    at, done = phase_of(output), kill(run, how, draw)
    _, said = run.communicate(timeout=_END_SECONDS)
    if is_finished(output, writer):
        return f"{done} too late: the set was finished", ""
    if "Traceback" in said and "KeyboardInterrupt" not in said and done != "SIGKILL":  # then nobody is left to word it
        raise RuntimeError(f"{done} in {at}: {said}")
    if done == KILLS[1] and run.returncode == 1 and "a worker process died" not in said:
        raise RuntimeError(f"{done} in {at}: the error does not say so: {said}")
    return f"{done} in {at}", writer.finish(output)


def torture(writer: Writer, folder: Path, rounds: int, seed: int) -> Tally:
    """All rounds."""
    draw, tally = random.Random(seed), Tally()
    writer.fresh(folder / "whole")
    begins = watch(writer.start(folder / "whole"), folder / "whole")
    seconds, expected = durations(begins), contents(folder / "whole")
    print("undisturbed: " + ", ".join(f"{phase} {seconds[phase]:.2f} s" for phase in PHASES), flush=True)
    for number in range(rounds):
        phase, how = PHASES[number % len(PHASES)], KILLS[(number + number // len(PHASES)) % len(KILLS)]
        killed, said = play(writer, folder / "out", phase, how, seconds[phase], draw)
        tally.kills[killed] += 1
        for count, what in re.findall(r"goes on with (\d+) (\w+)", said):
            tally.reused[what] += int(count)
        found = {name: content for name, content in contents(folder / "out").items() if name != ".spool/lock"}
        names = sorted(name for name in found.keys() | expected if found.get(name) != expected.get(name))
        if names:
            tally.different.append(f"round {number}, {killed}: different: {', '.join(names[:5])}")
    return tally


def corpus(path: Path, megabytes: float, seed: int) -> str:
    """A JSONL file of documents of all sizes."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(2, 9))) for _ in range(500)]
    with open(path, "w") as file:
        while file.tell() < megabytes * 1e6:
            text = " ".join(draw.choices(words, k=int(10 ** draw.uniform(0, 3.5))))
            file.write(json.dumps({"text": text}) + "\n")
    return str(path)


def prepare(folder: Path, options: argparse.Namespace) -> Writer:
    """The command, its input and, for --append, the set of before."""
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    source = corpus(folder / "corpus.jsonl", options.megabytes, options.seed)
    same = ("--tokenizer", str(folder / "tokenizer"), "--seq_length", "512", "--workers", str(options.workers))
    same += ("--validation_fraction", "0.05", "--packing", options.packing, "--num_shards", "24", "--input")
    if not options.append:
        return Writer((*same, source), None)
    first = corpus(folder / "first.jsonl", 1, options.seed + 1)
    Writer((*same, first), None).finish(folder / "before")
    return Writer((*same, source, "--append"), folder / "before")


def main(argv: Sequence[str]) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser("python -m tests.torture.write", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--packing", default="wrap")
    parser.add_argument("--append", action="store_true")
    options = parser.parse_args(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory(prefix="tokentar-torture-") as name:
        tally = torture(prepare(Path(name), options), Path(name), options.rounds, options.seed)
    print(tally)
    return 1 if tally.different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
