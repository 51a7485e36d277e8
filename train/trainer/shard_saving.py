"""Saving of a ShardTrainer: the position of the data goes into each checkpoint (G6), and failures of disks and hubs are told."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import Trainer

from tokentar.shard_writer.errors import SettingError, StoreError
from tokentar.train.distributed.collectives import together
from tokentar.train.trace.history import Leg
from tokentar.train.trainer import checkpoint, failures
from tokentar.train.trainer.data_callback import DataCallback
from tokentar.train.trainer.train_loader import TrainLoader

if TYPE_CHECKING:
    _Trainer = Trainer
else:
    _Trainer = object


class ShardSavingMixin(_Trainer):
    """The part of ShardTrainerMixin that saves."""

    train_loader: TrainLoader
    _legs: tuple[Leg, ...]
    _data: DataCallback

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Trainer's. Raises SettingError when the hub cannot be reached or refuses, on all ranks, before the first step."""
        together(lambda: self._init_hf_repo(*args, **kwargs))

    def _init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        way_out = "leave push_to_hub out, or see that the hub is reached and `hf auth whoami` knows you"
        with failures.of_hub(SettingError, f"push_to_hub: {self.args.hub_model_id or self.args.output_dir}", way_out):
            super().init_hf_repo(*args, **kwargs)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's. Raises StoreError when the hub cannot be reached any more."""
        way_out = f"the model is saved in {self.args.output_dir}, and `hf upload` sends it"
        with failures.of_hub(StoreError, f"push_to_hub: {self.args.hub_model_id or self.args.output_dir}", way_out):
            return super().push_to_hub(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Trainer's; at the beginning of a checkpoint, the position of the data is put into it first."""
        folder = Path(str(output_dir or self.args.output_dir))
        if _internal_call and folder.name == f"checkpoint-{self.state.global_step}":
            self._begin_checkpoint(folder)
        with failures.writing(folder):
            super().save_model(output_dir, _internal_call=_internal_call)

    def _begin_checkpoint(self, folder: Path) -> None:
        """Put the position into a checkpoint before Trainer writes what makes it look complete."""
        self._data.underway.written_to = folder
        left_out = self.train_loader.left_out()
        state = self.train_loader.loader.state_dict() | {"left_out": left_out}
        if left_out["shards"]:
            state["damaged_shards"] = left_out["shards"]  # of all ranks
        state["history"] = [leg.to_json() for leg in self._legs]
        if self.args.should_save:
            checkpoint.write_position(folder, state, self.state.global_step)
        self._wait_for_everyone()

    def _save_rng_state(self, output_dir: str) -> None:
        """Trainer's, and then wait, so that rank 0 does not complete a checkpoint that others still write to."""
        super()._save_rng_state(output_dir)
        self._wait_for_everyone()

    def _wait_for_everyone(self) -> None:
        self.accelerator.wait_for_everyone()
