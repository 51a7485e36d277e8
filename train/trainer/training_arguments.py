"""Settings of transformers.TrainingArguments that Trainer takes without a word and that would not do what they say."""

from transformers import TrainingArguments

from tokentar.shard_writer.errors import SettingError


def check_settings(args: TrainingArguments) -> None:
    """Raises SettingError with the setting, the value seen and the value needed."""
    for key, is_right, needed in (
        ("max_steps", args.max_steps != 0, "1 or more, or -1 for whole epochs"),  # Trainer would take one step
        ("num_train_epochs", args.num_train_epochs >= 0, "0 or more"),
        ("per_device_eval_batch_size", args.per_device_eval_batch_size >= 1, "at least 1"),
        # Trainer would begin again with half the batch that the order of reading and the checkpoints are laid out for
        ("auto_find_batch_size", not args.auto_find_batch_size, "a batch size that fits, named"),
    ):
        if not is_right:
            raise SettingError(f"{key}: {getattr(args, key)}, needed: {needed}")
