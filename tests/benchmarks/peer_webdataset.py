"""python -m tests.benchmarks.peer_webdataset rate|first SHARDS WORKERS SECONDS: stock WebDataset on our shards.

Shards and samples shuffled as its documentation shows; samples decoded, batched in the worker, ids made int64.
"""

import sys
from glob import glob

import numpy as np
import torch
import webdataset as wds

from tests.benchmarks import clock

BATCH_SIZE = 8


def stack(samples: list[dict[str, np.ndarray]]) -> torch.Tensor:
    """A batch from samples."""
    return torch.from_numpy(np.stack([sample["input_ids.npy"] for sample in samples], dtype=np.int64))


def build(folder: str, workers: int) -> clock.Epoch:
    """A loader."""
    urls = sorted(glob(f"{folder}/*.tar"))
    dataset = wds.WebDataset(urls, shardshuffle=100, nodesplitter=wds.split_by_node).shuffle(1000).decode()
    batches = dataset.batched(BATCH_SIZE, collation_fn=stack, partial=False)
    loader = wds.WebLoader(batches, batch_size=None, num_workers=workers)
    return lambda: iter(loader)


def main(what: str, folder: str, workers: str, seconds: str) -> None:
    """Measure one figure."""
    if what == "first":
        print(clock.seconds_to_first(lambda: build(folder, int(workers))))
    else:
        print(clock.tokens_per_second(build(folder, int(workers)), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:5])
