"""What a ShardTrainer keeps account of: the legs of the job, an audit, and the tokens, epochs and loss of each source of a mixture."""

import os
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tokentar.shard_writer.errors import SettingError
from tokentar.train.data.batches import IGNORED
from tokentar.train.data.loader import ShardLoader
from tokentar.train.data.reading import MixtureReading
from tokentar.train.distributed.collectives import all_gather
from tokentar.train.trace.audit import Audit
from tokentar.train.trace.history import Leg, read_legs, with_leg
from tokentar.train.trainer.train_loader import TrainLoader

if TYPE_CHECKING:
    _Trainer = Trainer
else:
    _Trainer = object


class AccountingMixin(_Trainer):
    """The part of ShardTrainerMixin that keeps account."""

    train_loader: TrainLoader
    _audit: str | os.PathLike[str] | None
    _resumed_step: int
    _legs: tuple[Leg, ...] = ()
    _losses_by_source: "SourceLosses | None" = None
    _audit_file: "Audit | None" = None

    def _add_accounting(self, loss_by_source: bool) -> None:
        reading = self.train_loader.loader.reading
        if loss_by_source and not isinstance(reading, MixtureReading):
            raise SettingError("loss_by_source: true, needed: several sources; leave it out")
        if loss_by_source and isinstance(reading, MixtureReading):
            self._losses_by_source = SourceLosses(len(reading.manifests))
            self.train_loader.listeners.append(self._losses_by_source.note_batch)
        if self._audit is not None:
            self._audit_file = audit = Audit(self._audit, self.args.process_index)
            self.train_loader.listeners.append(lambda loader: audit.add(loader.sample_keys))
            self.add_callback(AuditCallback(audit))

    def _begin_leg(self, state: dict[str, Any]) -> None:
        """Note where this start of training begins. Collective where there is an audit."""
        loader = self.train_loader.loader
        leg = Leg(self._resumed_step, loader.epoch, loader.position, loader.plan.global_batch_size)
        is_known = "history" in state or (leg.step and state["consumed"] % leg.step == 0)
        self._legs = with_leg(read_legs(state) if is_known else (), leg)
        if self._losses_by_source is not None:
            self._losses_by_source.begin()
        if self._audit_file is not None:
            self._audit_file.drop()
            run = max(all_gather(self._audit_file.last_run())) + 1
            self._audit_file.begin(run, loader, self._resumed_step)

    def _of_sources(self) -> dict[str, float]:
        """What the log says of each source: tokens trained on, epochs and, where asked, the loss since the last line. Collective."""
        reading = self.train_loader.loader.reading
        if not isinstance(reading, MixtureReading):
            return {}
        seq_length, found = reading.info.seq_length, {}
        rows = reading.order.mixture.counts(self.train_loader.loader.position).sum(axis=1).tolist()
        for name, order, count in zip(reading.names, reading.order.orders, rows, strict=True):
            if order is not None:
                found[f"tokens/{name}"] = count * seq_length
                found[f"epoch/{name}"] = round(count / order.samples, 5)
        if self._losses_by_source is not None:
            losses = self._losses_by_source.means()
            found |= {f"loss/{name}": losses[i] for i, name in enumerate(reading.by_name) if i in losses}
        return found

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """That of the class below; the loss of each source is taken from its logits, where it is asked for."""
        if self._losses_by_source is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self._losses_by_source.add(outputs["logits"] if isinstance(outputs, dict) else outputs[0], labels)
        return (loss, outputs) if return_outputs else loss


class SourceLosses:
    """Sums of token losses and numbers of tokens by source, since the last line of the log."""

    def __init__(self, sources: int) -> None:
        self._sums = np.zeros((sources, 2))
        self._batches: deque[Any] = deque()  # the source of each row, of batches that are still to be trained on

    def begin(self) -> None:
        """Forget what an earlier start of training left."""
        self._batches.clear()
        self._sums[:] = 0

    def note_batch(self, loader: ShardLoader) -> None:
        """A batch that was just read."""
        reading = loader.reading
        assert isinstance(reading, MixtureReading)
        self._batches.append(reading.source_of(loader.row_numbers))

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """What the model makes of the next batch. logits: (batch, seq_length, vocabulary); labels: (batch, seq_length)."""
        targets = labels[:, 1:]
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                logits[:, :-1].float().transpose(1, 2),
                targets.to(logits.device),
                ignore_index=IGNORED,
                reduction="none",
            )
        of_rows = torch.stack([losses.sum(dim=1).cpu(), (targets != IGNORED).sum(dim=1).cpu()], dim=1)
        np.add.at(self._sums, self._batches.popleft(), of_rows.double().numpy())

    def means(self) -> dict[int, float]:
        """The mean loss of each source that had tokens, on all ranks. Collective."""
        sums = np.sum(all_gather(self._sums), axis=0)
        self._sums = np.zeros_like(self._sums)
        return {source: float(loss / tokens) for source, (loss, tokens) in enumerate(sums) if tokens}


class AuditCallback(TrainerCallback):
    """Writes what each step was trained on when it ends."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step was trained on what was read since the one before."""
        self._audit.end_step(state.global_step)
