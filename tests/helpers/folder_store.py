"""A store that is a folder: URLs whose client reads files, and notes in a file beside the folder what it was asked for."""

import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tokentar.shard_writer.storage.client import Patience
from tokentar.shard_writer.storage.urls import Bucket, Url

HASTY = Patience(attempts=2, first_pause=0.01)


class FolderClient:
    """Reads files below `root`."""

    errors = (OSError,)

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, key: str) -> tuple[int, Iterator[bytes]]:
        content = (self.root / key).read_bytes()
        with open(f"{self.root}.log", "a") as log:
            log.write(f"{key}\n")
        return len(content), self.pieces(content)

    def pieces(self, content: bytes) -> Iterator[bytes]:
        yield content


class SlowClient(FolderClient):
    """Hands over half of a file, and the rest when some time has passed."""

    seconds = 0.3

    def pieces(self, content: bytes) -> Iterator[bytes]:
        yield content[: len(content) // 2]
        time.sleep(self.seconds)
        yield content[len(content) // 2 :]


class StallingClient(SlowClient):
    """The same, so late that nobody waits for it."""

    seconds = 100


class FolderBucket(Bucket):
    """A bucket whose root is a folder."""

    kind: Any = FolderClient

    @cached_property
    def client(self) -> Any:
        return self.kind(Path(self.root.partition("://")[2]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.patience)


class SlowBucket(FolderBucket):
    """The same with a slow store."""

    kind = SlowClient


class StallingBucket(FolderBucket):
    """The same with a store that stalls."""

    kind = StallingClient


def url_of(folder: Path, bucket: type[FolderBucket] = FolderBucket) -> Url:
    """The URL of a folder."""
    return Url(bucket(f"folder://{folder}", HASTY), "")


def reads(folder: Path, suffix: str = ".tar") -> list[str]:
    """The files that have been read through URLs of a folder, in order."""
    log = Path(f"{folder}.log")
    return [name for name in log.read_text().splitlines() if name.endswith(suffix)] if log.exists() else []
