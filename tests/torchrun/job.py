"""What torchrun starts: trains on a marked set and writes what this rank did to OUTPUT/RANK.json.

torchrun -m tests.torchrun.job SET OUTPUT '{"streams": 8, "same_loader": false, … any of TrainingArguments}'
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from shard_writer.errors import SetError
from tests.recorder import RecordingTrainer, quiet_arguments, tiny_model
from train import ShardLoader
from train.feed import Feed


def main(shards: str, output: str, settings: str) -> int:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))  # use_cpu ignores ddp_timeout
    torch.set_num_threads(1)
    options = json.loads(settings)
    streams, same_loader = options.pop("streams", None), options.pop("same_loader", False)
    args = quiet_arguments(Path(output) / "run", **options)
    trainer = RecordingTrainer(model=tiny_model(), args=args, shards=shards, streams=streams)
    if same_loader:  # what a script does that forgets its rank
        trainer.feed = Feed(ShardLoader(shards, batch_size=args.per_device_train_batch_size, rank=0, world_size=1))
    error = None
    try:
        trainer.train()
    except SetError as found:
        error = str(found)
    weights = float(sum(parameter.double().sum() for parameter in trainer.model.parameters()))
    report = {"numbers": trainer.numbers, "error": error, "steps": trainer.state.global_step, "weights": weights}
    (Path(output) / f"{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.barrier()  # so that torchrun does not end a rank that has yet to write
    dist.destroy_process_group()
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
