"""What `step` measures: torchrun -m tests.benchmarks.stepping SET TURNS STEPS OUTPUT

Trains a tiny GPT-2 on the CPU with ShardTrainer. By turns, each so many optimizer steps, the batches come from the loader and are
one batch that stays in memory: loader, memory, memory, loader, and so on. Rank 0 writes of each turn the seconds, those of its CPU
and those of CPU in the loader, as JSON.
"""

import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, TrainingArguments

from tests.torchrun.group import in_group
from tokentar import ShardTrainer
from tokentar.train.data.loader import Batch
from tokentar.train.trainer.train_loader import TrainLoader

BATCH_SIZE = 4


class Alternating(TrainLoader):
    """A feed whose batches come in turn from the loader and from memory; `borders` holds when each turn began: by the clock, by CPU, and
    by the CPU that was spent in the loader."""

    steps = 1
    borders: tuple[tuple[float, float, float], ...] = ()
    inside = 0.0  # seconds of CPU in the loader

    def __iter__(self) -> Iterator[Batch]:
        batches = super().__iter__()
        constant = {key: value.clone() for key, value in next(batches).items()}
        for is_ours in cycle((True, False, False, True)):
            self.borders += ((time.perf_counter(), time.process_time(), self.inside),)
            for _ in range(self.steps):
                yield self._timed(batches) if is_ours else constant

    def _timed(self, batches: Iterator[Batch]) -> Batch:
        start = time.thread_time()
        batch = next(batches)
        self.inside += time.thread_time() - start
        return batch


def measure(shards: str, turns: str, steps: str, output: str) -> None:
    """Train and measure."""
    args = TrainingArguments(
        output_dir=output,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=BATCH_SIZE,
        max_steps=int(turns) * int(steps) + 1,
    )
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=256, vocab_size=512)
    trainer = ShardTrainer(model=GPT2LMHeadModel(config), args=args, shards=shards, order="repeat")
    trainer.remove_callback(PrinterCallback)
    feed = Alternating(trainer.train_loader.loader)
    feed.steps, trainer.train_loader = int(steps), feed
    trainer.train()
    if dist.get_rank() == 0:
        Path(output, "turns.json").write_text(json.dumps(np.diff(feed.borders, axis=0).tolist()))


if __name__ == "__main__":
    in_group(measure, *sys.argv[1:5])
