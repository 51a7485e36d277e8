"""What torchrun starts to be stopped and started again: torchrun -m tests.torchrun.elastic SET OUTPUT NAME DEATH SETTINGS.

DEATH: null, or the fields of journal.Death as JSON, for the first start of this torchrun. SETTINGS: of TrainingArguments.
"""

import json
import os
import sys
from pathlib import Path

from tests.torchrun.group import in_group
from tests.torchrun.journal import Death, run


def train_rank(shards: str, output: str, name: str, death: str, settings: str) -> None:
    """Train, till the end or a death."""
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    fields = json.loads(death) if restarts == 0 else None
    ending = None if fields is None else Death(**fields)
    run(Path(shards), Path(output), f"{name}.{restarts}", ending, **json.loads(settings))


if __name__ == "__main__":
    in_group(train_rank, *sys.argv[1:])
