"""The libraries that speak to object stores, as one small interface: obstore, and for hf:// huggingface_hub.

obstore, because among the clients tried it alone publishes nothing when an upload fails half way and goes on by itself
where a body is cut; s3fs publishes the part, s3torchconnector hangs on a stall. It reads the stores' own environment
variables; where boto3 is installed, AWS configuration files and profiles too.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PART_BYTES = 16 << 20  # larger files are uploaded in parts of this size
READ_BYTES = 1 << 19  # larger pieces cost more processor time: their memory is new each time
_STATUS, _CODE = re.compile(r"status code: (\d{3}[ \w]*)"), re.compile(r"<Code>(\w+)</Code>")
# of a busy store, or of one whose answer was lost; 400: of a body that was cut
_PASSING = (400, 408, 409, 412, 425, 429)
_QUERY = re.compile(r"\?\S*")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a client waits, and how often it tries."""

    attempts: int = 9
    first_pause: float = 0.5  # seconds before the second attempt; twice as long before each further one,
    longest_pause: float = 30.0  # up to this
    connect_seconds: float = 10.0
    stall_seconds: float = 30.0  # an answer may say nothing for so long
    upload_seconds: float = 600.0  # an upload, or a part of one, may take so long

    def pauses(self) -> Iterator[float]:
        """Seconds to wait after each failed attempt but the last."""
        for number in range(self.attempts - 1):
            yield min(self.longest_pause, self.first_pause * 2**number)


@dataclass(frozen=True)
class Stat:
    """What a store says of an object."""

    size: int
    tag: str | None = None  # ETag or the like: changes with the content
    changed_ns: int | None = None  # since 1970, in whole seconds; None when the store does not say


class Client(Protocol):
    """One bucket, repository or host. A missing object raises FileNotFoundError; other failures, one of `errors`."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the library raises."""

    def stat(self, key: str) -> Stat:
        """Size and tag of an object."""

    def read(self, key: str) -> tuple[int, Iterable[Any]]:
        """Size of an object and its bytes, piece by piece."""

    def put(self, key: str, content: Path | bytes) -> None:
        """Put an object in place, whole or not at all."""

    def create(self, key: str, content: bytes) -> bool:
        """The same, unless there is one; whether it was put."""

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        """Keys below a prefix that ends in / or is empty, in no order."""

    def delete(self, key: str) -> None:
        """Delete an object."""

    def abort_uploads(self, prefix: str) -> int:
        """Drop unfinished uploads below a prefix; how many there were."""


def reason(error: BaseException) -> str:
    """Why a request failed, in a few words; nothing that was sent or signed, as a store may return that in its answer."""
    text = str(error).partition("\n")[0]
    status, code = _STATUS.search(text), _CODE.search(str(error))
    if status:
        return f"{status[1].strip()}{f' ({code[1]})' if code else ''}"
    return _QUERY.sub("", text.rpartition(" - ")[2])[:200] or type(error).__name__


def is_final(error: BaseException) -> bool:
    """Whether a web server or store gave an answer that another attempt would get again, such as 405 or 501."""
    status = _STATUS.search(str(error))
    number = int(status[1][:3]) if status else getattr(getattr(error, "response", None), "status_code", 0)
    named = type(error).__name__ in ("NotSupportedError", "NotImplementedError", "InvalidPathError")
    return named or number in (501, 505) or (400 <= number < 500 and number not in _PASSING)


def is_refused(error: BaseException) -> bool:
    """Whether the store refused the credentials, which no second attempt changes."""
    status, code = _STATUS.search(str(error)), _CODE.search(str(error))
    if code is not None and "Token" in code[1]:  # expired or invalid ones, which S3 answers with status 400
        return True
    named = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError", "GatedRepoError")
    return named or (status is not None and status[1][:3] in ("401", "403"))
