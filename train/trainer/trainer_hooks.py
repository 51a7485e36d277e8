"""All that ShardTrainerMixin takes for granted of the Trainer below it, in one place, and the check that it is so.

Of the methods that start with `_`, two are overridden:
  _save_rng_state          the last file that every rank writes into a checkpoint. No callback comes between it and
                           trainer_state.json, which marks the checkpoint as whole, and rank 0 has to wait there.
  _get_num_items_in_batch  the divisor of the loss. It is asked for in training and in prediction_step alike, and has no
                           public way in.
The others are public by name. What they are relied on for, beyond what the documentation of transformers says, stands beside each.
"""

import inspect
from collections.abc import Callable
from typing import Any

import transformers

from tokentar.shard_writer.errors import SettingError

# method → (parameters by which it is called, what is relied on)
HOOKS: dict[str, tuple[tuple[str, ...], str]] = {
    "_save_rng_state": (("output_dir",), "runs on every rank before trainer_state.json is written"),
    "_get_num_items_in_batch": (("batch_samples", "device"), "counts the labels that a loss is divided by"),
    "set_initial_training_values": (("args", "dataloader"), "gives epochs first, steps of an epoch, …, steps last"),
    "save_model": (("output_dir", "_internal_call"), "is what a checkpoint begins with"),
    "train": (
        ("resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
        "with ignore_data_skip, reads nothing again",
    ),
    "log": (("logs", "start_time"), "puts `logs` into the state and tells the callbacks"),
    "evaluate": (
        ("eval_dataset", "ignore_keys", "metric_key_prefix"),
        "asks get_eval_dataloader for a set by its name",
    ),
    "evaluation_loop": (
        ("dataloader", "description", "prediction_loss_only", "ignore_keys", "metric_key_prefix"),
        "hands each batch to prediction_step and gives metrics that may be changed",
    ),
    "prediction_step": (("model", "inputs", "prediction_loss_only", "ignore_keys"), "gives (loss, logits, labels)"),
    "get_train_dataloader": ((), "is iterated once an epoch, as it is"),
    "get_eval_dataloader": (("eval_dataset",), "is iterated as it is"),
    "get_test_dataloader": (("test_dataset",), "is iterated as it is"),
    "get_total_train_batch_size": (("args",), "counts ranks that share a batch once"),
    "create_optimizer": (("model",), "comes before the first step"),
    "create_scheduler": (("num_training_steps", "optimizer"), "comes before the first step"),
    "init_hf_repo": (("token", "private"), "is called when the Trainer is made"),
    "push_to_hub": (("commit_message",), "uploads, and waits for it"),
}
ATTRIBUTES = ("accelerator", "args", "callback_handler", "is_in_train", "model", "model_accepts_loss_kwargs", "state")


def check_class(trainer: type, mixin: type | None = None) -> None:
    """Raises SettingError, naming the method, when a Trainer class lacks one of HOOKS or does not take its parameters.

    mixin: looked at are the classes that come after it in the method resolution order of `trainer` (default: all).
    """
    order = trainer.__mro__
    bases = [base for base in order[order.index(mixin) :] if base not in mixin.__mro__] if mixin else order
    for name, (parameters, reason) in HOOKS.items():
        method = next((vars(base)[name] for base in bases if name in vars(base)), None)
        if method is None:
            raise _changed(trainer, f"has no {name}", reason)
        if not _takes(method, parameters):
            found = ", ".join(map(str, list(inspect.signature(method).parameters)[1:]))
            raise _changed(trainer, f"has {name}({found}), needed: {name}({', '.join(parameters)})", reason)


def check_instance(trainer: Any) -> None:
    """Raises SettingError, naming the attribute, when a Trainer that was made lacks one of ATTRIBUTES."""
    for name in ATTRIBUTES:
        if not hasattr(trainer, name):
            raise _changed(type(trainer), f"has no attribute {name}", "it is read")


def _changed(trainer: type, what: str, reason: str) -> SettingError:
    return SettingError(
        f"{trainer.__name__} (transformers {transformers.__version__}) {what}; ShardTrainerMixin needs it, as it {reason}; use "
        "transformers 5.24, with which this version of tokentar was tested, or a newer tokentar"
    )


def _takes(method: Callable[..., Any], parameters: tuple[str, ...]) -> bool:
    """Whether a method can be called with these parameters by name, or, where it takes *args, by place."""
    signature = inspect.signature(method)
    try:
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
            signature.bind(None, *parameters)
        else:
            signature.bind(None, **dict.fromkeys(parameters))
    except TypeError:
        return False
    return True
