"""Where each token comes from (G12): NAME-000000.docs.parquet beside each shard, one row for each piece of a document.

row       number of the row in the shard
start     place of the piece's first token in the row
length    tokens of the piece, EOS counted; the pieces of a row lie end to end and fill it but for padding
document  number of the document in the input, over all inputs and, in a set that was appended to, over all writings
source    name of the file or data set
place     line of a JSONL file, counted from 1; row of a Parquet file, table or data set, counted from 0; 0 for a text file
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokentar.shard_writer.packing.ragged import numbers

SUFFIX = ".docs.parquet"
_COUNTS = ("row", "start", "length", "document", "place")


def to_parquet(table: pa.Table) -> bytes:
    """A table of provenance as a Parquet file."""
    sink = pa.BufferOutputStream()
    encodings = dict.fromkeys(_COUNTS, "DELTA_BINARY_PACKED")
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=["source"], column_encoding=encodings, write_statistics=False
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


def path_of(folder: Path, shard: str) -> Path:
    """Where the provenance of a shard lies."""
    return folder / f"{shard}{SUFFIX}"


def rows_between(table: pa.Table, start: int, stop: int, first: int) -> pa.Table:
    """What a table says of rows `start` … `stop - 1` of its shard, which become rows `first`, `first` + 1 and so on."""
    begin, end = np.searchsorted(table["row"].to_numpy(), [start, stop]).tolist()
    part = table.slice(begin, end - begin)
    return part.set_column(0, "row", numbers(part["row"].to_numpy() - start + first))


def join(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after the other; each name of a source is kept once, in the order of its first piece."""
    whole = pa.concat_tables(tables)
    names = pa.concat_arrays(whole["source"].cast(pa.string()).chunks).dictionary_encode()
    return whole.set_column(whole.schema.get_field_index("source"), "source", names)
