"""Bytes on their way from and to a store: written to a file, counted and compared."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import xxhash

from tokentar.shard_writer.storage.client import PART_BYTES


class WrongBytes(Exception):
    """What was read or written is not what it should be; another attempt may mend it."""


def pour(pieces: Iterator[Any], file: IO[bytes] | None = None) -> tuple[int, str]:
    """Size and XXH3-64 of some pieces of bytes, which are written to `file` on the way."""
    digest, size = xxhash.xxh3_64(), 0
    for piece in pieces:
        view = memoryview(piece)
        digest.update(view)
        size += view.nbytes
        if file is not None:
            file.write(view)
    if file is not None:
        file.truncate()
        file.flush()
    return size, digest.hexdigest()


def s3_tag(path: Path) -> str:
    """The ETag that S3 gives a file that `upload` has put: its MD5, or that of the MD5s of its parts."""
    parts = []
    with open(path, "rb") as file:
        while part := file.read(PART_BYTES):
            parts.append(hashlib.md5(part, usedforsecurity=False))
    if len(parts) < 2:
        return (parts[0] if parts else hashlib.md5(usedforsecurity=False)).hexdigest()
    return f"{hashlib.md5(b''.join(part.digest() for part in parts), usedforsecurity=False).hexdigest()}-{len(parts)}"
