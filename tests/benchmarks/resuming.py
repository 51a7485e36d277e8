"""What `resume` measures, in a process of its own; each command prints one line of JSON. Imports are left out.

python -m tests.benchmarks.resuming start SET EPOCH PERCENT      our own start at a position, in parts
                                    first CONTENDER SET PERCENT  seconds from nothing built to the first batch there
                                    prepare SET OUTPUT           the same rows as an Arrow table for `datasets`
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import skip_first_batches
from datasets import Dataset, Features, Sequence, Value, load_dataset, load_from_disk
from torch.utils.data import DataLoader

from tokentar import Manifest, ShardLoader, open_shards
from tokentar.train.data.dataset import ShardRows, Span
from tokentar.train.data.shard_pool import ShardPool

BATCH_SIZE = 8


class Watch:
    """Which shards of a folder this process opens, and how often it lists one, from now on."""

    def __init__(self, folder: Path) -> None:
        self.opened: set[str] = set()
        self.listed = 0
        self._folder = str(folder)
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(self._folder) and str(arguments[0]).endswith(".tar"):
            self.opened.add(str(arguments[0]))
        elif event in ("os.listdir", "os.scandir") and str(arguments[0]).startswith(self._folder):
            self.listed += 1


class BlankShelf(ShardPool):
    """Shards of zeros that no file is opened for: what is left of reading is the arithmetic."""

    def opener(self, upcoming: Iterator[int], *_: Any) -> Any:
        return BlankOpener(self, upcoming)


class BlankOpener:
    """As pool.Prefetcher, looking as far ahead."""

    def __init__(self, pool: ShardPool, upcoming: Iterator[int]) -> None:
        self.manifest, self.upcoming, self.ahead = pool.manifest, upcoming, pool.ahead

    def __enter__(self) -> "BlankOpener":
        for _ in zip(range(self.ahead), self.upcoming, strict=False):
            pass
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def open(self, index: int) -> Any:
        return Blank(self.manifest, index)


class Blank:
    """As shards.ShardFile."""

    def __init__(self, manifest: Manifest, index: int) -> None:
        self.first_sequence = int(manifest.first_sequences[index])
        self.rows = np.zeros(
            (int(manifest.num_sequences[index]), manifest.info.seq_length), manifest.info.row_format.dtype
        )


def position(loader: ShardLoader, epoch: int, percent: float) -> dict[str, Any]:
    """A state so far into an epoch, at a whole batch."""
    samples = int(loader.plan.usable(loader.order.samples) * percent / 100) // BATCH_SIZE * BATCH_SIZE
    consumed = epoch * loader.plan.usable(loader.order.samples) + samples
    return loader.state_dict() | {"epoch": epoch, "position": samples, "consumed": consumed}


def our_loader(manifest: Manifest) -> ShardLoader:
    """One rank without workers."""
    return ShardLoader(manifest, batch_size=BATCH_SIZE, rank=0, world_size=1)


def first_numbers(loader: ShardLoader, state: dict[str, Any]) -> list[int]:
    """The sequences of the first batch behind a state, by arithmetic alone."""
    loader.load_state_dict(state)
    pool = BlankShelf(**{field.name: getattr(loader.pool, field.name) for field in fields(loader.pool)})
    span = Span(loader.epoch, loader.position, loader.order.samples)
    rows = ShardRows(pool, loader.order, loader.world, span, BATCH_SIZE, np.dtype(np.int64))
    numbers: list[int] = next(iter(rows))[0].tolist()
    return numbers


def start(folder: str, epoch: str, percent: str) -> dict[str, float]:
    """Milliseconds of each part of a start at a position, and what was opened for it."""
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return 1000 * (clock[-1] - clock[-2])

    watch = Watch(Path(folder))
    manifest = open_shards(folder).split("train")
    state = position(our_loader(manifest), int(epoch), float(percent))
    manifest_ms = lap()
    numbers = first_numbers(our_loader(manifest), state)
    arithmetic_ms = lap()
    loader = our_loader(manifest)
    loader.load_state_dict(state)
    next(iter(loader))
    first_ms, opened = lap(), len(watch.opened)
    if loader.sample_numbers.tolist() != numbers:
        raise SystemExit(f"arithmetic says {numbers}, the files {loader.sample_numbers.tolist()}")
    return {
        "manifest": manifest_ms,
        "position": arithmetic_ms,
        "first": first_ms,
        "opened": opened,
        "listed": watch.listed,
    }


# Contenders: (SET, percent of an epoch) -> iterator that begins there


def ours(folder: str, percent: float) -> Iterator[Any]:
    """ShardLoader."""
    loader = our_loader(open_shards(folder))
    loader.load_state_dict(position(loader, 0, percent))
    return iter(loader)


def skipped(dataset: Any, rows: int, percent: float, **settings: Any) -> Iterator[Any]:
    """What Trainer does: its loader is read up to the place."""
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, drop_last=True, **settings)
    return iter(skip_first_batches(loader, int(rows // BATCH_SIZE * percent / 100)))


def rows_of(folder: str) -> int:
    return int(open_shards(folder).num_sequences.sum())


def iterable(folder: str, percent: float) -> Iterator[Any]:
    """The rows as an Arrow table, read as an IterableDataset."""
    dataset = load_from_disk(f"{folder}-arrow").to_iterable_dataset(num_shards=64).with_format("torch")
    return skipped(dataset, rows_of(folder), percent)


def webdataset(folder: str, percent: float) -> Iterator[Any]:
    """Our shards, streamed by `datasets`."""
    files = sorted(map(str, Path(folder).glob("train-*.tar")))
    dataset = load_dataset("webdataset", data_files=files, split="train", streaming=True)
    return skipped(dataset, rows_of(folder), percent, collate_fn=stacked)


def stacked(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([sample["input_ids.npy"] for sample in samples], dtype=np.int64))


def indexed(folder: str, percent: float) -> Iterator[Any]:
    """The same table read by index, shuffled: Trainer skips numbers, not rows."""
    dataset = load_from_disk(f"{folder}-arrow").with_format("torch")
    return skipped(dataset, rows_of(folder), percent, shuffle=True)


CONTENDERS: dict[str, Callable[[str, float], Iterator[Any]]] = {
    "ours": ours,
    "iterable": iterable,
    "webdataset": webdataset,
    "indexed": indexed,
}


def first(name: str, folder: str, percent: str) -> dict[str, float]:
    """Seconds to the first batch of a contender."""
    begin = time.perf_counter()
    next(CONTENDERS[name](folder, float(percent)))
    return {"seconds": time.perf_counter() - begin}


def prepare(folder: str, output: str) -> dict[str, float]:
    """The rows of a set as an Arrow table in 64 files."""
    manifest = open_shards(folder)
    rows = np.concatenate([manifest.open(index).rows for index in range(len(manifest.shards))])
    features = Features({"input_ids": Sequence(Value(rows.dtype.name), length=rows.shape[1])})
    Dataset.from_dict({"input_ids": list(rows)}, features=features).save_to_disk(output, num_shards=64)
    return {}


if __name__ == "__main__":
    torch.set_num_threads(1)
    command = {"start": start, "first": first, "prepare": prepare}[sys.argv[1]]
    print(json.dumps(command(*sys.argv[2:])))
