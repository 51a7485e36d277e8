"""URLs, which no other module of the writer knows: s3://, gs://, az://, hf:// and, for reading, http(s)://.

What holds whatever the store: an object is there whole or not at all, and compared with the file it came from; what is
read is compared with what it should be; failures are tried again with pauses, up to a limit; a message names the URL
and no secret; nothing goes through a shell.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

from tokentar.shard_writer.errors import SetError, SettingError, StoreError
from tokentar.shard_writer.storage import client
from tokentar.shard_writer.storage.client import Client, Patience, Stat
from tokentar.shard_writer.storage.transfer import WrongBytes, pour, s3_tag

EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "hf": "hf", "https": "http", "http": "http"}  # scheme → extra
_VERIFY = "; `tokentar verify` names all that is damaged or missing"
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN) or AWS_PROFILE, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "hf": "set HF_TOKEN, or run `hf auth login`",
}
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Bucket:
    """A bucket, a repository or a host, and how patient its client is."""

    root: str
    patience: Patience = field(default_factory=Patience)
    query: str = field(default="", repr=False)  # of a signed link: a secret, which is sent and never shown

    @cached_property
    def client(self) -> Client:
        """Made when it is first needed, in the process that needs it: clients do not survive a fork."""
        return _connect(self.root, self.patience, self.query)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.root, self.patience, self.query)


def _connect(root: str, patience: Patience, query: str = "") -> Client:
    """The client of a bucket, repository or host; `query` is sent along with each request to a web server.

    Raises SettingError when its library is not installed.
    """
    scheme = root.partition("://")[0]
    try:
        __import__("huggingface_hub" if scheme == "hf" else "obstore")
    except ImportError as error:
        raise SettingError(f"{root}: {error}; pip install 'tokentar[{EXTRAS[scheme]}]'") from None
    from tokentar.shard_writer.storage.hub import Hub
    from tokentar.shard_writer.storage.object_store import ObjectStore

    return Hub(root) if scheme == "hf" else ObjectStore(root, patience, query)


@dataclass(frozen=True)
class Url:
    """The place of an object or, as a path has folders, of all objects below it."""

    bucket: Bucket
    key: str

    def __str__(self) -> str:
        return f"{self.bucket.root}/{self.key}" if self.key else self.bucket.root

    def __truediv__(self, name: str) -> "Url":
        return Url(self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "Url":
        """All but the last part."""
        return Url(self.bucket, self.key.rpartition("/")[0])

    def exists(self) -> bool:
        """Whether there is an object."""
        try:
            return self.stat() is not None
        except FileNotFoundError:
            return False

    def stat(self) -> Stat:
        """Size and tag. Raises FileNotFoundError or StoreError."""
        return self._persist(lambda: self.bucket.client.stat(self.key))

    def read_bytes(self) -> bytes:
        """All of it. Raises FileNotFoundError or StoreError."""
        return self._persist(lambda: b"".join(map(bytes, self._pieces(None))))

    def read_text(self) -> str:
        """The same as UTF-8."""
        return self.read_bytes().decode()

    def files(self) -> list[tuple["Url", Stat]]:
        """The objects below this place, sorted by name. Raises StoreError."""
        prefix = f"{self.key}/" if self.key else ""
        web = "; where a web server lists no folders, name each file by its own URL"
        way_out = web if self.bucket.root.startswith("http") else ""
        found = self._persist(lambda: list(self.bucket.client.list(prefix)), way_out)
        return sorted(((Url(self.bucket, key), stat) for key, stat in found), key=lambda pair: pair[0].key)

    def names(self) -> list[str]:
        """The names of the objects right below this place, sorted. Raises StoreError."""
        start = len(self.key) + 1 if self.key else 0
        return [url.key[start:] for url, _ in self.files() if "/" not in url.key[start:]]

    def delete(self) -> None:
        """Delete the object, if it is there. Raises StoreError."""
        try:
            self._persist(lambda: self.bucket.client.delete(self.key))
        except FileNotFoundError:
            return

    def checksum(self) -> tuple[int, str]:
        """Size in bytes and XXH3-64 of what a reader gets. Raises FileNotFoundError or StoreError."""
        return self._persist(lambda: pour(self._pieces(None)))

    def download(self, file: IO[bytes], size: int, xxh3: str | None) -> None:
        """Write the object into a file, from its start. xxh3: None where it is not known.

        Raises SetError when it is not there or is not what it should be, StoreError when the store fails.
        """

        def attempt() -> None:
            file.seek(0)
            _, seen = pour(self._pieces(size), file)
            if xxh3 is not None and seen != xxh3:
                raise WrongBytes(f"checksum {seen}, needed {xxh3}; the object is damaged or of another set")

        try:
            self._persist(attempt)
        except FileNotFoundError:
            raise SetError(f"{self}: no such object{_VERIFY}") from None

    def upload(self, path: Path, size: int, xxh3: str) -> None:
        """Put a file in place, unless it is there, and compare size and checksum. Raises StoreError when that does not work."""

        def attempt() -> None:
            self.bucket.client.put(self.key, path)
            if not self._holds(path, size, xxh3):
                raise WrongBytes(f"what arrived is not {path}")

        if not self._persist(lambda: self._holds(path, size, xxh3)):
            self._persist(attempt, f"; the local copy is {path}, the same command goes on with it")

    def put(self, content: bytes) -> None:
        """Put a small object in place. Raises StoreError."""
        self._persist(lambda: self.bucket.client.put(self.key, content))

    def create(self, content: bytes) -> None:
        """Put a small object where none is. Raises SetError when there is another one."""
        put = self._persist(lambda: self.bucket.client.create(self.key, content))
        if not put and self.read_bytes() != content:  # its own, if the answer to the first attempt was lost
            raise SetError(
                f"{self}: another writer put a set in place meanwhile; choose another output, or --overwrite"
            )

    def abort_uploads(self) -> None:
        """Drop what killed uploads to places below this one have left. Raises StoreError."""
        if count := self._persist(lambda: self.bucket.client.abort_uploads(f"{self.key}/")):
            _log.info("%s: %d unfinished uploads of an earlier run dropped", self, count)

    def _holds(self, path: Path, size: int, xxh3: str) -> bool:
        """Whether the object is this file: by its tag, where that is the MD5 of S3, else by reading it."""
        try:
            seen = self.bucket.client.stat(self.key)
            if seen.size != size:
                return False
            return (seen.tag or "").strip('"') == s3_tag(path) or pour(self._pieces(size)) == (size, xxh3)
        except FileNotFoundError:
            return False

    def _pieces(self, size: int | None) -> Iterator[Any]:
        """The bytes of the object. Raises WrongBytes when they are more or fewer than the store said, or than `size`."""
        said, pieces = self.bucket.client.read(self.key)
        if size is not None and said != size:
            raise WrongBytes(
                f"{said} bytes, needed {size}; the object is cut, of another set, or no shard but a web page"
            )
        seen = 0
        for piece in pieces:
            seen += len(piece)
            yield piece
        if seen != said:
            raise WrongBytes(f"ended after {seen} of {said} bytes")

    def _persist(self, action: Callable[[], Result], way_out: str = "") -> Result:
        """What `action` gives, tried again where it fails for a reason that may pass."""
        pauses = self.bucket.patience.pauses()
        while True:
            try:
                return action()
            except FileNotFoundError:
                raise
            except self._passing as error:
                why = client.reason(error)
                if client.is_refused(error):
                    raise StoreError(f"{self}: access refused: {why}; {self._credentials}{way_out}") from None
                if client.is_final(error):
                    raise StoreError(f"{self}: {why}{way_out or '; check the URL'}") from None
                pause = next(pauses, None)
                if pause is None:
                    attempts = self.bucket.patience.attempts
                    kind, advice = (
                        (SetError, _VERIFY) if isinstance(error, WrongBytes) else (StoreError, "; try again later")
                    )
                    raise kind(f"{self}: {why} ({attempts} attempts){way_out or advice}") from None
            _log.warning("%s: %s; again in %.1f s", self, why, pause)
            time.sleep(pause)

    @property
    def _passing(self) -> tuple[type[Exception], ...]:
        return (*self.bucket.client.errors, WrongBytes, TimeoutError, ConnectionError)

    @property
    def _credentials(self) -> str:
        """What to look at when access is refused."""
        return _CREDENTIALS.get(self.bucket.root.partition("://")[0], "is it public, or has the link expired?")
