"""The one place of the writer that touches files by name: listing, atomic writing, checksums, the lock of an output folder.

Everyone else sees strings and paths. Listings are sorted; a file under its final name is whole (temp name, fsync,
rename).
"""

import fcntl
import glob
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash
from numpy.typing import NDArray

from tokentar.shard_writer.errors import InputError, SetError

LOCK_FILE = "lock"
ATTEMPT = "TOKENTAR_ATTEMPT"  # names the processes of a cluster, where a lost one may yet write beside its replacement
_READ_BYTES = 16 << 20
_SYNC_THREADS = 8


def find_files(pattern: str) -> list[str] | None:
    """The files that a path, a folder or a glob names, sorted; None when nothing is there under this name.

    Below a folder, hidden files and __pycache__ are passed over. `**` in a glob goes through folders.
    """
    if os.path.isfile(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        return sorted(_regular(_walk(pattern)))
    if glob.has_magic(pattern):
        found = sorted(_regular(glob.glob(os.path.expanduser(pattern), recursive=True)))
        if not found:
            raise InputError(f"input {pattern!r} matches no file; check the pattern (`**` goes through folders)")
        return found
    return list(_regular([pattern])) if os.path.lexists(pattern) else None


def _regular(paths: Iterable[str]) -> Iterator[str]:
    """The files among `paths`; folders are passed over. Raises InputError for what is neither."""
    for path in paths:
        if os.path.isfile(path):
            yield path
        elif not os.path.isdir(path):
            what = "a link to nothing" if os.path.islink(path) else "a pipe, socket or device"
            raise InputError(f"{path}: {what}, a file or folder wanted; mend it, or leave it out of --input")


def _walk(folder: str) -> Iterator[str]:
    """Visible files below a folder, links followed; a folder that links lead to again is passed over."""
    seen: set[str] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        if os.path.realpath(root) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(root))
        yield from (os.path.join(root, name) for name in files if not name.startswith("."))


def all_below(folder: str) -> Iterator[str]:
    """All files below a folder."""
    return (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)


def changed_ns(path: str | os.PathLike[str]) -> int:
    """When a file was changed last, in ns since 1970: also where its time was set back, as copying tools do."""
    found = os.stat(path)
    return max(found.st_mtime_ns, found.st_ctime_ns)


def put(path: Path, content: bytes | Iterable[NDArray[Any]], *, durable: bool = True) -> tuple[int, str]:
    """Write a file, or its slices, so that it is whole under `path` or not there: temp name, fsync (when `durable`), rename.

    Returns its size in bytes and its XXH3-64.
    """
    temporary, digest, size = temporary_of(path), xxhash.xxh3_64(), 0
    with naming(path), open(temporary, "wb") as file:
        for piece in [content] if isinstance(content, bytes) else content:
            data = piece if isinstance(piece, bytes) else piece.data.cast("B")
            digest.update(data)
            size += file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        sync([path.parent])
    return size, digest.hexdigest()


def temporary_of(path: Path) -> Path:
    """Where a file is written before it gets its name."""
    return path.with_name(f"{path.name}{os.environ.get(ATTEMPT, '')}.tmp")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system name `path`; that of a full disk names no file by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def syncing() -> Iterator[Callable[[Path], None]]:
    """Gives a function that begins to let a file outlast a loss of power, while its caller goes on; at the end all of them do.

    Raises the OSError of a file that does not.
    """
    begun: list[Future[None]] = []
    threads = ThreadPoolExecutor(_SYNC_THREADS)
    try:
        yield lambda path: begun.append(threads.submit(_sync, path))
        for future in begun:
            future.result()
    finally:
        threads.shutdown(cancel_futures=True)


def sync(paths: Iterable[Path]) -> None:
    """Let files, and what is renamed in folders, outlast a loss of power."""
    with syncing() as begin:
        for path in paths:
            begin(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(content: bytes | NDArray[Any]) -> str:
    """XXH3-64 of bytes in memory, as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(content if isinstance(content, bytes) else content.data)


def file_checksum(path: Path) -> tuple[int, str]:
    """Size in bytes and XXH3-64 of a file, read in pieces."""
    digest, size = xxhash.xxh3_64(), 0
    with open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an output folder; a second writer is refused at once. The lock ends with the process that holds it."""
    busy = SetError(f"{folder.parent}: another writer is at work here; wait for it or choose another output")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK_FILE, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        if not _is_same_file(folder / LOCK_FILE, lock.fileno()):
            raise busy  # it ended just now and took the file along that we hold
        yield


def _is_same_file(path: Path, descriptor: int) -> bool:
    return path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor))


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
