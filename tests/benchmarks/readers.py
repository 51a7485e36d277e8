"""python -m tests.benchmarks.readers ours|webdataset|numpy rate|first|mixed SET WORKERS SECONDS: our own contenders.

Each reads int64 batches (8, seq_length), epoch after epoch. Prints tokens a second, or the seconds to the first batch.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.benchmarks import clock
from tokentar import ShardLoader, open_shards

BATCH_SIZE = 8


def ours(folder: str, workers: int) -> clock.Epoch:
    """ShardLoader."""
    loader = ShardLoader(folder, batch_size=BATCH_SIZE, num_workers=workers, rank=0, world_size=1)
    return lambda: (batch["input_ids"] for batch in loader)


def mixed(folder: str) -> clock.Epoch:
    """ShardLoader over all sets below a folder, the i-th of weight i."""
    sets = {path.name: (str(path), number) for number, path in enumerate(sorted(Path(folder).iterdir()), 1)}
    loader = ShardLoader(sets, batch_size=BATCH_SIZE, rank=0, world_size=1)
    return lambda: (batch["input_ids"] for batch in loader)


def webdataset(folder: str, workers: int) -> clock.Epoch:
    """Stock WebDataset in input order, samples decoded one by one and stacked."""
    import webdataset as wds

    manifest = open_shards(folder)
    urls = [str(manifest.path(entry)) for entry in manifest.shards]

    def stack(samples: list[dict[str, Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack([sample["input_ids.npy"] for sample in samples], dtype=np.int64))

    dataset = wds.WebDataset(urls, shardshuffle=False).decode().batched(BATCH_SIZE, collation_fn=stack, partial=False)
    return lambda: iter(dataset)


def bare_numpy(folder: str, workers: int) -> clock.Epoch:
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


READERS: dict[str, Callable[[str, int], clock.Epoch]] = {"ours": ours, "webdataset": webdataset, "numpy": bare_numpy}


def main(name: str, what: str, folder: str, workers: str, seconds: str) -> None:
    """Measure one figure."""
    torch.set_num_threads(1)
    build = READERS[name]
    if what == "mixed":
        print(clock.tokens_per_second(mixed(folder), float(seconds)))
    elif what == "first":
        print(clock.seconds_to_first(lambda: build(folder, int(workers))))
    else:
        print(clock.tokens_per_second(build(folder, int(workers)), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:6])
