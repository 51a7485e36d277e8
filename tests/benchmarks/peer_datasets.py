"""datasets, used as its page on PyTorch shows: an Arrow table of packed rows, with_format and a shuffling DataLoader.

python -m tests.benchmarks.peer_datasets prepare ROWS_NPY OUTPUT SHARDS     the set that is read
                                         rate|first SET WORKERS SECONDS
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from datasets import Dataset, Features, Sequence, Value, load_from_disk
from torch.utils.data import DataLoader

from tests.benchmarks import clock

BATCH_SIZE = 8


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    """Rows of an array in a file."""
    for row in np.load(path, mmap_mode="r"):
        yield {"input_ids": row}


def prepare(path: str, output: str, shards: int) -> None:
    """The set that is read: the rows of an array, in so many files."""
    rows = np.load(path, mmap_mode="r")
    features = Features({"input_ids": Sequence(Value(rows.dtype.name), length=rows.shape[1])})
    dataset = Dataset.from_generator(rows_of, gen_kwargs={"path": path}, features=features, cache_dir=f"{output}-cache")
    dataset.save_to_disk(output, num_shards=shards)


def build(folder: str, workers: int) -> clock.Epoch:
    """A loader."""
    dataset = load_from_disk(folder).with_format("torch")
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=workers, drop_last=True)
    return lambda: (batch["input_ids"].long() for batch in loader)


def main(what: str, arguments: list[Any]) -> None:
    """One command."""
    if what == "prepare":
        prepare(*arguments[:2], int(arguments[2]))
    elif what == "first":
        print(clock.seconds_to_first(lambda: build(arguments[0], int(arguments[1]))))
    else:
        print(clock.tokens_per_second(build(arguments[0], int(arguments[1])), float(arguments[2])))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
