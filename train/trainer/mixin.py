"""ShardTrainerMixin: sets of shards under any Trainer class, in place of its data sets. See trainer.py for how it is used."""

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType, TrainOutput
from transformers.training_args import OptimizerNames

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.data.access import Access
from tokentar.train.data.loader import ShardLoader, open_sources, sets_of
from tokentar.train.data.plan_text import describe
from tokentar.train.data.sources import Sources
from tokentar.train.distributed.collectives import together
from tokentar.train.order.plan import global_batch_size, steps_for
from tokentar.train.trainer import checkpoint, failures, trainer_hooks
from tokentar.train.trainer.accounting import AccountingMixin
from tokentar.train.trainer.data_callback import DataCallback
from tokentar.train.trainer.model_checks import check_causal, check_model, keep_documents_apart
from tokentar.train.trainer.shard_evaluation import ShardEvaluationMixin, Shards, ShardSets, validation_sets
from tokentar.train.trainer.shard_saving import ShardSavingMixin
from tokentar.train.trainer.train_loader import TrainLoader
from tokentar.train.trainer.training_arguments import check_settings, recipe_of

_FROM_SHARDS = ("train_dataset", "data_collator")  # of Trainer, in whose place the shards are
_log = logging.getLogger(__name__)


class ShardTrainerMixin(ShardEvaluationMixin, ShardSavingMixin, AccountingMixin):
    """Goes before a Trainer class: `class MyTrainer(ShardTrainerMixin, Trainer)`.

    shards: as ShardLoader takes them; streams, order, separate_documents and access likewise; the seed of the order is
    args.data_seed (0 if None); stages, stopping_strategy and skip_list are ShardLoader's, too. audit: a folder in which each
    rank notes what it was trained on (see trace/audit.py). loss_by_source: log the loss of each source of a mixture.
    validation_shards, or eval_dataset: a set, or shards of one; of a set with a split
    `validation`, that split; or several by name, {"a": …, "b": …}, whose metrics are eval_a_loss and so on. max_tokens: a
    budget, in place of args.max_steps. All other arguments are those of the Trainer class below, but for train_dataset and
    data_collator. Training and evaluation are by the compute_loss of that class; ShardEvaluationMixin says when the loss of
    an evaluation is exact with it. trl.SFTTrainer counts tokens by position_ids, so it needs separate_documents. Raises
    SetError when the model does not fit the data, SettingError for settings that do not fit each other and for a Trainer
    class that this cannot go over.
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        shards: Shards | Mapping[str, tuple[Shards, float]] | Sources,
        validation_shards: ShardSets | None = None,
        order: str = "epoch",
        streams: int | None = None,
        separate_documents: bool = False,
        max_tokens: int | None = None,
        access: Access | None = None,
        stages: Sequence[tuple[int | None, Mapping[str, float]]] = (),
        stopping_strategy: str = "never",
        skip_list: str | os.PathLike[str] | None = None,
        audit: str | os.PathLike[str] | None = None,
        loss_by_source: bool = False,
        eval_dataset: ShardSets | None = None,
        callbacks: list[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        trainer_hooks.check_class(type(self), ShardTrainerMixin)
        for name in _FROM_SHARDS:
            if kwargs.pop(name, None) is not None:
                raise SettingError(f"{name}: given, but batches come from `shards` as they are; leave it out")
        self._sources = together(lambda: open_sources(shards, stages, stopping_strategy))
        self.manifest = next(iter(sets_of(self._sources).values()))
        self._skip_list, self._audit = skip_list, audit
        sets = validation_sets(validation_shards, eval_dataset)
        self._separate_documents, self._access = separate_documents, access or Access()
        self._max_tokens = max_tokens
        self._make_trainer(model, args, sets, callbacks or [], kwargs)
        self._check_model()
        loader = together(lambda: self._make_loader(order, streams))
        self.train_loader = TrainLoader(loader, recipe_of(self.args))
        self._add_accounting(loss_by_source)
        self._pools = {}
        self._add_sets(sets)
        self._beginning = self.train_loader.loader.state_dict()
        self._resumed_step = 0
        self._logged = (0.0, 0.0, 0)  # when, seconds waited and steps done at the last line of the log
        self._check_settings()

    def _make_trainer(
        self, model: Any, args: Any, sets: dict[str, Manifest], callbacks: list[Any], others: dict[str, Any]
    ) -> None:
        """Let the class below make itself, with stand-ins for its data sets. Raises SettingError for settings that it refuses."""
        if args is not None and args.ddp_find_unused_parameters is None:
            args.ddp_find_unused_parameters = False  # a causal language model uses all: spare DDP the search
        self._data = DataCallback()
        sample = _sample_of(self.manifest)
        data_sets = {"train_dataset": sample, "eval_dataset": dict.fromkeys(sets, sample) if sets else None}
        try:
            super().__init__(model, args, callbacks=[self._data, *callbacks], **data_sets, **others)
        except (ValueError, ImportError, RuntimeError) as error:
            if isinstance(error, SettingError) or (isinstance(error, RuntimeError) and "install" not in str(error)):
                raise
            raise SettingError(" ".join(str(error).split())) from error
        trainer_hooks.check_instance(self)
        self.train_dataset, self.eval_dataset = None, sets.get("", sets or None)

    def _check_model(self) -> None:
        network: Any = self.model
        for manifest in sets_of(self._sources).values():
            check_model(manifest, network)
        check_causal(network)
        if self._separate_documents:
            keep_documents_apart(network)

    def _make_loader(self, order: str, streams: int | None) -> ShardLoader:
        args = self.args
        of_a_step = global_batch_size(args.world_size, args.train_batch_size, args.gradient_accumulation_steps)
        if of_a_step != self.get_total_train_batch_size(args):
            raise SettingError(
                "parallelism_config: ranks that share a batch (tensor, context or sequence parallelism), needed: data parallelism "
                "alone, as each rank reads sequences of its own"
            )
        return ShardLoader(
            self._sources,
            batch_size=args.train_batch_size,
            seed=args.data_seed or 0,
            order=order,
            rank=args.process_index,
            world_size=args.world_size,
            num_workers=args.dataloader_num_workers,
            streams=streams,
            global_batch_size=of_a_step,
            separate_documents=self._separate_documents,
            access=self._access,
            skip_list=self._skip_list,
        )

    def _check_settings(self) -> None:
        """Raises SettingError when the run has two ends, or may get a batch without labels that the model cannot take.

        Also when FSDP was asked for and is not done, and for arguments that would do nothing.
        """
        if self.args.fsdp and self.args.world_size > 1 and not self.is_fsdp_enabled:
            raise SettingError(
                "fsdp: accelerate shards models over GPUs only, so each of these ranks would hold all of it; leave it out"
            )
        leaves_out = {"bad_shards: skip": self._access.bad_shards == "skip", "skip_list": self._skip_list is not None}
        for name, is_set in leaves_out.items():
            if is_set and not self.model_accepts_loss_kwargs:
                raise SettingError(
                    f"{name}, needed: nothing that leaves out rows, as this model averages the loss of each batch by itself"
                )
        check_settings(self.args)
        if self._max_tokens is not None and self.args.max_steps > 0:
            raise SettingError(f"max_tokens: {self._max_tokens} and max_steps: {self.args.max_steps}; give one of them")

    def get_train_dataloader(self) -> Any:
        """The loader of the shards: as it is not a DataLoader, neither Trainer nor accelerate splits it again."""
        if self.train_loader.batch_size != self.args.train_batch_size:
            raise SettingError(
                f"per_device_train_batch_size: {self.args.train_batch_size}, but {self.train_loader.batch_size} when this trainer was "
                "made, which the order of reading is laid out for; make another trainer"
            )
        return self.train_loader

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, from the start or from a checkpoint's next unseen sequence; True takes the last whole one, if there is any."""
        if self.train_loader.loader.endless and self._max_tokens is None and self.args.max_steps <= 0:
            raise SettingError(f"order {self.train_loader.loader.order.kind!r} has no end; set max_steps or max_tokens")
        folder = checkpoint.find(Path(str(self.args.output_dir)), resume_from_checkpoint)
        state = self._beginning if folder is None else checkpoint.read_position(folder)
        self.train_loader.go_to(state)
        self._resumed_step = state.get("step", 0)
        self._begin_leg(state)
        self.args.ignore_data_skip = True  # the loader stands at the next unseen sequence already
        if self._max_tokens is not None:
            self.args.max_steps = self._resumed_step + self._steps_left(self._max_tokens)
        self._end_with_mixture()
        if self.is_world_process_zero():
            self._tell_start(folder)
        self._logged = (time.perf_counter(), self.train_loader.waited, self._resumed_step)
        self._data.train_loader, underway = self.train_loader, self._data.underway
        underway.is_starting, underway.read_from = True, folder
        with underway.naming():
            return super().train(str(folder) if folder else None, *args, **kwargs)

    def _end_with_mixture(self) -> None:
        """Let a mixture that ends end the run. Raises SettingError when more is asked for than it has."""
        loader = self.train_loader.loader
        if loader.order.kind == "mixture" and not loader.endless:
            if self.args.max_steps > (steps := loader.plan.steps):
                raise SettingError(
                    f"max_steps: {self.args.max_steps}, but the first source ends after {steps} steps; set fewer, or "
                    "stopping_strategy: never"
                )
            self.args.max_steps = self.args.max_steps if self.args.max_steps > 0 else steps

    def _tell_start(self, folder: Path | None) -> None:
        loader = self.train_loader.loader
        steps = self.args.max_steps if self.args.max_steps > 0 else None
        for line in describe(loader.reading.by_name, loader.order, loader.plan, loader.world, steps):
            _log.info(line)
        if folder is not None:
            place = (self._resumed_step, loader.epoch, loader.position)
            _log.info("going on from %s: step %d, epoch %d, sample %d", folder, *place)
            checkpoint.warn_of_weights_alone(folder)

    def _steps_left(self, max_tokens: int) -> int:
        """Steps until a budget of tokens is spent, counting what the checkpoint has behind it."""
        loader, seq_length = self.train_loader.loader, self.manifest.info.seq_length
        done = loader.consumed * seq_length
        return steps_for(max_tokens, loader.plan.global_batch_size, seq_length, done)

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> Any:
        """Trainer's numbers of epochs and steps, made true for a run that goes on, maybe with another global batch.

        Trainer begins such a run at epoch `step // steps_per_epoch`, so the number of epochs given here is that and as many
        as are still to be iterated over, the one under way included.
        """
        epochs, steps_per_epoch, *others, max_steps = super().set_initial_training_values(args, dataloader)
        loader, step = self.train_loader.loader, self._resumed_step
        self._data.num_train_epochs = epochs
        if step and not loader.endless:
            of_this_epoch = loader.plan.steps_from(loader.position)
            done = (loader.epoch + 1) * steps_per_epoch - of_this_epoch
            if args.max_steps <= 0:
                max_steps = step + max(0, max_steps - done)
            left = max_steps - step
            self._data.num_train_epochs = max(epochs, math.ceil((done + left) / steps_per_epoch))
            epochs = step // steps_per_epoch + 1 + math.ceil(max(0, left - of_this_epoch) / steps_per_epoch)
        if max_steps <= step > 0:
            epochs = 0  # all is done: Trainer would take one step more
        return epochs, steps_per_epoch, *others, max_steps

    def create_optimizer(self, model: Any = None) -> Any:
        """Trainer's. Raises SettingError for one that cannot be made."""
        with failures.setting("optim", OptimizerNames(self.args.optim).value, "see --optim and --optim_args"):
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Trainer's. Raises SettingError for one that cannot be made, such as one without an argument that it needs."""
        kind = f"{SchedulerType(self.args.lr_scheduler_type).value} with lr_scheduler_kwargs {self.args.lr_scheduler_kwargs}"
        with failures.setting("lr_scheduler_type", kind, "give what it needs by --lr_scheduler_kwargs, as JSON"):
            return super().create_scheduler(num_training_steps, optimizer)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Trainer's number of labels to divide the loss by, without the first of each row, which nothing predicts.

        At least one, as all rows of a batch may have been left out.
        """
        shifted = [{**batch, "shift_labels": batch["labels"][..., 1:]} for batch in batch_samples]
        number: Any = super()._get_num_items_in_batch(shifted, device)
        return number.clamp(min=1) if hasattr(number, "clamp") else number

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add tokens per second and the share of time spent waiting for data since the last line."""
        if "loss" in logs:
            loader, (when, waited, step) = self.train_loader.loader, self._logged
            self._logged = (time.perf_counter(), self.train_loader.waited, self.state.global_step)
            seconds = self._logged[0] - when
            tokens = (self.state.global_step - step) * loader.plan.global_batch_size * self.manifest.info.seq_length
            logs["tokens_per_second"] = round(tokens / seconds)
            logs["data_wait"] = round((self.train_loader.waited - waited) / seconds, 5)
            if loader.left_out:
                logs["rows_left_out"] = loader.left_out  # of this rank
            logs |= self._of_sources()
        super().log(logs, start_time)


def _sample_of(manifest: Manifest) -> datasets.Dataset:
    """A stand-in of one row for Trainer classes that look at their data sets when they are made; nothing is trained on it."""
    ids = list(range(min(2, manifest.info.tokenizer.vocab_length)))
    return datasets.Dataset.from_dict({"input_ids": [ids], "labels": [ids]})
