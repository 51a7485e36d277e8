"""resume: how long it takes to go on from a position, at the start and at the end of an epoch, and with Trainer's own resume.

The first table is of a set of 10,000 shards × 8,192 sequences, written sparse: rows of 8 tokens, all headers but the first
and last of a shard left out, checksums true. Each line is a fresh process whose imports do not count. `manifest` reads and
fingerprints the manifest; `position` is the arithmetic from there to the numbers of the first batch, `first batch` the same with
the files, whose checksums are compared when they are opened. Shards are opened by threads ahead of need, so some more than
those of the batch are counted; `listed` are listings of the folder.

The second is of real text, `--megabytes` of it: seconds from nothing built to the first batch of 8 at a place in an epoch. Trainer's
own resume is `accelerate.skip_first_batches` around its DataLoader: over an IterableDataset it reads all that is passed over. Over a table
that is read by index it passes over numbers only; that is given for comparison.
"""

import json
import os
from argparse import ArgumentParser, Namespace
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import xxhash

from tests.benchmarks.corpus import train_tokenizer, write_corpus
from tests.benchmarks.measure import interleaved, median_ratio, python, run, spread, table, verdict
from tests.benchmarks.write import our_command
from tokentar import open_shards
from tokentar.shard_writer.format.dataset_info import DatasetInfo, TokenizerInfo, Totals
from tokentar.shard_writer.format.manifest import Manifest, ShardEntry, first_numbers, write_manifest
from tokentar.shard_writer.format.shards import RowFormat

DEFAULT_MEGABYTES = 400
PACKAGES = ("accelerate", "datasets", "transformers", "torch", "numpy")
_ROWS = 8_192
_FORMAT = RowFormat(8, np.dtype("<u2"))
_MOST_MS, _TARGET = 50, 100
_PLACES = [(epoch, percent) for epoch in (0, 4) for percent in (1, 99)]
_PERCENTS = (10, 50, 90)
_NAMES = {
    "ours": "ours",
    "iterable": "Trainer, Arrow table as IterableDataset",
    "webdataset": "Trainer, our shards streamed by `datasets`",
    "indexed": "Trainer, Arrow table by index",
}


def add_options(parser: ArgumentParser) -> None:
    """The size of the sparse set."""
    parser.add_argument("--shards", type=int, default=10_000, help="shards of the first table (default: %(default)s)")


def sparse_set(folder: Path, shards: int) -> Path:
    """A set of empty rows that takes two blocks of the disk a shard."""
    folder.mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries = list(pool.map(partial(sparse_shard, folder), range(shards)))
    sequences = shards * _ROWS
    info = DatasetInfo(
        seq_length=_FORMAT.seq_length,
        dtype=_FORMAT.dtype.name,
        tokenizer=TokenizerInfo(name="none", fingerprint="0" * 32, vocab_length=1, eos_token_id=0),
        source={},
        settings={},
        seed=0,
        splits={"train": Totals(documents=0, tokens=sequences * 8, sequences=sequences, tail=0)},
        skipped={},
    )
    write_manifest(Manifest(folder, info, tuple(entries), first_numbers(entries)))
    return folder


def sparse_shard(folder: Path, index: int) -> ShardEntry:
    """One shard, and its checksum from the same bytes in memory."""
    size, name = _FORMAT.file_size(_ROWS), f"train-{index:06d}"
    image = np.zeros(size, np.uint8)
    with open(folder / f"{name}.tar", "wb") as file:
        file.truncate(size)
        for row in (0, _ROWS - 1):
            header = _FORMAT.header(index * _ROWS + row) + _FORMAT.npy_header
            file.seek(row * _FORMAT.stride)
            file.write(header)
            image[file.tell() - len(header) : file.tell()] = np.frombuffer(header, np.uint8)
    return ShardEntry(
        shard=name, split="train", num_sequences=_ROWS, bytes=size, xxh3=xxhash.xxh3_64_hexdigest(image.data)
    )


def measured(*words: object) -> dict[str, float]:
    """One command of resuming.py."""
    found: dict[str, float] = json.loads(run(python("-m", "tests.benchmarks.resuming", *words)).output.splitlines()[-1])
    return found


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    return f"{starts(options, folder)}\n\n{against_trainer(options, folder)}"


def starts(options: Namespace, folder: Path) -> str:
    """The first table."""
    shards = sparse_set(folder / "sparse", options.shards)
    calls = {f"{e} {percent}": partial(measured, "start", shards, e, percent) for e, percent in _PLACES}
    found = interleaved(options.rounds, calls)
    rows = []
    for epoch, percent in _PLACES:
        seen = found[f"{epoch} {percent}"]
        parts: dict[str, Any] = {key: [each[key] for each in seen] for key in seen[0]}
        times = [spread(parts[key], "{:.1f}") for key in ("manifest", "position", "first")]
        met = verdict(median(parts["position"]) < _MOST_MS, f"< {_MOST_MS} ms")
        counts = [f"{max(parts['opened']):,.0f}", f"{max(parts['listed']):,.0f}"]
        rows.append([f"epoch {epoch}, {percent} %", *times, met, *counts])
    headings = ["place", "manifest, ms", "position, ms, median (range)", "first batch, ms", "position"]
    return (
        f"{options.shards:,} shards × {_ROWS:,} sequences; {options.rounds} rounds.\n\n"
        f"{table([*headings, 'most shards opened', 'listed'], rows)}"
    )


def against_trainer(options: Namespace, folder: Path) -> str:
    """The second table."""
    corpus = write_corpus(folder / "corpus.jsonl", options.megabytes, options.corpus)
    shards = folder / "shards"
    run(our_command(corpus.path, train_tokenizer(corpus.path, folder / "tokenizer"), shards, options.workers))
    measured("prepare", shards, folder / "shards-arrow")
    calls = {
        f"{name} {percent}": partial(measured, "first", name, shards, percent)
        for percent in _PERCENTS
        for name in _NAMES
    }
    found = {key: [each["seconds"] for each in results] for key, results in interleaved(options.rounds, calls).items()}
    rows = []
    for name, label in _NAMES.items():
        for percent in _PERCENTS:
            seconds = found[f"{name} {percent}"]
            ratio = median_ratio(seconds, found[f"ours {percent}"])
            has_target = percent == 90 and name in ("iterable", "webdataset")
            target = verdict(ratio >= _TARGET, f"≥ {_TARGET}") if has_target else ""
            rows.append([f"{label}, {percent} %", spread([1000 * each for each in seconds]), f"{ratio:,.1f}", target])
    manifest = open_shards(shards)
    headings = ["resume at", "ms to the first batch, median (range)", "times ours, median of pairs", "target"]
    sequences = (
        f"{manifest.info.totals.sequences:,} sequences × {manifest.info.seq_length} in {len(manifest.shards)} shards"
    )
    return f"{sequences}; {options.rounds} rounds.\n\n{table(headings, rows)}"
