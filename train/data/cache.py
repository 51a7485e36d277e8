"""A bounded folder of whole shards that all processes of a machine share: the only place of the reader that knows URLs.

A shard lies in it under its checksum and size, so a name never means other bytes, and jobs on one set share one copy.
Locks of the system say who uses what, so nothing is left locked by a process that is killed:

    XXH3-SIZE.tar    a whole shard; who maps it holds a shared lock, and only what nobody holds is evicted
    XXH3-SIZE.part   being fetched by the one that holds its lock; of a killed process it is taken over or evicted
    lock             held for the moment in which room is made

A file system without such locks (some network ones) cannot hold a cache.
"""

import errno
import fcntl
import logging
import os
import re
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tokentar.shard_writer.errors import SetError, SettingError, StoreError
from tokentar.shard_writer.format.manifest import ShardEntry
from tokentar.shard_writer.format.shards import RowFormat, ShardFile
from tokentar.shard_writer.storage.files import file_checksum
from tokentar.shard_writer.storage.urls import Url

_LOCK, _SHARD, _PART = "lock", ".tar", ".part"
_CHECKSUM = re.compile("[0-9a-f]{16}")
_PAUSE = 0.1  # seconds between two looks for room
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_log = logging.getLogger(__name__)


def default_folder() -> Path:
    """Where shards are kept when nobody says where."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokentar" / "shards"


def parse_bytes(text: str) -> int:
    """Bytes of a size like 50GB, 64MiB or 1000000. Raises SettingError."""
    number = text.strip().rstrip("BKMGTIbkmgti").rstrip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise SettingError(f"cache_bytes: {text!r}, needed: a size such as 50GB, 64MiB or 1000000") from None
    if size < 1:
        raise SettingError(f"cache_bytes: {text!r}, needed: more than nothing")
    return size


class CachedShard(ShardFile):
    """A shard of the cache, which is not evicted before this is gone."""

    def __init__(self, held: int, path: Path, row_format: RowFormat, num_rows: int, first_sequence: int) -> None:
        self._release = weakref.finalize(self, os.close, held)
        super().__init__(path, row_format, num_rows, first_sequence)


@dataclass(frozen=True)
class Cache:
    """The folder, the bytes that may lie in it and how long to wait for room when others use all of it."""

    folder: Path
    limit: int  # bytes
    seconds_for_room: float = 600

    def prepare(self) -> None:
        """Make the folder. Raises SettingError when it cannot be a cache."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise SettingError(
                f"cache_dir: {self.folder}: {error.strerror}; needed: a folder that can be written to, of a file system with locks; "
                "name one on a local disk with --cache_dir"
            ) from None

    def path(self, entry: ShardEntry) -> Path:
        """Where a shard lies when it is there. Raises SetError for a checksum that is none, which might name anything."""
        if not _CHECKSUM.fullmatch(entry.xxh3):
            raise SetError(
                f"{entry.file_name}: xxh3 {entry.xxh3!r} in the manifest, needed: 16 hexadecimal digits; write the set again"
            )
        return self.folder / f"{entry.xxh3}-{entry.bytes}{_SHARD}"

    def hold(self, url: Url, entry: ShardEntry, *, checked: bool) -> tuple[int, bool]:
        """A descriptor that keeps the whole shard in the cache until it is closed, and whether the shard had to be fetched.

        checked: this job has seen the bytes that are there to be right. Raises SetError or StoreError.
        """
        path = self.path(entry)
        while True:
            held = _share(path)
            if held is not None and (checked or file_checksum(path) == (entry.bytes, entry.xxh3)):
                os.utime(path)  # evicted are those that were not used for longest
                return held, False
            if held is not None:
                _log.warning("%s: not the bytes of %s any more; fetched again", path, url)
                if _is_named(path, held):  # and no other process has put the right ones in its place
                    path.unlink()
                os.close(held)
            if (held := self._fetch(url, entry)) is not None:
                return held, True

    def _fetch(self, url: Url, entry: ShardEntry) -> int | None:
        """The shard, fetched and held; None when another process did so first, or tried."""
        path = self.path(entry)
        part = path.with_suffix(_PART)
        with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:
            if not _lock_alone(file.fileno()):
                fcntl.flock(file, fcntl.LOCK_SH)  # until it is there, from when on it is held as shared, or given up
                return None
            if path.exists() or not _is_named(part, file.fileno()):
                return None
            try:
                self._claim(file.fileno(), part, entry.bytes)
                url.download(file, entry.bytes, entry.xxh3)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            with self._locked():  # who counts what lies here sees it under one of its names
                os.replace(part, path)
            fcntl.flock(file, fcntl.LOCK_SH)  # nobody can have evicted it: a moment ago it was locked
            return os.dup(file.fileno()) if _is_named(path, file.fileno()) else None

    def _claim(self, descriptor: int, part: Path, size: int) -> None:
        """Make room for a file and give it to the file. Raises StoreError when there is none."""
        deadline = time.monotonic() + self.seconds_for_room
        while not self._has_claimed(descriptor, part, size):
            if time.monotonic() > deadline:
                raise StoreError(
                    f"cache_bytes: {self.limit:,} are not enough: running jobs use {self._used(part):,} of {self.folder} and a shard of "
                    f"{size:,} is needed; raise --cache_bytes, give each job its own --cache_dir, or use fewer --streams"
                )
            time.sleep(_PAUSE)

    def _has_claimed(self, descriptor: int, part: Path, size: int) -> bool:
        with self._locked():
            free = self._evictable(part)
            used = self._used(part)
            while used + size > self.limit:
                if (evicted := next(free, None)) is None:
                    return False
                used -= evicted
            while not _allocate(descriptor, size):
                if next(free, None) is None:
                    raise StoreError(
                        f"cache_dir: the disk of {self.folder} is full: no room for a shard of {size:,} bytes and nothing left to evict; "
                        "free some of it or name another folder with --cache_dir"
                    )
        return True

    def _evictable(self, part: Path) -> Iterator[int]:
        """Remove files that nobody uses, one by one, parts first, then those unused for longest; yields their sizes."""
        for path, stat in sorted(self._others(part), key=lambda file: (file[0].suffix != _PART, file[1].st_mtime_ns)):
            if _remove_unused(path):
                yield stat.st_size

    def _used(self, part: Path) -> int:
        return sum(stat.st_size for _, stat in self._others(part))

    def _others(self, part: Path) -> Iterator[tuple[Path, os.stat_result]]:
        """The files of the cache but for one; some may be gone the next moment."""
        for path in self.folder.iterdir():
            if path != part and path.suffix in (_SHARD, _PART):
                with suppress(FileNotFoundError):
                    yield path, path.stat()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _share(path: Path) -> int | None:
    """A descriptor with a shared lock on a file of the cache; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if _is_named(path, descriptor):
        return descriptor
    os.close(descriptor)  # evicted just now
    return None


def _remove_unused(path: Path) -> bool:
    """Remove a file unless somebody holds a lock on it."""
    try:
        with open(path, "rb") as file:
            if not _lock_alone(file.fileno()) or not _is_named(path, file.fileno()):
                return False
            path.unlink()
    except FileNotFoundError:
        return False
    return True


def _lock_alone(descriptor: int) -> bool:
    """Lock a file, unless somebody else has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_named(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _allocate(descriptor: int, size: int) -> bool:
    """Give a file its disk blocks, so that it is full now and not half way; False when there are none."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(descriptor, 0)
        return False
    return True
