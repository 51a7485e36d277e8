"""The contenders of `read`: python -m tests.benchmarks.readers ours|webdataset|numpy SET SECONDS, each on its own.

Each yields an epoch of int64 batches (8, seq_length). One epoch is read unmeasured, then whole epochs until SECONDS are
over. Prints tokens a second.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from shard_writer import open_shards
from train import ShardLoader

BATCH_SIZE = 8
Epoch = Callable[[], Iterator[Any]]


def ours(folder: str) -> Epoch:
    """ShardLoader in this process."""
    loader = ShardLoader(folder, batch_size=BATCH_SIZE, num_workers=0, rank=0, world_size=1)
    return lambda: (batch["input_ids"] for batch in loader)


def webdataset(folder: str) -> Epoch:
    """Stock WebDataset in input order, samples decoded one by one and stacked."""
    import webdataset as wds

    manifest = open_shards(folder)
    urls = [str(manifest.path(entry)) for entry in manifest.shards]

    def stack(samples: list[dict[str, Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack([sample["input_ids.npy"] for sample in samples], dtype=np.int64))

    dataset = wds.WebDataset(urls, shardshuffle=False).decode().batched(BATCH_SIZE, collation_fn=stack, partial=False)
    return lambda: iter(dataset)


def bare_numpy(folder: str) -> Epoch:
    """The same rows in the same order as ours, the order known beforehand: nothing but the copying. The bound."""
    loader = ShardLoader(folder, batch_size=BATCH_SIZE, num_workers=0, rank=0, world_size=1)
    numbers = np.array([loader.sample_numbers for _ in loader])
    manifest = loader.manifest
    shard_of = np.searchsorted(manifest.first_sequences, numbers, side="right") - 1
    row_of = numbers - manifest.first_sequences[shard_of]

    def epoch() -> Iterator[torch.Tensor]:
        shards = [manifest.open(index).rows for index in range(len(manifest.shards))]
        for batch_shards, batch_rows in zip(shard_of.tolist(), row_of.tolist(), strict=True):
            ids = np.empty((BATCH_SIZE, manifest.info.seq_length), np.int64)
            for place, (shard, row) in enumerate(zip(batch_shards, batch_rows, strict=True)):
                ids[place] = shards[shard][row]
            yield torch.from_numpy(ids)

    return epoch


READERS: dict[str, Callable[[str], Epoch]] = {"ours": ours, "webdataset": webdataset, "numpy": bare_numpy}


def tokens_per_second(epoch: Epoch, seconds: float) -> float:
    """Read whole epochs for at least so long, one more before that does not count."""
    for _ in epoch():
        pass
    tokens, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for batch in epoch():
            tokens += batch.numel()
    return tokens / passed


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(tokens_per_second(READERS[sys.argv[1]](sys.argv[2]), float(sys.argv[3])))
