"""One way to read the shards of a set in a store, in its own process; run in the environment of its client.

python -m tests.benchmarks.fetch read CLIENT URL SHARDS FOLDER     prints MiB a second of reading them all, four at once
                                 train URL FOLDER RATE SHARDS      prints the share of time that a training loop waits
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

AT_ONCE = 4
MIB = 1 << 20
_STREAMS, _BATCH = 4, 256


def boto3_reader() -> Callable[[str, str], int]:
    """Into memory, by boto3."""
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", config=Config(max_pool_connections=AT_ONCE))
    return lambda bucket, key: len(client.get_object(Bucket=bucket, Key=key)["Body"].read())


def obstore_reader() -> Callable[[str, str], int]:
    """Into memory, by obstore."""
    import obstore
    from obstore.store import S3Store

    stores: dict[str, Any] = {}

    def read(bucket: str, key: str) -> int:
        store = stores.setdefault(bucket, S3Store(bucket, client_options={"allow_http": True}))
        return len(obstore.get(store, key).bytes())

    return read


def s3fs_reader() -> Callable[[str, str], int]:
    """Into memory, by s3fs."""
    from s3fs import S3FileSystem

    files = S3FileSystem()
    return lambda bucket, key: len(files.cat_file(f"{bucket}/{key}"))


READERS: dict[str, Callable[[], Callable[[str, str], int]]] = {
    "boto3": boto3_reader,
    "obstore": obstore_reader,
    "s3fs": s3fs_reader,
}


def read(client: str, url: str, shards: int, folder: str) -> float:
    """MiB a second."""
    if client == "ours":
        return read_ours(url, folder)
    one, (bucket, _, prefix) = READERS[client](), url.removeprefix("s3://").partition("/")
    keys = [f"{prefix}/train-{index:06d}.tar" for index in range(shards)]
    start = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        size = sum(pool.map(lambda key: one(bucket, key), keys))
    return size / MIB / (time.perf_counter() - start)


def read_ours(url: str, folder: str) -> float:
    """The same by what training uses: into the cache, compared with the manifest, mapped."""
    from tokentar import Access, World, open_shards
    from tokentar.train.data.prefetch import Prefetcher
    from tokentar.train.data.shard_pool import ShardPool

    manifest = open_shards(url)
    pool = ShardPool.of(manifest, Access(cache_dir=folder), World(), streams=AT_ONCE)
    size, start = 0, time.perf_counter()
    with Prefetcher(pool, iter(range(len(manifest.shards)))) as opener:
        for index, entry in enumerate(manifest.shards):
            opener.open(index)
            size += entry.bytes
    return size / MIB / (time.perf_counter() - start)


def train(url: str, folder: str, rate: float, shards: int) -> float:
    """The share of time spent waiting for shards, once each stream has read its first, at `rate` MiB of shards a second.

    The cache takes half of the set; a step sleeps as long as it takes to need no more than `rate`.
    """
    from tokentar import Access, ShardLoader

    size = max(entry.bytes for entry in ShardLoader(url, batch_size=1).manifest.shards)
    access = Access(cache_dir=folder, cache_bytes=max(shards // 2, 2 * _STREAMS + 2) * size)
    loader = ShardLoader(url, batch_size=_BATCH, streams=_STREAMS, access=access)
    step = _BATCH * loader.manifest.info.row_format.stride / MIB / rate  # seconds
    warm, due = _STREAMS * int(loader.manifest.num_sequences.max()), 0.0
    waited = start = 0.0
    for number, _ in enumerate(loader):
        if not start and number * _BATCH >= warm:
            waited, start = loader.pool.notes.total().wait_seconds, time.perf_counter()
        due = max(due, time.perf_counter()) + step if not start else due + step
        time.sleep(max(0.0, due - time.perf_counter()))
    return (loader.pool.notes.total().wait_seconds - waited) / (time.perf_counter() - start)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "train":
        print(train(arguments[0], arguments[1], float(arguments[2]), int(arguments[3])))
    else:
        print(read(arguments[0], arguments[1], int(arguments[2]), arguments[3]))
