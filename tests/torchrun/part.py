"""What torchrun starts on each node of a job whose nodes come and go: torchrun … -m tests.torchrun.part SET OUTPUT DEATHS

Each start of all ranks is a part of the run, numbered by what lies in OUTPUT. DEATHS: JSON, of each part the fields of
journal.Death or null.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tests.torchrun.group import in_group
from tests.torchrun.journal import GLOBAL_BATCH, Death, run

BATCH = 6  # a rank


def train_rank(shards: str, output: str, deaths: str) -> None:
    """Train this part, till its end or a death."""
    number = [len(list(Path(output).glob("part*-0.jsonl")))]
    dist.broadcast_object_list(number)
    fields = json.loads(deaths)[number[0]]
    settings = {
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": GLOBAL_BATCH // (BATCH * dist.get_world_size()),
    }
    run(shards, Path(output), f"part{number[0]}", None if fields is None else Death(**fields), **settings)


if __name__ == "__main__":
    in_group(train_rank, *sys.argv[1:])
