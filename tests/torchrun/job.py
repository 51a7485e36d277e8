"""What torchrun starts: trains on a marked set and writes what this rank did to OUTPUT/RANK.json.

torchrun -m tests.torchrun.job SET OUTPUT '{"streams": 8, "same_loader": false, … any of TrainingArguments}'
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.torchrun.group import in_group
from tokentar import ShardLoader
from tokentar.shard_writer.errors import SetError
from tokentar.train.trainer.train_loader import TrainLoader


def train_rank(shards: str, output: str, settings: str) -> int:
    """Train, write what happened, and give the exit status."""
    options = json.loads(settings)
    streams, same_loader = options.pop("streams", None), options.pop("same_loader", False)
    args = quiet_arguments(Path(output) / "run", **options)
    trainer = RecordingTrainer(model=tiny_model(), args=args, shards=shards, streams=streams)
    if same_loader:  # what a script does that forgets its rank
        trainer.train_loader = TrainLoader(
            ShardLoader(shards, batch_size=args.per_device_train_batch_size, rank=0, world_size=1)
        )
    error = None
    try:
        trainer.train()
    except SetError as found:
        error = str(found)
    weights = float(sum(parameter.double().sum() for parameter in trainer.model.parameters()))
    report = {"numbers": trainer.numbers, "error": error, "steps": trainer.state.global_step, "weights": weights}
    (Path(output) / f"{dist.get_rank()}.json").write_text(json.dumps(report))
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(in_group(train_rank, *sys.argv[1:]))
