"""What a run leaves behind however it ends: the sequences and the loss of each step, one JSON line each, and how it is compared.

A run may be told to end itself by SIGKILL, or to wait for that, at a step or while it writes a checkpoint.
"""

import json
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback

from tests.helpers.marked import write_marked
from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.helpers.worlds import canonical, canonical_steps, without_end
from tokentar import Manifest, ShardLoader

STREAMS, GLOBAL_BATCH, SEED = 24, 24, 6
STEPS, STEPS_PER_EPOCH, SAVE_STEPS = 33, 11, 4
WEIGHTS = "weights.pt"


@dataclass(frozen=True, kw_only=True)
class Death:
    """Where a rank kills itself, or waits to be killed."""

    step: int
    rank: int = 0
    while_saving: bool = False  # the checkpoint of that step: the model is written, the rest is not
    from_outside: bool = False


class JournalTrainer(RecordingTrainer):
    """SharedNotes each batch and loss as it comes in files OUTPUT/NAME-RANK.jsonl."""

    journal: Path
    death: Death | None = None

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._note(numbers=inputs["input_ids"][:, 0].tolist(), step=self.state.global_step + 1)
        loss = super().training_step(model, inputs, *args, **kwargs)
        self._die(self.state.global_step + 1, while_saving=False)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.is_world_process_zero():
            self._note(loss=logs["loss"], step=self.state.global_step)
        super().log(logs, start_time)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self._die(self.state.global_step, while_saving=True)
        super()._save_optimizer_and_scheduler(output_dir)

    def _note(self, **line: Any) -> None:
        with open(f"{self.journal}-{self.args.process_index}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def _die(self, step: int, *, while_saving: bool) -> None:
        death = self.death
        if death and (death.step, death.rank, death.while_saving) == (step, self.args.process_index, while_saving):
            if death.from_outside:
                time.sleep(100)
            os.kill(os.getpid(), signal.SIGKILL)


def write_set(folder: Path) -> Manifest:
    """273 sequences in 11 shards: an epoch is 11 global batches of 24, and 9 are left out."""
    return write_marked(folder, 11, [25] * 9 + [24] * 2, vocab_length=300)


def run(shards: Path | str, output: Path, name: str, death: Death | None = None, **settings: Any) -> None:
    """Train for three epochs, or as many steps, from the last whole checkpoint in `output` if there is one; keep the weights."""
    torch.manual_seed(0)
    order = settings.pop("order", "epoch")
    length = {"num_train_epochs": 3} if order == "epoch" else {"max_steps": STEPS}
    saving = {"save_strategy": "steps", "save_steps": SAVE_STEPS, "data_seed": SEED, "learning_rate": 5e-3}
    args = quiet_arguments(output / "run", **length | saving | settings)
    trainer = JournalTrainer(model=tiny_model(), args=args, shards=shards, streams=STREAMS, order=order)
    trainer.remove_callback(PrinterCallback)
    trainer.journal, trainer.death = output / name, death
    trainer.train(resume_from_checkpoint=True)
    if trainer.is_world_process_zero():
        torch.save({key: value.clone() for key, value in trainer.model.state_dict().items()}, output / WEIGHTS)


def expected_steps(manifest: Manifest, order: str) -> dict[int, list[int]]:
    """The sequences of each step of a run over that set, by the slow order."""
    reading = ShardLoader(manifest, batch_size=GLOBAL_BATCH, seed=SEED, order=order, streams=STREAMS).order
    if order == "epoch":
        epochs = [canonical_steps(canonical(manifest, reading, epoch), GLOBAL_BATCH) for epoch in range(3)]
        return dict(enumerate(chain.from_iterable(epochs), 1))
    return dict(enumerate(canonical_steps(without_end(manifest, reading, STEPS * GLOBAL_BATCH), GLOBAL_BATCH), 1))


@dataclass(frozen=True)
class Record:
    """The steps of one run or part of a run: sequences (sorted) and losses; a step that was cut off is not in it."""

    sequences: dict[int, list[int]]
    losses: dict[int, float]


def read(output: Path, name: str) -> Record:
    """What all ranks of the run `name` noted."""
    sequences: dict[int, list[int]] = defaultdict(list)
    losses: dict[int, float] = {}
    for file in output.glob(f"{name}-*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            if "loss" in line:
                losses[line["step"]] = line["loss"]
            else:
                sequences[line["step"]] += line["numbers"]
    whole = {step: sorted(numbers) for step, numbers in sequences.items() if len(numbers) == GLOBAL_BATCH}
    return Record(whole, losses)


def differences(wanted: Path, output: Path, names: list[str]) -> list[str]:
    """What the parts `names` of a run in `output` did otherwise than the run "whole" in `wanted`, a line each; none if all is right.

    Sequences are to be the same, losses within 1e-4 of their size, weights within 1e-4.
    """
    whole, parts = read(wanted, "whole"), {name: read(output, name) for name in names}
    found = []
    for name, part in parts.items():
        found += [
            f"{name}: step {s} read other sequences"
            for s in part.sequences
            if part.sequences[s] != whole.sequences.get(s)
        ]
        found += [
            f"{name}: step {step} has loss {loss}, not {whole.losses[step]}"
            for step, loss in part.losses.items()
            if abs(loss - whole.losses[step]) > 1e-4 * whole.losses[step]
        ]
    missing = set(range(1, STEPS + 1)) - {step for part in parts.values() for step in part.sequences}
    found += [f"step {step} was never taken" for step in sorted(missing)]
    weights, others = (torch.load(folder / WEIGHTS, weights_only=True) for folder in (wanted, output))
    gaps = {key: float((weights[key] - others[key]).abs().max()) for key in weights}
    return found + [f"weights {key} differ by {gap:.1e}" for key, gap in gaps.items() if gap > 1e-4]
