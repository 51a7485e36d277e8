"""The shard format: a plain ustar file whose members are equal .npy arrays, so that row i starts at i × stride.

    0      512       640                      stride
    | tar header | npy header | token ids | 0 |  next member … | end blocks

One shard is one vectorised image: no loop over rows when writing, no parsing when reading. Stock tar, numpy, webdataset
and `datasets` read the same file.
"""

import mmap
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.packing.token_ids import TokenIds

BLOCK = 512
_SLICE_BYTES = 1 << 20
RECORD = 20 * BLOCK  # tar files end on a multiple of this
KEY_DIGITS = 12
_CHECKSUM = slice(148, 154)  # where a header has its checksum, in octal digits
EXTENSION = ".input_ids.npy"


def token_dtype(vocab_length: int) -> np.dtype[Any]:
    """uint16 when every id below `vocab_length` fits, else uint32; little-endian."""
    return np.dtype("<u2") if vocab_length <= 1 << 16 else np.dtype("<u4")


def member_name(sequence: int) -> str:
    """The tar member's name of sequence number `sequence`."""
    return f"{sequence:0{KEY_DIGITS}d}{EXTENSION}"


@dataclass(frozen=True)
class RowFormat:
    """Where things lie in a row: `seq_length` tokens of `dtype`."""

    seq_length: int
    dtype: np.dtype[Any]

    @cached_property
    def npy_header(self) -> bytes:
        """The .npy header (format 1.0) of one row, padded so that the data start at a multiple of 64."""
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': ({self.seq_length},), }}"
        length = -(-(10 + len(text) + 1) // 64) * 64
        return b"\x93NUMPY\x01\x00" + (length - 10).to_bytes(2, "little") + text.ljust(length - 11).encode() + b"\n"

    @property
    def payload(self) -> int:
        """Bytes of token ids in a row."""
        return self.seq_length * self.dtype.itemsize

    @property
    def data_offset(self) -> int:
        """Bytes from the start of a row to its first token id."""
        return BLOCK + len(self.npy_header)

    @property
    def stride(self) -> int:
        """Bytes from one row to the next."""
        return -(-(self.data_offset + self.payload) // BLOCK) * BLOCK

    def file_size(self, rows: int) -> int:
        """Bytes of a whole shard of `rows` rows."""
        return -(-(rows * self.stride + 2 * BLOCK) // RECORD) * RECORD

    @cached_property
    def first_header(self) -> bytes:
        """The 512-byte tar header of sequence number 0."""
        info = tarfile.TarInfo(member_name(0))
        info.size = self.data_offset - BLOCK + self.payload
        return info.tobuf(tarfile.USTAR_FORMAT)

    def header(self, sequence: int) -> bytes:
        """That of sequence number `sequence`: the first one with another number and checksum, the sum of its bytes, put in."""
        digits, first = f"{sequence:0{KEY_DIGITS}d}", self.first_header
        checksum = int(first[_CHECKSUM], 8) + sum(map(int, digits))
        return b"%b%b%06o%b" % (digits.encode(), first[KEY_DIGITS : _CHECKSUM.start], checksum, first[_CHECKSUM.stop :])


def shard_image(rows: TokenIds, first_sequence: int, row_format: RowFormat) -> NDArray[np.uint8]:
    """The bytes of a shard whose members are numbered from `first_sequence`. rows: (n, seq_length); returns (file size,) uint8."""
    return np.concatenate(list(shard_slices(rows, np.arange(len(rows)), first_sequence, row_format)))


def shard_slices(
    rows: TokenIds, order: NDArray[np.int64], first_sequence: int, row_format: RowFormat
) -> Iterator[NDArray[np.uint8]]:
    """The bytes of the shard of rows order[0], order[1], … in slices of about a MiB, so that no second copy of it is held.

    rows: (n, seq_length); order: (members,) int64; each slice (bytes,) uint8.
    """
    step = max(1, _SLICE_BYTES // row_format.stride)
    for start in range(0, len(order), step):
        chosen = order[start : start + step]
        table = np.zeros((len(chosen), row_format.stride), np.uint8)
        table[:, :BLOCK] = _headers(len(chosen), first_sequence + start, row_format)
        table[:, BLOCK : row_format.data_offset] = np.frombuffer(row_format.npy_header, np.uint8)
        payload = rows[chosen].astype(row_format.dtype, copy=False).view(np.uint8)
        table[:, row_format.data_offset : row_format.data_offset + row_format.payload] = payload
        yield table.ravel()
    yield np.zeros(row_format.file_size(len(order)) - len(order) * row_format.stride, np.uint8)


def _headers(count: int, first_sequence: int, row_format: RowFormat) -> NDArray[np.uint8]:
    """The tar headers of `count` members: one template, with each row's number and checksum put in. (count, 512) uint8."""
    template = np.frombuffer(row_format.first_header, np.uint8)
    headers = np.repeat(template[None], count, axis=0)
    sequence = np.arange(first_sequence, first_sequence + count, dtype=np.int64)[:, None]
    digits = sequence // 10 ** np.arange(KEY_DIGITS - 1, -1, -1, dtype=np.int64) % 10
    headers[:, :KEY_DIGITS] += digits.astype(np.uint8)
    checksum = int(template[_CHECKSUM].tobytes(), 8) + digits.sum(axis=1)[:, None]
    headers[:, _CHECKSUM] = checksum // 8 ** np.arange(5, -1, -1) % 8 + ord("0")
    return headers


class ShardFile:
    """A local shard, mapped into memory; `rows[i]` is a view of row i's token ids, shape (seq_length,), without a copy.

    Raises SetError when the file is not the shard that `row_format`, `num_rows` and `first_sequence` describe.
    """

    def __init__(self, path: str | os.PathLike[str], row_format: RowFormat, num_rows: int, first_sequence: int) -> None:
        self.path, self.first_sequence = path, first_sequence
        try:
            with open(path, "rb", buffering=0) as file:
                self._check_size(os.fstat(file.fileno()).st_size, row_format.file_size(num_rows))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise SetError(f"{path}: no such shard; `tokentar verify` names all that is missing") from None
        for row in (0, num_rows - 1):
            self._check_header(row, first_sequence + row, row_format)
        self.rows: TokenIds = np.ndarray(
            (num_rows, row_format.seq_length),
            row_format.dtype,
            self._map,
            offset=row_format.data_offset,
            strides=(row_format.stride, row_format.dtype.itemsize),
        )

    def _check_size(self, seen: int, needed: int) -> None:
        if seen != needed:
            raise SetError(
                f"{self.path}: {seen} bytes where the manifest asks for {needed}; the file is cut or not of this set"
            )

    def _check_header(self, row: int, sequence: int, row_format: RowFormat) -> None:
        start = row * row_format.stride
        seen = self._map[start : start + row_format.data_offset]
        if seen != row_format.header(sequence) + row_format.npy_header:
            raise SetError(
                f"{self.path}, row {row}, byte {start}: not the header of {member_name(sequence)} with {row_format.seq_length} "
                f"ids of {row_format.dtype.name}; the file is damaged or not of this set (`tokentar verify` tells)"
            )
