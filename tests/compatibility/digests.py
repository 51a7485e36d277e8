"""Digests of what users keep or rely on: files of sets, batches in their order, positions in checkpoints.

    python -m tests.compatibility.digests > tests/compatibility/digests.json

digests.json is of version 0.1.0, before the packages moved below `tokentar`; `test_compatibility` compares with it. It is
written again only where bytes or an order are changed on purpose, which CHANGELOG.md then says.
"""

import csv
import gzip
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.marked import write_marked
from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.helpers.tokenizers import byte_tokenizer, with_template
from tokentar import Manifest, ShardLoader, open_shards, write_shards
from tokentar.shard_writer.maintenance.reshard import reshard

WORDS = ("shard", "sequence", "été", "日本語", "def f(x):", "\n", "\t", "0123456789", "👍🏽", "</s>", "")
READS = {  # ranks, workers, batch size, order
    "one rank": (1, 0, 4, "epoch"),
    "three ranks": (3, 0, 2, "epoch"),
    "two ranks with workers": (2, 2, 3, "epoch"),
    "repeat": (2, 0, 4, "repeat"),
    "resample": (2, 0, 4, "resample"),
}
BATCHES = 40


def texts(count: int, seed: int) -> list[str]:
    """Documents of 0 to 120 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=int(draw.random() ** 3 * 120))) for _ in range(count)]


def write_inputs() -> None:
    """One file of each format, below the working directory: names of inputs stand in dataset.json."""
    Path("docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(500, 1)))
    Path("more.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(200, 2)))
    Path("docs.jsonl.gz").write_bytes(gzip.compress(Path("more.jsonl").read_bytes()))
    pq.write_table(pa.table({"text": texts(150, 3)}), "docs.parquet", row_group_size=40)
    with open("docs.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "other"], *([text, "x"] for text in texts(80, 4))])
    Path("files").mkdir()
    for number, text in enumerate(texts(60, 5)):
        Path(f"files/{number:03d}.txt").write_text(text)


def write_sets() -> Iterator[tuple[str, Manifest]]:
    """Sets of all kinds, in folders below the working directory."""
    t0 = byte_tokenizer()

    def write(name: str, **settings: Any) -> tuple[str, Manifest]:
        common = {"input": "docs.jsonl", "tokenizer": t0, "seq_length": 64, "num_shards": 7, "workers": 0}
        return name, write_shards(output=name, **common | settings)

    yield write("wrap", workers=2)
    yield write("input order", shuffle=False)
    yield write("best fit", packing="best_fit")
    yield write("best fit in input order", packing="best_fit", shuffle=False, seq_length=100)
    yield write("validation", validation_fraction=0.2, seed=3, num_shards=None)
    yield write("uint32", tokenizer=byte_tokenizer(extra=70_000))
    yield write("beginning of sequence", tokenizer=with_template(byte_tokenizer(), "<s> $A"), input="files")
    yield write("all formats", input=["docs.jsonl.gz", "docs.parquet", "docs.csv", "files/0*.txt"], num_shards=3)
    yield write("no provenance", provenance=False)
    yield write("from memory", input=({"text": text} for text in texts(100, 6)), num_shards=2)
    yield write("appended", num_shards=4)
    yield write("appended", input="more.jsonl", append=True, num_shards=None)
    yield "resharded", reshard("appended", "resharded", num_shards=5)


def files_of(manifest: Manifest) -> dict[str, str]:
    """The SHA-256 of each file of a set."""
    return {path.name: _hash(path.read_bytes()) for path in sorted(manifest.folder.iterdir())}


def reading(manifest: Manifest, ranks: int, workers: int, batch_size: int, order: str, **settings: Any) -> str:
    """The SHA-256 of some 40 batches of all ranks, then of those that another layout reads behind that position."""
    kinds: dict[str, Any] = {"order": order, "streams": 12, "seed": 5} | settings
    digest = hashlib.sha256()
    for rank in range(ranks):
        loader = ShardLoader(manifest, batch_size=batch_size, rank=rank, world_size=ranks, num_workers=workers, **kinds)
        _read(loader, digest)
    state = loader.state_dict()
    digest.update(json.dumps(state, sort_keys=True).encode())
    other = ShardLoader(manifest, batch_size=ranks * batch_size, rank=0, world_size=1, **kinds)
    other.load_state_dict(state)
    _read(other, digest)
    return digest.hexdigest()[:32]


def _read(loader: ShardLoader, digest: Any) -> None:
    for batch in islice(loader, BATCHES):
        digest.update(",".join(loader.sample_keys).encode())
        for name in ("input_ids", "position_ids"):
            digest.update(batch[name].numpy().tobytes() if name in batch else b"")


def position_of_checkpoint(manifest: Manifest) -> str:
    """data_position.json of a checkpoint of the trainer."""
    arguments = quiet_arguments(Path("run"), save_strategy="steps", save_steps=3, max_steps=5)
    model = tiny_model(n_positions=64)
    RecordingTrainer(model=model, args=arguments, shards=manifest, separate_documents=True).train()
    return Path("run/checkpoint-3/data_position.json").read_text()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def digests() -> dict[str, Any]:
    """All of them, made in a folder of their own."""
    before = os.getcwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return _digests()
        finally:
            os.chdir(before)


def _digests() -> dict[str, Any]:
    write_inputs()
    sets: dict[str, Any] = {}
    for name, manifest in write_sets():
        sets[name] = files_of(manifest)
    uneven = write_marked(Path("uneven"), 9, [3, 120, 41, 41, 200, 7, 90, 1, 110])
    reads = {}
    for kind, layout in READS.items():
        reads[kind] = reading(open_shards("wrap"), *layout)
        reads[f"{kind}, uneven shards"] = reading(uneven, *layout)
        reads[f"{kind}, separate documents"] = reading(open_shards("best fit"), *layout, separate_documents=True)
    return {"sets": sets, "reads": reads, "checkpoint": json.loads(position_of_checkpoint(open_shards("wrap")))}


if __name__ == "__main__":
    json.dump(digests(), sys.stdout, indent=1)
    print()
