"""mosaicml-streaming, used as its quick start shows: MDSWriter, then StreamingDataset under a DataLoader.

python -m tests.benchmarks.peer_mosaicml prepare ROWS_NPY OUTPUT SHARDS     the set that is read
                                         rate|first|mixed SET WORKERS SECONDS
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tests.benchmarks import clock

# streaming imports torchvision, whose wheel does not find its operators in a torch without CUDA and then fails at these
_operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming import MDSWriter, Stream, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

BATCH_SIZE = 8
_OVERHEAD = 64  # bytes of a row beside its ids, about


def prepare(path: str, output: str, shards: int) -> None:
    """The set that is read: the rows of an array, in about so many shards."""
    rows = np.load(path, mmap_mode="r")
    size = -(-len(rows) // shards) * (rows[0].nbytes + _OVERHEAD)
    columns = {"tokens": f"ndarray:{rows.dtype.name}:{rows.shape[1]}"}
    with MDSWriter(out=output, columns=columns, size_limit=size) as writer:
        for row in rows:
            writer.write({"tokens": np.array(row)})


def build(folder: str, workers: int) -> clock.Epoch:
    """A loader."""
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH_SIZE)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=workers, drop_last=True)
    return lambda: (batch["tokens"].long() for batch in loader)


def build_mixed(folder: str) -> clock.Epoch:
    """A loader of all sets below a folder, the i-th of weight i."""
    folders = sorted(Path(folder).iterdir())
    total = sum(range(1, len(folders) + 1))
    streams = [Stream(local=str(path), proportion=number / total) for number, path in enumerate(folders, 1)]
    loader = DataLoader(StreamingDataset(streams=streams, shuffle=True, batch_size=BATCH_SIZE), batch_size=BATCH_SIZE)
    return lambda: (batch["tokens"].long() for batch in loader)


def main(what: str, arguments: list[Any]) -> None:
    """One command."""
    if what == "prepare":
        prepare(*arguments[:2], int(arguments[2]))
        return
    clean_stale_shared_memory()
    if what == "mixed":
        print(clock.tokens_per_second(build_mixed(arguments[0]), float(arguments[2])))
    elif what == "first":
        print(clock.seconds_to_first(lambda: build(arguments[0], int(arguments[1]))))
    else:
        print(clock.tokens_per_second(build(arguments[0], int(arguments[1])), float(arguments[2])))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
