"""ShardTrainer: transformers.Trainer, fed by a ShardLoader that accelerate never touches.

    trainer = ShardTrainer(model=model, args=training_args, shards="out/", validation_shards="out/")
    trainer.train(resume_from_checkpoint=True)

Everything else, DDP, FSDP, bf16, accumulation, schedules, logging, is Trainer's own, set by its own arguments.
"""

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers.trainer
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.data.access import Access
from tokentar.train.data.loader import ShardLoader
from tokentar.train.data.plan_text import describe
from tokentar.train.data.shard_patterns import select_shards
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.distributed.collectives import together
from tokentar.train.distributed.world import World
from tokentar.train.order.plan import global_batch_size, steps_for
from tokentar.train.trainer import checkpoint, evaluation
from tokentar.train.trainer.model_checks import check_causal, check_model, check_same_tokenizer, keep_documents_apart
from tokentar.train.trainer.train_loader import NOTHING, TrainLoader
from tokentar.train.trainer.training_arguments import check_settings

_OF_A_NODE = (
    "output_dir",
    "resume_from",
    "local_rank",
    "log_",
    "report_to",
    "run_name",
    "disable_tqdm",
    "hub_",
    "trackio",
)
_log = logging.getLogger(__name__)
Shards = str | os.PathLike[str] | Manifest


