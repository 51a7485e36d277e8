"""What torchrun starts to train with FSDP on CPUs: torchrun -m tests.torchrun.sharded SET OUTPUT NAME SETTINGS

Rank 0 writes OUTPUT/NAME.json: losses, those of evaluation, and the kind of the model. accelerate heeds FSDP only where its processes
are those of GPUs (AcceleratorState.__init__); what a trainer says to that is reported, and then they are told to be.
"""

import json
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from transformers import TrainingArguments

from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.torchrun.group import in_group
from tokentar import ShardTrainer
from tokentar.shard_writer.errors import SettingError


def train_rank(shards: str, output: str, name: str, settings: str) -> None:
    """Train, and let rank 0 write what happened."""
    options = json.loads(settings)
    resume = options.pop("resume_from_checkpoint", None)
    args = quiet_arguments(Path(output) / "run", fsdp=True, **options)
    assert args.device.type == "cpu", "so that PartialState is made"
    refused = refusal(args, shards)
    torch.manual_seed(0)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    trainer = RecordingTrainer(model=tiny_model(), args=args, shards=shards, validation_shards=shards, streams=24)
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero():
        logs = trainer.state.log_history
        report = {
            "losses": [entry["loss"] for entry in logs if "loss" in entry],
            "eval_losses": [entry["eval_loss"] for entry in logs if "eval_loss" in entry],
            "refused": refused,
            "kind": type(trainer.model).__name__,
        }
        (Path(output) / f"{name}.json").write_text(json.dumps(report))


def refusal(args: TrainingArguments, shards: str) -> str | None:
    """What a trainer says to FSDP that accelerate does not do."""
    try:
        ShardTrainer(model=tiny_model(), args=args, shards=shards, validation_shards=shards)
    except SettingError as error:
        return str(error)
    finally:
        AcceleratorState._reset_state()
    return None


if __name__ == "__main__":
    in_group(train_rank, *sys.argv[1:])
