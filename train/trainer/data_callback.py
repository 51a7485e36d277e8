"""Keeps Trainer's state in step with the data: epochs by the position of the reading, and which part of a run is under way."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tokentar.shard_writer.errors import SetError
from tokentar.train.trainer.checkpoint import POSITION_FILE
from tokentar.train.trainer.failures import Underway
from tokentar.train.trainer.train_loader import TrainLoader


class DataCallback(TrainerCallback):
    """Goes before the callbacks of users, so that they see the state as it should be.

    Trainer starts the count of an epoch anew when a run goes on, as with `ignore_data_skip` it knows nothing of what is
    behind.
    """

    def __init__(self) -> None:
        self.underway = Underway()
        self.train_loader: TrainLoader | None = None
        self.num_train_epochs = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """All is loaded, but for the state of the random generators."""
        self.underway.is_starting = False
        state.num_train_epochs = self.num_train_epochs

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Which is loaded now, when the epoch is the first of a run that goes on."""
        self.underway.is_starting = self.train_loader is not None and not self.train_loader.has_begun

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """From here on what fails is no matter of the checkpoint."""
        self.underway.is_starting = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Trainer has counted as if the epoch began with this run."""
        assert self.train_loader is not None
        state.epoch = self.train_loader.epochs_done

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint is written."""
        folder, self.underway.written_to = self.underway.written_to, None
        if args.should_save and not (folder and (folder / POSITION_FILE).exists()):
            raise SetError(
                f"{Path(str(args.output_dir)) / f'checkpoint-{state.global_step}'}: no {POSITION_FILE} in it; save_model of the "
                "Trainer class must call that of ShardTrainerMixin, by super()"
            )
