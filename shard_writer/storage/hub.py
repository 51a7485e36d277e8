"""Repositories of the Hugging Face Hub, through huggingface_hub, which transformers brings."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tokentar.shard_writer.storage.client import READ_BYTES, Stat


class Hub:
    """A repository of the Hugging Face Hub; `root` is hf://datasets/USER/NAME or hf://USER/MODEL."""

    def __init__(self, root: str) -> None:
        self.root = root

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """See Client."""
        from huggingface_hub.errors import HfHubHTTPError

        return (HfHubHTTPError, HfHubHTTPError.__bases__[0])  # the latter is that of the HTTP library, whichever it is

    @cached_property
    def _files(self) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem(use_listings_cache=False, skip_instance_cache=True)

    def _path(self, key: str) -> str:
        return f"{self.root.removeprefix('hf://')}/{key}".rstrip("/")

    def stat(self, key: str) -> Stat:
        """See Client. The time of the last change, that of a commit, is told of single files alone: listings take long with it."""
        return _hub_stat(self._files.info(self._path(key), expand_info=True))

    def read(self, key: str) -> tuple[int, Iterable[Any]]:
        """See Client."""
        return self._files.info(self._path(key))["size"], self._pieces(key)

    def _pieces(self, key: str) -> Iterator[bytes]:
        with self._files.open(self._path(key), "rb", block_size=0) as file:
            while piece := file.read(READ_BYTES):
                yield piece

    def put(self, key: str, content: Path | bytes) -> None:
        """See Client: one commit."""
        if isinstance(content, bytes):
            self._files.pipe_file(self._path(key), content)
        else:
            self._files.put_file(str(content), self._path(key))

    def create(self, key: str, content: bytes) -> bool:
        """See Client; the Hub cannot put under a condition, so two that put in the same second both may."""
        if self._files.exists(self._path(key)):
            return False
        self.put(key, content)
        return True

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        """See Client."""
        start = len(self._path("")) + 1
        found = self._files.find(self._path(prefix), detail=True)
        return ((path[start:], _hub_stat(info)) for path, info in found.items())

    def delete(self, key: str) -> None:
        """See Client."""
        self._files.rm_file(self._path(key))

    def abort_uploads(self, prefix: str) -> int:
        """See Client: the Hub shows none."""
        del prefix
        return 0


def _hub_stat(info: dict[str, Any]) -> Stat:
    commit = info.get("last_commit")
    return Stat(info["size"], info.get("blob_id"), int(commit.date.timestamp()) * 1_000_000_000 if commit else None)
