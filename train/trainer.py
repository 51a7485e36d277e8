"""ShardTrainer: transformers.Trainer, fed by a ShardLoader that accelerate never touches.

    trainer = ShardTrainer(model=model, args=training_args, shards="out/")
    trainer.train()

Everything else, DDP, FSDP, bf16, accumulation, schedules, logging, is Trainer's own, set by its own arguments.
"""

import os
import time
from typing import Any

from transformers import Trainer

from shard_writer.manifest import Manifest
from train.feed import Feed
from train.loader import ShardLoader
from train.models import check_model
from train.select import select_shards


class ShardTrainer(Trainer):
    """A Trainer whose training data is a set of shards.

    shards: as ShardLoader takes them. streams, order: likewise; the seed of the order is args.data_seed (0 if None). All other arguments
    are Trainer's. Raises SetError when the model does not fit the data.
    """

    def __init__(
        self,
        *args: Any,
        shards: str | os.PathLike[str] | Manifest,
        order: str = "epoch",
        streams: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.args.ddp_find_unused_parameters is None:
            self.args.ddp_find_unused_parameters = False  # a causal language model uses all: spare DDP the search
        self.manifest = shards if isinstance(shards, Manifest) else select_shards(shards)
        check_model(self.manifest, self.model)
        self.feed = Feed(self._loader(order, streams))
        self._logged = (time.perf_counter(), 0.0, 0)  # when, seconds waited and steps done at the last line of the log

    def _loader(self, order: str, streams: int | None) -> ShardLoader:
        args = self.args
        return ShardLoader(
            self.manifest,
            batch_size=self._train_batch_size,
            seed=args.data_seed or 0,
            order=order,
            rank=args.process_index,
            world_size=args.world_size,
            num_workers=args.dataloader_num_workers,
            streams=streams,
            global_batch_size=self.get_total_train_batch_size(args),
        )

    def get_train_dataloader(self) -> Any:
        """The feed: as it is not a DataLoader, neither Trainer nor accelerate splits it again."""
        return self.feed

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add tokens per second and the share of time spent waiting for data since the last line."""
        if "loss" in logs:
            now, waited, steps = time.perf_counter(), self.feed.waited, self.state.global_step
            seconds, before = now - self._logged[0], self._logged
            self._logged = (now, waited, steps)
            tokens = (steps - before[2]) * self.feed.loader.plan.global_batch_size * self.manifest.info.seq_length
            logs["tokens_per_second"] = round(tokens / seconds)
            logs["data_wait"] = round((waited - before[1]) / seconds, 5)
        super().log(logs, start_time)
