"""Evaluation of a ShardTrainer: Trainer's own loop, over sets of shards, with a loss that is exact (see evaluation.py)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import Manifest
from tokentar.train.data.access import Access
from tokentar.train.data.shard_patterns import select_shards
from tokentar.train.data.shard_pool import ShardPool
from tokentar.train.distributed.collectives import all_gather, together
from tokentar.train.distributed.world import World
from tokentar.train.trainer import evaluation
from tokentar.train.trainer.model_checks import check_model, check_same_tokenizer

Shards = str | os.PathLike[str] | Manifest
ShardSets = Shards | Mapping[str, Shards]
if TYPE_CHECKING:
    _Trainer = Trainer
else:
    _Trainer = object


class ShardEvaluationMixin(_Trainer):
    """The part of ShardTrainerMixin that evaluates; compute_metrics, several sets and predictions are Trainer's own.

    The loss of a set is the mean over all of its predicted tokens. It is summed up from what compute_loss gives for each
    batch, times the tokens in it: exact, and the same on any number of ranks, for a compute_loss that is a mean over
    tokens (of `num_items_in_batch`, which is the batch's own here), as the model's own loss is. For another one, such as
    a loss with a term for each batch, it depends on what stands together in a batch.
    """

    manifest: Manifest
    _access: Access
    _separate_documents: bool
    _pools: dict[str, ShardPool]
    _losses: evaluation.LossSum | None = None

    def _add_sets(self, sets: Mapping[str, Manifest]) -> None:
        for name, manifest in sets.items():
            check_same_tokenizer(self.manifest, manifest)
            check_model(manifest, self.model)
            world = World(self.args.process_index, self.args.world_size)
            self._pools[name] = ShardPool.for_evaluation(manifest, self._access, world)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Mean loss over every token of a validation set, its perplexity and what compute_metrics gives.

        eval_dataset: a set of shards, or several by name (default: the validation sets of this trainer). The same numbers
        on any number of ranks. Raises SettingError when there is nothing to evaluate on.
        """
        was_training = self.model.training  # type: ignore[union-attr]
        if isinstance(eval_dataset, Mapping):
            parts = {name: self._named(each) for name, each in eval_dataset.items()}
            runs = [self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}") for name, part in parts.items()]
            return {key: value for metrics in runs for key, value in metrics.items()}
        if eval_dataset is None and self.eval_dataset is None:
            raise SettingError("evaluate: no validation set; give ShardTrainer validation_shards")
        try:
            return super().evaluate(
                eval_dataset=None if eval_dataset is None else self._named(eval_dataset),  # type: ignore[arg-type]
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
        finally:
            self.model.train(was_training)  # type: ignore[union-attr]

    def _named(self, shards: Any) -> str:
        """The name of a set among those that this trainer has opened."""
        if isinstance(shards, str) and shards in self._pools:
            return shards
        manifest = manifest_of(shards, "eval_dataset")
        name = f"{manifest.root} ({manifest.fingerprint})"
        if name not in self._pools:
            self._add_sets({name: manifest})
        return name

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """A loader of one of the validation sets, by its name, or of a set of shards."""
        name = "" if eval_dataset is None else self._named(eval_dataset)
        return self._eval_loader(name, in_order=self.compute_metrics is not None)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """A loader of a set of shards for `predict`, which gives the predictions in the order of the set."""
        return self._eval_loader(self._named(test_dataset), in_order=True)

    def _eval_loader(self, name: str, *, in_order: bool) -> evaluation.ShardEvalLoader:
        return evaluation.ShardEvalLoader(
            self._pools[name],
            World(self.args.process_index, self.args.world_size),
            self.args.eval_batch_size,
            separate_documents=self._separate_documents,
            in_order=in_order,
        )

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Trainer's loop, with the exact loss in place of the mean over batches."""
        self._losses = sums = evaluation.LossSum()
        try:
            with self._own_tokens():
                output = super().evaluation_loop(
                    dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
                )
        finally:
            self._losses = None
        loss, tokens = evaluation.mean_of(all_gather((sums.loss, sums.tokens)))
        metrics = (output.metrics or {}) | {
            f"{metric_key_prefix}_loss": loss,
            f"{metric_key_prefix}_perplexity": evaluation.perplexity(loss),
            f"{metric_key_prefix}_sequences": len(dataloader.dataset),
            f"{metric_key_prefix}_tokens": tokens,
        }
        return output._replace(metrics=metrics)

    @contextmanager
    def _own_tokens(self) -> Iterator[None]:
        """Let compute_loss divide by the tokens of this rank's batch, and not by those of all ranks."""
        before, self.args.average_tokens_across_devices = self.args.average_tokens_across_devices, False
        try:
            yield
        finally:
            self.args.average_tokens_across_devices = before

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Trainer's, and the loss of the batch is noted."""
        labels = inputs["labels"]  # before compute_loss may take them out
        loss, *others = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        if self._losses is not None and loss is not None:
            self._losses.add(loss.mean(), labels)
        return loss, others[0], others[1]


def manifest_of(shards: Any, setting: str) -> Manifest:
    """The set that a user names for evaluation. Raises SettingError for what is no set of shards. Collective."""
    if isinstance(shards, Manifest):
        return shards
    if not isinstance(shards, (str, os.PathLike)):
        raise SettingError(
            f"{setting}: {type(shards).__name__}, needed: a set of shards (a folder, URL or pattern, or what open_shards gives), "
            "or several of them by name"
        )
    return together(lambda: select_shards(shards, prefer="validation"))


def validation_sets(validation_shards: Any, eval_dataset: Any) -> dict[str, Manifest]:
    """Validation sets by name; one alone has the name "". Raises SettingError where both are given. Collective."""
    if validation_shards is not None and eval_dataset is not None:
        raise SettingError("validation_shards and eval_dataset are the same; give one of them")
    given = eval_dataset if validation_shards is None else validation_shards
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): manifest_of(shards, f"eval_dataset {name}") for name, shards in given.items()}
    return {"": manifest_of(given, "eval_dataset")}
