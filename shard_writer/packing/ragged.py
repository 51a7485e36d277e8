"""Documents end to end in one array of ids: changed and chosen whole by pyarrow, so that the cost is that of copying memory."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokentar.shard_writer.packing.token_ids import TokenIds


def take(ids: TokenIds, lengths: NDArray[np.int64], order: NDArray[np.int64]) -> TokenIds:
    """The documents `order`, one behind the other. ids: (tokens,); lengths: (documents,); order: (chosen documents,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return _ids(_column(ids, offsets).take(numbers(order)), ids.dtype)


def surround(ids: TokenIds, offsets: NDArray[np.int64], prefix: tuple[int, ...], suffix: tuple[int, ...]) -> TokenIds:
    """`prefix` before and `suffix` behind each document: (tokens + documents × both,).

    ids: (tokens,); offsets: (documents + 1,), document i is ids[offsets[i]:offsets[i+1]].
    """
    dtype: np.dtype[Any] = ids.dtype
    around: TokenIds = np.array([*prefix, *suffix], dtype)
    ends = np.array([0, len(prefix), len(around), len(around)])
    before, behind, nothing_between = _column(around, ends)
    return _ids(pc.binary_join_element_wise(before, _column(ids, offsets), behind, nothing_between), dtype)


def numbers(values: NDArray[np.int64]) -> pa.Int64Array:
    """The same numbers in the same memory; pa.array would do, but imports pandas to see whether it is given that."""
    return pa.Int64Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _column(ids: TokenIds, offsets: NDArray[np.int64]) -> pa.LargeBinaryArray:
    places = pa.py_buffer(offsets * ids.itemsize)
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, [None, places, pa.py_buffer(ids)])


def _ids(column: pa.LargeBinaryArray, dtype: np.dtype[Any]) -> TokenIds:
    """The values of a column that was just computed, end to end."""
    _, offsets, values = column.buffers()
    size = int(np.frombuffer(offsets, np.int64)[len(column)])
    ids: TokenIds = np.frombuffer(values or b"", dtype, count=size // dtype.itemsize)
    return ids
