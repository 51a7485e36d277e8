"""What a job was really trained on, written by each rank, and compared with what its order says (G4).

    DIR/rank-00000.jsonl    of each start of training a line that tells the state it began with, then a line for each step

A start of training supersedes what an earlier one did behind the step that it goes on from.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.train.data.loader import ShardLoader
from tokentar.train.data.reading import MixtureReading
from tokentar.train.trace.history import History, Leg
from tokentar.train.trace.locate import Locator

_PATTERN = "rank-*.jsonl"


class Audit:
    """The file of one rank. A step is written at its end."""

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self.path = Path(folder) / f"rank-{rank:05d}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._keys: list[str] = []

    def last_run(self) -> int:
        """The number of the last start that this rank has noted; 0 when there is none."""
        return max((line["run"] for line in _lines(self.path) if "run" in line), default=0)

    def begin(self, run: int, loader: ShardLoader, step: int) -> None:
        """Note a start of training after `step` steps."""
        _end_line(self.path)
        world, plan = loader.world, loader.plan
        leg = Leg(step, loader.epoch, loader.position, plan.global_batch_size)
        start = {"run": run, "rank": world.rank, "world_size": world.world_size, "leg": leg.to_json()}
        all_stages = {"stages": loader.reading.stages} if isinstance(loader.reading, MixtureReading) else {}
        self._write(start | {"state": loader.state_dict() | all_stages})

    def add(self, keys: Iterable[str]) -> None:
        """Note a batch of the step under way."""
        self._keys += keys

    def end_step(self, step: int) -> None:
        """Write what the step was trained on."""
        self._write({"step": step, "keys": self._keys})
        self._keys = []

    def drop(self) -> None:
        """Forget batches that no step was trained on."""
        self._keys = []

    def _write(self, line: dict[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file but for a last one that was cut by a kill. Raises SetError for any other that is none."""
    if not path.exists():
        return
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines[:-1], 1):
        if line:
            try:
                yield json.loads(line)
            except ValueError as error:
                raise SetError(f"{path}:{number}: not a line of an audit ({error}); the file is damaged") from None


def _end_line(path: Path) -> None:
    """Take back a last line that was cut."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with open(path, "r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)


@dataclass(frozen=True)
class Run:
    """One start of training: where it began, with how many ranks, and the keys of each step by rank."""

    leg: Leg
    world_size: int
    state: dict[str, Any]
    steps: dict[int, dict[int, list[str]]]  # step → rank → keys


def read_runs(folder: str | Path) -> list[Run]:
    """All starts of training, in their order. Raises SettingError when there are none."""
    runs: dict[int, Run] = {}
    for path in sorted(Path(folder).glob(_PATTERN)):
        run, rank = None, -1
        for line in _lines(path):
            if "run" in line:
                empty: dict[int, dict[int, list[str]]] = defaultdict(dict)
                run = runs.setdefault(line["run"], Run(Leg(**line["leg"]), line["world_size"], line["state"], empty))
                rank = line["rank"]
            elif run is not None:
                run.steps[line["step"]][rank] = line["keys"]
    if not runs:
        raise SettingError(f"check: {folder}: no {_PATTERN} in it, needed: the folder that --audit was given")
    return [runs[number] for number in sorted(runs)]


def faults(folder: str | Path, loader: ShardLoader, skipped: Iterable[str] = ()) -> Iterator[str]:
    """What the job was trained on otherwise than its order says, a sentence each; nothing when all is right.

    loader: one of the job's data, on one rank. skipped: keys that may be missing, as rows that are left out are.
    """
    runs, may_miss = read_runs(folder), set(skipped)
    ends = [min((later.leg.step for later in runs[number + 1 :]), default=None) for number in range(len(runs))]
    for run, end in zip(runs, ends, strict=True):
        yield from _faults_of(run, end, loader, may_miss)


def _faults_of(run: Run, end: int | None, loader: ShardLoader, may_miss: set[str]) -> Iterator[str]:
    """Those of one start, up to the step that the next one goes on from."""
    loader.follow(run.state)
    history, locator = History((run.leg,), None if loader.endless else loader.order.samples), Locator(loader.reading)
    last = max(run.steps, default=run.leg.step) if end is None else end
    for step in range(run.leg.step + 1, last + 1):
        ranks = run.steps.get(step, {})
        if missing := sorted(set(range(run.world_size)) - set(ranks)):
            yield f"step {step}: nothing from rank {', '.join(map(str, missing))} of {run.world_size}"
            continue
        trained = Counter(key for keys in ranks.values() for key in keys)
        planned = Counter(sequence.key for sequence in locator.sequences(*history.samples_of(step)))
        for key in sorted((planned - trained).elements()):
            if key not in may_miss:
                yield f"step {step}: {key} is missing"
        for key in sorted((trained - planned).elements()):
            yield f"step {step}: {key} was trained on, and is not of this step"


def totals(folder: str | Path) -> tuple[int, int, int]:
    """Starts of training, the last step, and sequences trained on, those of steps done again counted once."""
    runs = read_runs(folder)
    latest: dict[int, int] = {}
    for run in runs:
        latest = {step: count for step, count in latest.items() if step <= run.leg.step}
        latest |= {step: sum(map(len, ranks.values())) for step, ranks in run.steps.items()}
    return len(runs), max(latest, default=0), sum(latest.values())
