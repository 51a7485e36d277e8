"""Kill training runs and let them go on elsewhere: python -m tests.torture.train --rounds 5 --seed 1

In each round a run of three epochs goes from 4 ranks to 2, 1 and 3, each with its own workers, batch size and accumulation; every part
but the last is killed with SIGKILL, by itself at a random step or while it writes a checkpoint, or from outside with all its
processes. Together the parts must do what one run that nobody stops does in one process: the same sequences in each step, the same
losses, the same weights. Prints what was done and what differs; exit status 1 if anything does. A round takes about a minute.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.torchrun import journal
from tests.torchrun.journal import SAVE_STEPS, STEPS, Death
from tests.torchrun.start import torchrun

RANKS = (4, 2, 1, 3)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One start of torchrun."""

    ranks: int
    workers: int
    batch_size: int
    accumulation: int
    death: Death | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """As TrainingArguments has them."""
        return {
            "per_device_train_batch_size": self.batch_size,
            "gradient_accumulation_steps": self.accumulation,
            "dataloader_num_workers": self.workers,
        }


def draw_parts(random: Random, most_workers: int = 2) -> list[Part]:
    """Parts that each get some steps further, of which the last one is let live."""
    ends = sorted(random.sample(range(SAVE_STEPS + 1, STEPS), len(RANKS) - 1))
    return [draw_part(random, ranks, end, most_workers) for ranks, end in zip(RANKS, [*ends, None], strict=True)]


def draw_part(random: Random, ranks: int, end: int | None, most_workers: int) -> Part:
    """A part that is killed about step `end`."""
    each = journal.GLOBAL_BATCH // ranks
    accumulation = random.choice([n for n in (1, 2, 3, 4) if each % n == 0])
    workers = random.choice([n for n in range(most_workers + 1) if journal.STREAMS % (ranks * max(1, n)) == 0])
    part = Part(ranks=ranks, workers=workers, batch_size=each // accumulation, accumulation=accumulation)
    if end is None:
        return part
    while_saving, from_outside = random.random() < 0.4, random.random() < 0.4
    step = end // SAVE_STEPS * SAVE_STEPS if while_saving else end
    rank = 0 if while_saving else random.randrange(ranks)
    return replace(part, death=Death(step=step, rank=rank, while_saving=while_saving, from_outside=from_outside))


def run_part(shards: Path, output: Path, name: str, part: Part, order: str) -> str | None:
    """Start a part and let it end; what is wrong with its end, if anything."""
    death = json.dumps(part.death and asdict(part.death))
    command = (
        "tests.torchrun.elastic",
        str(shards),
        str(output),
        name,
        death,
        json.dumps(part.settings | {"order": order}),
    )

    def has_come_far() -> bool:
        steps = journal.read(output, f"{name}.0").sequences
        return part.death is not None and max(steps, default=0) >= part.death.step - 1

    is_killed = part.death is not None and part.death.from_outside
    ended = torchrun(*command, ranks=part.ranks, kill_when=has_come_far if is_killed else None)
    if (ended.returncode == 0) != (part.death is None):
        return f"{name}: exit status {ended.returncode}: {ended.stderr[-2000:]}"
    return None


def run_round(folder: Path, parts: Sequence[Part], order: str) -> list[str]:
    """The whole run in this process and the parts, one after the other; what differs."""
    shards, whole, output = folder / "set", folder / "whole", folder / "parts"
    journal.write_set(shards)
    for path in (whole, output):
        path.mkdir()
    journal.run(shards, whole, "whole", per_device_train_batch_size=24, order=order, save_strategy="no")
    for number, part in enumerate(parts):
        wrong = run_part(shards, output, f"part{number}", part, order)
        if wrong:
            return [wrong]
    return journal.differences(whole, output, [f"part{number}.0" for number in range(len(parts))])


def main(argv: Sequence[str]) -> int:
    """Torture; returns the exit status."""
    parser = argparse.ArgumentParser("python -m tests.torture.train", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="default: 1")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    options = parser.parse_args(argv)
    failed = 0
    for number in range(options.rounds):
        random = Random(f"{options.seed} {number}")
        order, parts = random.choice(["epoch", "repeat", "resample"]), draw_parts(random)
        print(f"round {number + 1} of {options.rounds}: order {order}", *parts, sep="\n  ", flush=True)
        with tempfile.TemporaryDirectory(prefix="tokentar-torture-") as folder:
            found = run_round(Path(folder), parts, order)
        print(
            *(f"  DIFFERENT: {line}" for line in found), "  failed" if found else "  all the same", sep="\n", flush=True
        )
        failed += bool(found)
    print(f"{options.rounds - failed} of {options.rounds} rounds as if nobody had stopped them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
