"""A ShardTrainer that notes what its model was trained on, and a model small enough to train in a test."""

from pathlib import Path
from typing import Any

from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from tokentar import ShardTrainer


class RecordingTrainer(ShardTrainer):
    """`batches` holds the inputs of every training step, as the model gets them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[dict[str, Any]] = []

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.batches.append({key: value.clone() for key, value in inputs.items()})
        return super().training_step(model, inputs, *args, **kwargs)

    @property
    def numbers(self) -> list[list[int]]:
        """The sequences of each batch of a marked set."""
        return [batch["input_ids"][:, 0].tolist() for batch in self.batches]


def tiny_model(vocab_size: int = 300, n_positions: int = 8) -> GPT2LMHeadModel:
    """One layer of GPT-2 that drops nothing."""
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": vocab_size, "n_positions": n_positions}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def quiet_arguments(output: Path, **settings: Any) -> TrainingArguments:
    """Training on the CPU that saves nothing and logs every step."""
    quiet = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
    return TrainingArguments(output_dir=str(output), **quiet | settings)
