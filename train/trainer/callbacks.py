"""A last checkpoint when the job is told to end: SIGTERM, or SIGUSR1 as Slurm sends it before the time is up.

Any rank may get the signal. At the end of each step the ranks agree whether one of them has, so that all save the same
step; Trainer's own `enable_jit_checkpoint` saves on each rank when that rank sees fit, and waits for the others for ever.
"""

import signal
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class LastCheckpoint(TrainerCallback):
    """Lets the step under way end, saves a checkpoint and stops the training. One integer is summed over the ranks a step."""

    def __init__(self) -> None:
        self.has_stopped = False
        self._is_told = False
        self._before: dict[signal.Signals, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Listen."""
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait until the checkpoint is whole, as one rank writes it to its end; then let signals mean again what they meant."""
        if self.has_stopped and dist.is_initialized():
            dist.barrier()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and stop when any rank was told to."""
        if self._is_anyone_told(args.device):
            self.has_stopped = control.should_save = control.should_training_stop = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_told = True

    def _is_anyone_told(self, device: torch.device) -> bool:
        if not dist.is_initialized():
            return self._is_told
        told = torch.tensor(int(self._is_told), device=device)
        dist.all_reduce(told)
        return bool(told.item())
