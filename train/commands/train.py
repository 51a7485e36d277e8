"""Train a causal language model of transformers on a set of shards.

    torchrun --nproc-per-node N -m tokentar.train --config recipes/x.yaml [--flag value …]

Any flag of transformers.TrainingArguments is taken; `tokentar train --help` lists all.
"""

import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokentar.shard_writer.config import recipes
from tokentar.shard_writer.errors import SetError, SettingError, TokentarError
from tokentar.shard_writer.format.manifest import open_shards
from tokentar.train.distributed.world import is_main_process, name_of_rank

if TYPE_CHECKING:
    from tokentar.train.trainer.trainer import ShardTrainer

LOSS_CURVE = "loss.png"
GOES_ON = "--resume_from_checkpoint true goes on from the last checkpoint"


def run(prog: str, argv: Sequence[str]) -> None:
    """Train, or evaluate, as the flags say."""
    from transformers import TrainingArguments

    from tokentar.train.trainer.arguments import DataArguments, ModelArguments
    from tokentar.train.trainer.callbacks import LastCheckpoint
    from tokentar.train.trainer.training_arguments import check_of_metrics, check_settings

    data, model, args = recipes.parse(
        [DataArguments, ModelArguments, TrainingArguments], "train", argv, prog, str(__doc__), {"do_train": None}
    )
    tasks = Tasks.of(args)
    args.do_train = tasks.train
    check_settings(args)
    check_of_metrics(args)
    last_checkpoint = LastCheckpoint()
    trainer = _make_trainer(data, model, args, last_checkpoint)
    if tasks.train:
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        if last_checkpoint.has_stopped:
            place = f"after step {trainer.state.global_step}"
            say([f"stopped by a signal {place}; {GOES_ON}"])
            return
        trainer.save_model()
    if tasks.evaluate:
        metrics = trainer.evaluate()
        say(f"{key} = {value}" for key, value in metrics.items())
    if tasks.train:
        _say_end(trainer)


def _make_trainer(data: Any, model: Any, args: Any, *callbacks: Any) -> "ShardTrainer":
    from transformers import set_seed

    from tokentar.train.data.loader import open_sources, sets_of
    from tokentar.train.distributed.collectives import together
    from tokentar.train.trainer.models import build_model, find_tokenizer
    from tokentar.train.trainer.trainer import ShardTrainer

    sources = together(lambda: open_sources(data.data, data.stage_weights, data.stopping_strategy))
    manifest = next(iter(sets_of(sources).values()))
    tokenizer = together(lambda: find_tokenizer(manifest, model.model_name_or_path))
    set_seed(args.seed)
    return ShardTrainer(
        model=together(lambda: build_model(model, manifest.info)),
        args=args,
        processing_class=tokenizer,
        shards=sources,
        validation_shards=_validation_shards(data, args),
        order=data.order or "epoch",
        streams=data.streams,
        separate_documents=data.separate_documents,
        max_tokens=data.max_tokens,
        access=data.access,
        skip_list=data.skip_list,
        audit=data.audit,
        loss_by_source=data.loss_by_source,
        callbacks=list(callbacks),
    )


@dataclass(frozen=True)
class Tasks:
    """What is to be done: to train, unless only evaluation is asked for, and to evaluate when no training has done so at its end."""

    train: bool
    evaluate: bool

    @classmethod
    def of(cls, args: Any) -> "Tasks":
        """By do_train, None where it was not given, do_eval and eval_strategy. Raises SettingError when nothing is left to do."""
        while_training = args.eval_strategy != "no"  # which sets do_eval, too
        train = (not args.do_eval or while_training) if args.do_train is None else bool(args.do_train)
        if not (train or args.do_eval):
            raise SettingError("do_train: False and no --do_eval true: nothing to do; leave out do_train to train")
        if not train and str(args.resume_from_checkpoint or False).lower() != "false":
            raise SettingError(
                f"resume_from_checkpoint: {args.resume_from_checkpoint}, but no training goes on; evaluate a checkpoint with "
                "--model_name_or_path and its folder"
            )
        return cls(train, evaluate=args.do_eval and not (train and while_training))


def _say_end(trainer: "ShardTrainer") -> None:
    """Say what was done, and write the log beside the model. Collective."""
    from tokentar.train.trainer import failures, summary

    say(summary.ending(trainer, *summary.tally(trainer.train_loader)))
    folder = Path(str(trainer.args.output_dir))
    if is_main_process():
        with failures.writing(folder):
            trainer.save_state()
            if summary.draw_loss(trainer.state.log_history, folder / LOSS_CURVE):
                print(f"loss curve: {folder / LOSS_CURVE}")


def _validation_shards(data: Any, args: Any) -> Any:
    """What to evaluate on: --validation_shards, or, when evaluation is on, the split `validation` of the set of --shards."""
    if data.validation_shards is not None or not args.do_eval:
        return data.validation_shards
    from tokentar.train.data.shard_patterns import set_of

    if isinstance(data.data, dict):
        raise SettingError("validation_shards: none, needed: a set to evaluate on, as the training data are a mixture")
    manifest = open_shards(set_of(data.data))
    try:
        return manifest.split("validation")
    except SetError as error:
        wish = "do_eval: true" if args.eval_strategy == "no" else f"eval_strategy: {args.eval_strategy.value}"
        raise SetError(
            f"{wish}, but {error}; write the set with --validation_fraction, or give --validation_shards"
        ) from None


def say(lines: Iterable[str]) -> None:
    """Print lines, once for the whole job."""
    if is_main_process():
        for line in lines:
            print(line, flush=True)


def main(prog: str, argv: Sequence[str]) -> int:
    """Run; returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("tokentar").setLevel(logging.INFO)
    try:
        run(prog, argv)
    except TokentarError as error:
        print(f"error: {name_of_rank()}{error}", file=sys.stderr, flush=True)
        return 1
    except OSError as error:
        if error.filename is None:  # of a library, which says no more than its traceback
            raise
        print(f"error: {name_of_rank()}{error.filename}: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; {GOES_ON}", file=sys.stderr, flush=True)
        return 130
    return 0