class ShardTrainer(Trainer):
    """A Trainer whose training and validation data are sets of shards.

    shards: as ShardLoader takes them; streams, order, separate_documents and access likewise; the seed of the order is args.data_seed (0 if
    None). validation_shards: a set, or shards of one; of a set with a split `validation`, that split. max_tokens: a budget, in place
    of args.max_steps. All other arguments are Trainer's. Raises SetError when the model does not fit the data, SettingError for
    settings that do not fit each other.
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        shards: Shards,
        validation_shards: Shards | None = None,
        order: str = "epoch",
        streams: int | None = None,
        separate_documents: bool = False,
        max_tokens: int | None = None,
        access: Access | None = None,
        **kwargs: Any,
    ) -> None:
        self.manifest = shards if isinstance(shards, Manifest) else together(lambda: select_shards(shards))
        self.validation = _validation(validation_shards)
        if args is not None and args.ddp_find_unused_parameters is None:
            args.ddp_find_unused_parameters = False  # a causal language model uses all: spare DDP the search
        try:
            super().__init__(model, args, eval_dataset=self.validation, **kwargs)
        except (ValueError, ImportError, RuntimeError) as error:  # settings that Trainer refuses
            if isinstance(error, RuntimeError) and "install" not in str(error):
                raise
            raise SettingError(" ".join(str(error).split())) from error
        network: Any = self.model
        check_model(self.manifest, network)
        check_causal(network)
        if self.validation is not None:
            check_same_tokenizer(self.manifest, self.validation)
            check_model(self.validation, network)
        if separate_documents:
            keep_documents_apart(network)
        self._separate_documents, self._access = separate_documents, access or Access()
        self._max_tokens = max_tokens
        self.train_loader = TrainLoader(self._make_loader(order, streams), recipe_of(self.args))
        self._validation_pool = None if self.validation is None else self._pool_of(self.validation)
        self._beginning = self.train_loader.loader.state_dict()
        self._resumed_step = 0
        self._logged = (0.0, 0.0, 0)  # when, seconds waited and steps done at the last line of the log
        self._check_end()

    def _make_loader(self, order: str, streams: int | None) -> ShardLoader:
        args, size = self.args, self._train_batch_size
        of_a_step = global_batch_size(args.world_size, size, args.gradient_accumulation_steps)
        if of_a_step != self.get_total_train_batch_size(args):
            raise SettingError(
                "parallelism_config: ranks that share a batch (tensor, context or sequence parallelism), needed: data parallelism "
                "alone, as each rank reads sequences of its own"
            )
        return ShardLoader(
            self.manifest,
            batch_size=size,
            seed=args.data_seed or 0,
            order=order,
            rank=args.process_index,
            world_size=args.world_size,
            num_workers=args.dataloader_num_workers,
            streams=streams,
            global_batch_size=of_a_step,
            separate_documents=self._separate_documents,
            access=self._access,
        )

    def _pool_of(self, validation: Manifest) -> ShardPool:
        world = World(self.args.process_index, self.args.world_size)
        return ShardPool.for_evaluation(validation, self._access, world)

    def _check_end(self) -> None:
        """Raises SettingError when the run has two ends, or none, or may get a batch without labels that the model cannot take.

        Also when FSDP was asked for and is not done.
        """
        if self.args.fsdp and self.args.world_size > 1 and not self.is_fsdp_enabled:
            raise SettingError(
                "fsdp: accelerate shards models over GPUs only, so each of these ranks would hold all of it; leave it out"
            )
        if self._access.bad_shards == "skip" and not self.model_accepts_loss_kwargs:
            raise SettingError(
                "bad_shards: skip, needed: error, as this model averages the loss of each batch by itself"
            )
        check_settings(self.args)
        if self._max_tokens is not None and self.args.max_steps > 0:
            raise SettingError(f"max_tokens: {self._max_tokens} and max_steps: {self.args.max_steps}; give one of them")
        if self.train_loader.loader.endless and self._max_tokens is None and self.args.max_steps <= 0:
            raise SettingError(f"order {self.train_loader.loader.order.kind!r} has no end; set max_steps or max_tokens")

    def get_train_dataloader(self) -> Any:
        """The feed: as it is not a DataLoader, neither Trainer nor accelerate splits it again."""
        return self.train_loader

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, from the start or from a checkpoint's next unseen sequence; True takes the last whole one, if there is any."""
        folder = checkpoint.find(Path(str(self.args.output_dir)), resume_from_checkpoint)
        state = self._beginning if folder is None else checkpoint.read_position(folder)
        loader = self.train_loader.loader
        loader.load_state_dict(state)
        self.train_loader.left_out_before = state.get("left_out", NOTHING)
        self._resumed_step = state.get("step", 0)
        self.args.ignore_data_skip = False  # nothing is read again, but Trainer has to count what is behind
        if self._max_tokens is not None:
            self.args.max_steps = self._resumed_step + self._steps_left(self._max_tokens)
        if self.is_world_process_zero():
            for line in describe(loader.reading.by_name, loader.order, loader.plan, loader.world):
                _log.info(line)
            if folder is not None:
                place = (self._resumed_step, loader.epoch, loader.position)
                _log.info("going on from %s: step %d, epoch %d, sample %d", folder, *place)
                checkpoint.warn_of_weights_alone(folder)
        self._logged = (time.perf_counter(), self.train_loader.waited, self._resumed_step)
        return super().train(str(folder) if folder else None, *args, **kwargs)

    def _steps_left(self, max_tokens: int) -> int:
        """Steps until a budget of tokens is spent, counting what the checkpoint has behind it."""
        loader, seq_length = self.train_loader.loader, self.manifest.info.seq_length
        done = loader.consumed * seq_length
        return steps_for(max_tokens, loader.plan.global_batch_size, seq_length, done)

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> Any:
        """Trainer's numbers of epochs and steps, made true for a run that goes on, maybe with another global batch."""
        epochs, steps_per_epoch, *others, max_steps = super().set_initial_training_values(args, dataloader)
        loader, step = self.train_loader.loader, self._resumed_step
        if step and not loader.endless:
            done = (loader.epoch + 1) * steps_per_epoch - loader.plan.steps_from(loader.position)
            if args.max_steps <= 0:
                max_steps = step + max(0, max_steps - done)
            epochs = max(epochs, math.ceil((done + max_steps - step) / steps_per_epoch))
        if max_steps <= step > 0:
            epochs = 0  # all is done: Trainer would take one step more
        return epochs, steps_per_epoch, *others, max_steps

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Epochs, and batches of the epoch under way, that are done: from the position, not from the number of steps."""
        super()._init_training_state(*args, **kwargs)
        loader = self.train_loader.loader
        if loader.endless:  # for Trainer all of it is epoch 0
            return 0, self.state.global_step * self.args.gradient_accumulation_steps
        steps = loader.plan.steps - loader.plan.steps_from(loader.position)
        return loader.epoch, steps * self.args.gradient_accumulation_steps

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Trainer's epoch, without the replay: the feed already stands at the next unseen sequence."""
        with _no_replay():
            super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        with checkpoint.naming(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        with checkpoint.naming(folder):
            super()._load_optimizer_and_scheduler(folder)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Put the position into the checkpoint before Trainer writes what makes it look complete."""
        state = self.train_loader.loader.state_dict() | {"left_out": self.train_loader.left_out()}
        if self.is_world_process_zero():
            folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
            checkpoint.write_position(folder, state, self.state.global_step)
        self._wait_for_everyone()
        super()._save_checkpoint(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        """Trainer's, and then wait, so that rank 0 does not complete a checkpoint that others still write to."""
        super()._save_rng_state(output_dir)
        self._wait_for_everyone()

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's number of labels to divide the loss by; at least one, as all rows of a batch may have been left out."""
        number: Any = super()._get_num_items_in_batch(*args, **kwargs)
        return number.clamp(min=1) if hasattr(number, "clamp") else number

    def _wait_for_everyone(self) -> None:
        self.accelerator.wait_for_everyone()

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Mean loss over every token of the validation set and its perplexity: the same number on any number of ranks."""
        pool = self._validation_pool if eval_dataset is None else self._pool_of(eval_dataset)
        if pool is None:
            raise SettingError("evaluate: no validation set; give ShardTrainer validation_shards")
        start = time.perf_counter()
        loss, tokens = evaluation.mean_loss(
            self.model_wrapped if self.is_fsdp_enabled else self.model,
            evaluation.batches(
                pool,
                World(self.args.process_index, self.args.world_size),
                self.args.eval_batch_size,
                separate_documents=self._separate_documents,
            ),
            self._prepare_inputs,
            self.compute_loss_context_manager,
        )
        metrics = {
            f"{metric_key_prefix}_loss": loss,
            f"{metric_key_prefix}_perplexity": evaluation.perplexity(loss),
            f"{metric_key_prefix}_sequences": int(pool.manifest.num_sequences.sum()),
            f"{metric_key_prefix}_tokens": tokens,
            f"{metric_key_prefix}_runtime": round(time.perf_counter() - start, 4),
        }
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

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
            if loader.endless:
                self.state.epoch = round(loader.position / loader.plan.samples, 5)
        super().log(logs, start_time)


def _validation(shards: Shards | None) -> Manifest | None:
    if shards is None or isinstance(shards, Manifest):
        return shards
    return together(lambda: select_shards(shards, prefer="validation"))


def recipe_of(args: TrainingArguments) -> dict[str, Any]:
    """The settings that all ranks must share: all but those of places and of what is said."""
    settings: dict[str, Any] = args.to_dict()  # type: ignore[no-untyped-call]
    return {f"--{key}": value for key, value in settings.items() if not key.startswith(_OF_A_NODE)}


@contextmanager
def _no_replay() -> Iterator[None]:
    """Trainer skips the batches of the epoch that are done by reading them again; a TrainLoader needs none of that."""
    module: Any = transformers.trainer
    original = module.skip_first_batches
    module.skip_first_batches = lambda loader, *_: loader
    try:
        yield
    finally:
        module.skip_first_batches = original
