"""What becomes of each field of transformers.TrainingArguments: it works, makes no difference here, or is refused, and why.

A test compares this table with the fields of TrainingArguments, so that a new one is noticed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from tokentar.shard_writer.errors import SettingError

# field → the test that shows it
TESTED = {
    "output_dir": "test_checkpoint.py::test_true_is_the_last_whole_checkpoint",
    "per_device_train_batch_size": "test_trainer.py::test_the_model_is_trained_on_what_the_loader_yields",
    "num_train_epochs": "test_trainer.py::test_an_epoch_ends_on_a_whole_global_batch",
    "max_steps": "test_trainer.py::test_max_steps_beyond_an_epoch_go_on_in_the_next",
    "gradient_accumulation_steps": "test_trainer.py::test_accumulation_takes_the_same_step_as_a_large_batch",
    "lr_scheduler_type": "test_arguments.py::test_a_schedule_that_has_what_it_needs_reaches_it",
    "lr_scheduler_kwargs": "test_arguments.py::test_a_schedule_that_has_what_it_needs_reaches_it",
    "optim": "test_arguments.py::test_a_setting_that_a_library_refuses_is_told_with_the_flag",
    "average_tokens_across_devices": "test_ranks.py::test_ranks_evaluate_each_sequence_once",
    "label_smoothing_factor": "test_metrics.py::test_the_loss_is_the_smoothed_one_where_that_is_trained_on",
    "report_to": "test_arguments.py::test_tensorboard_gets_the_losses",
    "eval_strategy": "test_evaluation.py::test_trainer_evaluates_at_its_steps_and_trains_as_if_it_did_not",
    "eval_steps": "test_evaluation.py::test_trainer_evaluates_at_its_steps_and_trains_as_if_it_did_not",
    "per_device_eval_batch_size": "test_metrics.py::test_metrics_are_of_each_validation_sequence_once",
    "eval_accumulation_steps": "test_metrics.py::test_metrics_are_of_each_validation_sequence_once",
    "eval_do_concat_batches": "test_metrics.py::test_metrics_are_of_each_validation_sequence_once",
    "include_for_metrics": "test_metrics.py::test_metrics_are_of_each_validation_sequence_once",
    "batch_eval_metrics": "test_metrics.py::test_metrics_by_batch_are_those_of_all_at_once",
    "save_strategy": "test_mixin.py::test_epochs_are_saved_and_evaluated_at_their_ends_also_after_a_resume",
    "save_steps": "test_checkpoint.py::test_a_stopped_run_goes_on_with_the_steps_of_the_one_that_was_not",
    "save_total_limit": "test_disk_full.py::test_the_checkpoint_before_the_disk_was_full_is_gone_on_from",
    "save_only_model": "test_checkpoint.py::test_a_schedule_that_begins_anew_is_told",
    "load_best_model_at_end": "test_metrics.py::test_the_best_model_is_found_by_one_of_several_sets",
    "metric_for_best_model": "test_metrics.py::test_the_best_model_is_found_by_one_of_several_sets",
    "greater_is_better": "test_metrics.py::test_the_best_model_is_found_by_one_of_several_sets",
    "push_to_hub": "test_arguments.py::test_a_hub_that_is_not_reached_is_told_before_the_first_step",
    "data_seed": "test_trainer.py::test_the_model_is_trained_on_what_the_loader_yields",
    "dataloader_num_workers": "test_trainer.py::test_the_model_is_trained_on_what_the_loader_yields",
    "fsdp": "test_fsdp.py::test_a_sharded_model_learns_as_a_whole_one_and_goes_on_with_other_ranks",
    "do_train": "test_arguments.py::test_what_is_to_be_done",
    "do_eval": "test_arguments.py::test_what_is_to_be_done",
    "resume_from_checkpoint": "test_checkpoint.py::test_the_command_goes_on_from_the_last_checkpoint",
}
# Trainer does these by itself, whatever its data are
TRAINERS_OWN = frozenset({
    "learning_rate", "warmup_steps", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "optim_target_modules", "max_grad_norm", "bf16", "fp16", "bf16_full_eval", "fp16_full_eval", "tf32",
    "activation_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "torch_compile", "torch_compile_backend", "torch_compile_mode",
    "use_liger_kernel", "liger_kernel_config", "use_cache", "neftune_noise_alpha", "torch_empty_cache_steps",
    "logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter",
    "log_level", "log_level_replica", "disable_tqdm", "run_name", "project", "trackio_space_id",
    "trackio_bucket_id", "trackio_static_space_id", "eval_delay", "prediction_loss_only", "eval_on_start",
    "eval_use_gather_object", "save_on_each_node", "hub_token",
    "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision",
    "restore_callback_states_from_checkpoint", "full_determinism", "seed", "use_cpu",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers",
    "ddp_static_graph", "ddp_backend", "ddp_timeout", "fsdp_config", "deepspeed", "debug", "skip_memory_metrics",
})  # fmt: skip
HARMLESS = {
    "ignore_data_skip": "nothing is read again when a run goes on, and nothing is left out",
    "dataloader_drop_last": "an epoch ends on a whole global batch either way",
    "dataloader_pin_memory": "batches are ids, a few kB, and are not pinned",
    "remove_unused_columns": "batches hold only what the model takes",
    "local_rank": "torchrun's LOCAL_RANK is what counts, as for Trainer",
}


@dataclass(frozen=True)
class Refused:
    """A field that would do nothing, or not what it says, with other values than these."""

    why: str
    way_out: str
    is_right: Callable[[Any], bool]


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _splits_nothing(config: Any) -> bool:
    """Whether an AcceleratorConfig leaves what it says of loaders as it is by default."""
    defaults = AcceleratorConfig()
    names = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")
    return all(getattr(config, name) == getattr(defaults, name) for name in names)


REFUSED = {
    "auto_find_batch_size": Refused(
        "each rank would shrink its batch when that rank runs out of memory, so ranks would take unequal batches and wait for one "
        "another, and the order of reading, the schedule and the checkpoints are laid out for one global batch",
        "name a --per_device_train_batch_size that fits; --gradient_accumulation_steps keeps the global batch",
        _is(False),
    ),
    "train_sampling_strategy": Refused("no sampler picks sequences", "see --order", _is("random")),
    "length_column_name": Refused("all sequences are of one length", "leave it out", _is("length")),
    "include_num_input_tokens_seen": Refused(
        "what fills up a sequence is told by no mask, and often its token also ends documents",
        "use `all`, or leave it out",
        _is("no", "all"),
    ),
    "enable_jit_checkpoint": Refused(
        "each rank would save when it has the signal itself, and wait for the others",
        "leave it out: the command saves at SIGTERM and SIGUSR1 by itself, a script with callbacks=[LastCheckpoint()]",
        _is(False),
    ),
    "accelerator_config": Refused(
        "accelerate does not see the loader, so it splits, dispatches and samples nothing", "leave out what is of loaders", _splits_nothing
    ),
    "parallelism_config": Refused(
        "each rank reads sequences of its own, so ranks cannot share a batch",
        "use data parallelism or FSDP",
        lambda config: config is None or config.tp_size == config.cp_size == config.sp_size == 1,
    ),
    "dataloader_persistent_workers": Refused("workers start anew with each epoch", "leave it out", _is(False)),
    "dataloader_prefetch_factor": Refused("workers always read two blocks ahead", "leave it out", _is(None)),
    "dataloader_multiprocessing_context": Refused(
        "the start of workers goes by what they read: fork, or forkserver for an object store",
        "leave it out",
        lambda context: context is None or torch.backends.mps.is_available(),
    ),
    "dataloader_in_order": Refused("the order of reading is what checkpoints rely on", "leave it out", _is(True)),
    "label_names": Refused("the labels of a batch are called `labels`", "leave it out", _is(None, ["labels"])),
    "do_predict": Refused("there is no test set", "use --do_eval true with --validation_shards, or trainer.predict", _is(False)),
}  # fmt: skip
_NEEDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_steps": (lambda steps: steps != 0, "1 or more, or -1 for whole epochs"),  # Trainer would take one step
    "num_train_epochs": (lambda epochs: epochs >= 0, "0 or more"),
    "per_device_eval_batch_size": (lambda size: size >= 1, "at least 1"),
}
# Without compute_metrics, of which the command has none, nothing is collected that these could be about
FOR_METRICS: dict[str, Any] = {
    "eval_do_concat_batches": True,
    "eval_use_gather_object": False,
    "eval_accumulation_steps": None,
    "include_for_metrics": [],
    "batch_eval_metrics": False,
}
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


def check_settings(args: TrainingArguments) -> None:
    """Raises SettingError with the setting, the value seen, why it is refused and the way out."""
    for name, (is_right, needed) in _NEEDS.items():
        value = getattr(args, name)
        if not is_right(value):
            raise SettingError(f"{name}: {value}, needed: {needed}")
    for name, refused in REFUSED.items():
        value = getattr(args, name)
        if not refused.is_right(value):
            raise SettingError(f"{name}: {value} is refused: {refused.why}; {refused.way_out}")


def check_of_metrics(args: TrainingArguments) -> None:
    """Raises SettingError for what would do nothing without compute_metrics."""
    for name, default in FOR_METRICS.items():
        value = getattr(args, name)
        if value != default:
            raise SettingError(
                f"{name}: {value} is refused: it is for compute_metrics, which a script gives to ShardTrainer; leave it out here"
            )


def recipe_of(args: TrainingArguments) -> dict[str, Any]:
    """The settings that all ranks must share: all but those of places and of what is said."""
    settings: dict[str, Any] = args.to_dict()  # type: ignore[no-untyped-call]
    return {f"--{key}": value for key, value in settings.items() if not key.startswith(_OF_A_NODE)}
