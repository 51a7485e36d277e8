"""The cache: nothing but the right bytes is handed out, by one fetch for all, within the limit, whoever is killed (G10)."""

import multiprocessing
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.helpers.folder_store import FolderBucket, SlowBucket, StallingBucket, reads, url_of
from tests.helpers.marked import write_marked
from tokentar import Manifest, SetError, SettingError
from tokentar.shard_writer.errors import StoreError
from tokentar.shard_writer.format.manifest import ShardEntry
from tokentar.train.data.cache import Cache, parse_bytes

SIZE = 10_240  # bytes of a shard of four marked sequences
PROCESSES = multiprocessing.get_context("spawn")


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Six shards of four sequences."""
    return write_marked(tmp_path / "set", 6, 4)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Cache]:
    """The cache of these tests, with room for so many shards."""

    def cache(shards: int = 6, seconds_for_room: float = 0) -> Cache:
        made = Cache(tmp_path / "cache", shards * SIZE, seconds_for_room)
        made.prepare()
        return made

    return cache


def hold(cache: Cache, manifest: Manifest, index: int, bucket: type[FolderBucket] = FolderBucket) -> int:
    """Hold a shard of a set, in a run that has not seen it yet."""
    entry = manifest.shards[index]
    descriptor, _ = cache.hold(url_of(manifest.folder, bucket) / entry.file_name, entry, checked=False)
    return descriptor


def use(cache: Cache, manifest: Manifest, *indices: int) -> None:
    """Hold shards, one after the other, and let each go."""
    for index in indices:
        os.close(hold(cache, manifest, index))


def there(cache: Cache, manifest: Manifest) -> set[int]:
    """Which shards of a set lie in the cache."""
    names = {path.name for path in cache.folder.iterdir()}
    return {index for index, entry in enumerate(manifest.shards) if cache.path(entry).name in names}


def content(descriptor: int) -> bytes:
    """All of a shard that is held, which is let go."""
    try:
        return os.pread(descriptor, 2 * SIZE, 0)
    finally:
        os.close(descriptor)


def test_a_shard_is_fetched_once_and_is_what_the_store_has(make: Callable[..., Cache], manifest: Manifest) -> None:
    for _ in range(2):
        for index, entry in enumerate(manifest.shards):
            assert content(hold(make(), manifest, index)) == manifest.path(entry).read_bytes()
    assert reads(manifest.folder) == [f"train-{index:06d}.tar" for index in range(6)]


def test_a_flipped_byte_in_the_cache_is_found_by_the_next_run(make: Callable[..., Cache], manifest: Manifest) -> None:
    entry = manifest.shards[2]
    use(make(), manifest, 1, 2)
    kept = make().path(entry)
    damaged = bytearray(kept.read_bytes())
    damaged[700] ^= 1
    kept.write_bytes(damaged)
    assert content(hold(make(), manifest, 2)) == manifest.path(entry).read_bytes()
    assert reads(manifest.folder) == ["train-000001.tar", "train-000002.tar", "train-000002.tar"]


def test_bytes_that_are_not_the_manifests_never_get_a_name(make: Callable[..., Cache], manifest: Manifest) -> None:
    manifest.path(manifest.shards[0]).write_bytes(bytes(SIZE))
    manifest.path(manifest.shards[1]).write_bytes(b"<html>")
    manifest.path(manifest.shards[2]).unlink()
    texts = ["checksum [0-9a-f]{16}, needed", "6 bytes, needed 10240", "no such object"]
    for index, text in enumerate(texts):
        with pytest.raises(SetError, match=re.escape(f"{manifest.folder}/train-{index:06d}.tar: ") + text):
            hold(make(), manifest, index)
    assert [path.name for path in make().folder.iterdir()] == ["lock"]


def test_a_set_that_changed_is_not_served_from_the_old_one(make: Callable[..., Cache], tmp_path: Path) -> None:
    """Both sets have a shard of this name and size."""
    one, other = write_marked(tmp_path / "one", 1, 4), write_marked(tmp_path / "other", 2, [3, 4])
    other = other.choose({"train-000001"})
    other = replace(other, shards=(structs.replace(other.shards[0], shard="train-000000"),))
    (tmp_path / "other" / "train-000001.tar").replace(tmp_path / "other" / "train-000000.tar")
    for manifest in (one, other, one):
        assert content(hold(make(), manifest, 0)) == (manifest.folder / "train-000000.tar").read_bytes()
    assert (len(reads(one.folder)), len(reads(other.folder))) == (1, 1)


def test_the_shard_used_least_recently_makes_room_and_what_is_held_stays(
    make: Callable[..., Cache], manifest: Manifest
) -> None:
    cache = make(3)
    held = hold(cache, manifest, 0)
    use(cache, manifest, 1, 2, 1)
    use(cache, manifest, 3)
    assert there(cache, manifest) == {0, 1, 3}
    use(cache, manifest, 4)
    assert there(cache, manifest) == {0, 3, 4}
    os.close(held)
    use(cache, manifest, 5)
    assert there(cache, manifest) == {3, 4, 5}


def test_without_room_a_reader_waits_and_then_says_what_to_do(make: Callable[..., Cache], manifest: Manifest) -> None:
    held = [hold(make(2), manifest, index) for index in (0, 1)]
    text = r"cache_bytes: 20,480 are not enough: running jobs use 20,480 of .*/cache and a shard of 10,240 is needed; raise"
    with pytest.raises(StoreError, match=text):
        hold(make(2), manifest, 2)
    assert there(make(2), manifest) == {0, 1}
    threading.Timer(0.2, os.close, held[:1]).start()
    use(make(2, seconds_for_room=60), manifest, 2)
    assert there(make(2), manifest) == {1, 2}
    os.close(held[1])


def test_a_part_that_nobody_fetches_any_more_is_taken_over_or_makes_room(
    make: Callable[..., Cache], manifest: Manifest
) -> None:
    cache, entry = make(2), manifest.shards[0]
    part = cache.path(entry).with_suffix(".part")
    part.write_bytes(bytes(SIZE + 5))
    assert content(hold(cache, manifest, 0)) == manifest.path(entry).read_bytes()
    part.write_bytes(bytes(SIZE))
    use(cache, manifest, 1, 2)
    assert there(cache, manifest) == {1, 2}
    assert not part.exists()


def _hold_all(cache: Cache, manifest: Manifest, barrier: "threading.Barrier") -> None:
    barrier.wait()
    use(cache, manifest, *range(len(manifest.shards)))


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_two_processes_that_want_the_same_shards_fetch_each_once(tmp_path: Path, make: Callable[..., Cache]) -> None:
    manifest = write_marked(tmp_path / "many", 40, 4)
    barrier = PROCESSES.Barrier(2)
    processes = [PROCESSES.Process(target=_hold_all, args=(make(40), manifest, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(reads(manifest.folder)) == [entry.file_name for entry in manifest.shards]


def test_who_waits_for_a_fetch_has_the_shard_while_the_other_holds_it(
    make: Callable[..., Cache], manifest: Manifest
) -> None:
    """Else two readers that each wait for what the other has fetched would wait for ever."""
    with ThreadPoolExecutor(2) as pool:
        held = [pool.submit(hold, make(), manifest, 0, SlowBucket) for _ in range(2)]
        done = wait(held, timeout=20).done
        for future in done:
            os.close(future.result())
    assert len(done) == 2
    assert reads(manifest.folder) == ["train-000000.tar"]


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_a_process_killed_in_a_fetch_blocks_nobody(make: Callable[..., Cache], manifest: Manifest) -> None:
    cache = make(1)
    process = PROCESSES.Process(target=hold, args=(cache, manifest, 3, StallingBucket))
    process.start()
    while not reads(manifest.folder):
        time.sleep(0.02)
    with pytest.raises(StoreError, match="are not enough"):
        hold(cache, manifest, 4)  # what is being fetched is in use
    process.kill()
    process.join()
    assert {path.suffix for path in cache.folder.iterdir()} == {".part", ""}
    assert content(hold(cache, manifest, 3)) == manifest.path(manifest.shards[3]).read_bytes()
    assert there(cache, manifest) == {3}


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of `size` bytes at `folder`, where this user may have one."""
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True)
    if mount.returncode:
        pytest.skip("a small disk can be had by root only")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_gives_up_what_nobody_uses_and_then_says_what_to_do(tmp_path: Path, manifest: Manifest) -> None:
    """A disk of 32 KiB takes two shards of 12 KiB, as it has blocks of 4, where the limit would take six."""
    with small_disk(tmp_path / "disk", 32 << 10):
        cache = Cache(tmp_path / "disk", 6 * SIZE)
        cache.prepare()
        use(cache, manifest, 0)
        held = [hold(cache, manifest, index) for index in (1, 2)]
        assert there(cache, manifest) == {1, 2}
        with pytest.raises(StoreError, match=r"cache_dir: the disk of .*/disk is full: .* 10,240 bytes .* --cache_dir"):
            hold(cache, manifest, 3)
        assert {path.suffix for path in cache.folder.iterdir()} == {".tar", ""}
        for descriptor in held:
            os.close(descriptor)


def test_a_folder_that_cannot_be_a_cache_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"cache_dir: .*/file/cache: Not a directory; needed: a folder"):
        Cache(tmp_path / "file" / "cache", 1).prepare()


def test_a_manifest_names_no_file_outside_the_cache(make: Callable[..., Cache], tmp_path: Path) -> None:
    entry = ShardEntry(shard="train-000000", split="train", num_sequences=1, bytes=5, xxh3="../../mine")
    (tmp_path / "mine-5.tar").write_text("mine!")
    with pytest.raises(SetError, match=r"train-000000\.tar: xxh3 '\.\./\.\./mine' in the manifest, needed: 16 hex"):
        make().hold(url_of(tmp_path) / "x", entry, checked=False)
    assert (tmp_path / "mine-5.tar").read_text() == "mine!"


@pytest.mark.parametrize(
    ("text", "size"),
    [("50GB", 50 * 10**9), ("64MiB", 64 << 20), ("1.5 kb", 1500), ("2TiB", 2 << 40), ("1000000", 10**6), ("7B", 7)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "many", "5 GBs", "5XB", "0", "-1GB", "nan", "inf", "1e400"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"cache_bytes: .*, needed: "):
        parse_bytes(text)
