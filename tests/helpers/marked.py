"""Marked sets: sequence i holds its own number in every position, so what was read is known exactly."""

from pathlib import Path

import numpy as np

from tokentar.shard_writer.format.dataset_info import DatasetInfo, TokenizerInfo, Totals
from tokentar.shard_writer.format.manifest import Manifest, ShardEntry, first_numbers, write_manifest
from tokentar.shard_writer.format.shards import RowFormat, shard_image
from tokentar.shard_writer.storage.files import checksum, put

LENGTH = 8


def write_marked(folder: Path, shards: int, rows: int | list[int], vocab_length: int = 1 << 16) -> Manifest:
    """A set of `shards` shards of `rows` sequences each (or rows[i] of shard i)."""
    sizes = [rows] * shards if isinstance(rows, int) else rows
    row_format = RowFormat(LENGTH, np.dtype("<u2"))
    folder.mkdir(parents=True)
    entries, first = [], 0
    for index, size in enumerate(sizes):
        numbers = np.arange(first, first + size, dtype=np.uint16)
        image = shard_image(np.repeat(numbers[:, None], LENGTH, axis=1), first, row_format)
        name = f"train-{index:06d}"
        put(folder / f"{name}.tar", [image])
        entries.append(
            ShardEntry(shard=name, split="train", num_sequences=size, bytes=image.nbytes, xxh3=checksum(image))
        )
        first += size
    info = DatasetInfo(
        seq_length=LENGTH,
        dtype="uint16",
        tokenizer=TokenizerInfo(name="marked", fingerprint="0" * 32, vocab_length=vocab_length, eos_token_id=0),
        source={},
        settings={},
        seed=0,
        splits={"train": Totals(documents=first, tokens=first * LENGTH, sequences=first, tail=0)},
        skipped={},
    )
    manifest = Manifest(folder, info, tuple(entries), first_numbers(entries))
    write_manifest(manifest)
    return manifest
