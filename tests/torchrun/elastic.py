"""What torchrun starts to be stopped and started again: torchrun -m tests.torchrun.elastic SET OUTPUT NAME DEATH SETTINGS.

DEATH: null, or the fields of journal.Death as JSON, for the first start of this torchrun. SETTINGS: of TrainingArguments.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from tests.torchrun.journal import Death, run


def main(shards: str, output: str, name: str, death: str, settings: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))  # use_cpu ignores ddp_timeout
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    fields = json.loads(death) if restarts == 0 else None
    ending = None if fields is None else Death(**fields)
    run(Path(shards), Path(output), f"{name}.{restarts}", ending, **json.loads(settings))
    dist.barrier()  # so that torchrun does not end a rank that has yet to write
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
