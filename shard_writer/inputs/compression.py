"""The bytes of input files: opened, unpacked, and recognised when they are something else than their name says."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import IO, Any

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs import documents
from tokentar.shard_writer.inputs.documents import Bad

BOM = b"\xef\xbb\xbf"
COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_PIECE_BYTES = 16 << 10  # unpacked at a time
_HEAD_BYTES = 64 << 10
_SIGNATURES = {
    b"\x1f\x8b": "gzip data; name it *.gz",
    b"\x28\xb5\x2f\xfd": "zstd data; name it *.zst",
    b"BZh": "bzip2 data; name it *.bz2",
    b"\xfd7zXZ": "xz data; pack it with gzip or zstd instead",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"PAR1": "Parquet; name it *.parquet",
    b"\xff\xfe": "UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
}


def opened(path: str) -> IO[bytes]:
    """A file, open for reading. Raises InputError when it cannot be read."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; restore it, or leave it out of --input") from None


def compression(path: str) -> str | None:
    """The compression that a file's suffix names, in pyarrow's terms, or None."""
    return COMPRESSION.get(os.path.splitext(path)[1].lower())


def unpacked(path: str) -> Any:
    """A file as a readable stream of what is packed in it, through all frames or members."""
    import pyarrow as pa

    opened(path).close()
    return pa.input_stream(path, compression=compression(path) if os.path.getsize(path) else None)


def pieces(path: str) -> Iterator[bytes]:
    """What is packed in a file, piece by piece. Raises InputError when it is cut or damaged, behind all that lies before that."""
    done = 0
    try:
        for piece in _unpack(path, 0, _PIECE_BYTES):
            done += len(piece)
            yield piece
    except OSError as error:
        with suppress(OSError):
            yield from _unpack(path, done, 1)
        raise InputError(f"{path}: {damage(error)}") from None


def _unpack(path: str, skip: int, size: int) -> Iterator[bytes]:
    """What lies behind the first `skip` bytes, in pieces of `size` bytes."""
    with unpacked(path) as stream:
        while skip:
            skip -= len(stream.read(min(skip, _PIECE_BYTES)))
        while piece := stream.read(size):
            yield piece


def damage(error: Exception) -> str:
    """What is wrong with a compressed file, and the way out."""
    large = "memory" in str(error)  # a zstd window beyond 128 MiB
    return f"{error}; {'pack it with a smaller window' if large else 'the file is cut or damaged: fetch it again'}"


def unpacked_lines(path: str, bad: Bad) -> Iterator[bytes]:
    """Blocks of whole lines, about BATCH_BYTES each. What lies behind a damage is for `bad`; what lies before it is kept."""
    held: list[bytes] = []
    size = 0
    try:
        for piece in pieces(path):
            held.append(piece)
            size += len(piece)
            if size >= documents.BATCH_BYTES and b"\n" in piece:
                block, rest = _whole_lines(held)
                yield block
                held, size = [rest], len(rest)
        yield b"".join(held)
    except InputError as error:
        bad.report("unreadable file", partial(documents.line_of, path, 0), 0, str(error).removeprefix(f"{path}: "))
        yield _whole_lines(held)[0]


def _whole_lines(held: list[bytes]) -> tuple[bytes, bytes]:
    """The whole lines of what is held, and the rest."""
    content = b"".join(held)
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def head(path: str, wanted: str) -> bytes:
    """The first 64 KiB of what a file holds, without BOM; less when it is damaged, which is reported when all of it is read.

    Raises InputError when these bytes are those of another kind of file than `wanted`: leaving out its lines one by one
    would lose it whole.
    """
    found = b""
    try:
        for piece in pieces(path):
            found += piece
            if len(found) >= _HEAD_BYTES:
                break
    except InputError:
        opened(path).close()
    if kind := signature(found):
        raise InputError(f"{path}: {wanted} wanted, this is {kind}")
    return found.removeprefix(BOM)


def signature(content: bytes) -> str | None:
    """What content that is no UTF-8 text seems to be by its first bytes, with the way out, or None."""
    return next((kind for start, kind in _SIGNATURES.items() if content.startswith(start)), None)
