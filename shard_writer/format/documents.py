"""From sequences of a set to the documents behind them, and back, by the provenance beside each shard (G12)."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokentar.shard_writer.errors import SetError
from tokentar.shard_writer.format import provenance
from tokentar.shard_writer.format.manifest import Manifest, ShardEntry

_THREADS = 4  # reading and unpacking release the interpreter's lock
Document = tuple[str, int]  # source and place: see provenance.py


@dataclass(frozen=True)
class Piece:
    """A document, or a part of one, in a sequence: `length` tokens from token `start` on, EOS counted."""

    start: int
    length: int
    document: int  # number of the document in the input
    source: str  # file or data set
    place: int  # line, row or 0: see provenance.py

    @property
    def name(self) -> str:
        """SOURCE:PLACE, as --document takes it."""
        return f"{self.source}:{self.place}"


def pieces(manifest: Manifest, numbers: Collection[int]) -> dict[int, list[Piece]]:
    """The documents behind sequences of a set, in the order of their tokens, by the number of the sequence.

    Raises SetError for a shard without provenance.
    """
    firsts = manifest.first_sequences
    by_shard: dict[int, list[int]] = defaultdict(list)
    for number in sorted(numbers):
        by_shard[int(np.searchsorted(firsts, number, "right")) - 1].append(number)

    def of_shard(index: int) -> dict[int, list[Piece]]:
        first = int(firsts[index])
        rows = pa.array([number - first for number in by_shard[index]], pa.int64())
        table = _table(manifest, manifest.shards[index])
        found: dict[int, list[Piece]] = {number: [] for number in by_shard[index]}
        for each in table.filter(pc.is_in(table["row"], rows)).to_pylist():
            row = each.pop("row")
            found[first + row].append(Piece(**each))
        return found

    with ThreadPoolExecutor(_THREADS) as pool:
        return {number: found for part in pool.map(of_shard, by_shard) for number, found in part.items()}


def sequences(manifest: Manifest, documents: Iterable[Document]) -> dict[Document, list[int]]:
    """The sequences that hold tokens of documents, ascending, by document. Reads the provenance of all shards.

    Raises SetError for a shard without provenance.
    """
    wanted = sorted(set(documents))
    sources = pa.array(sorted({source for source, _ in wanted}))
    places = pa.array(sorted({place for _, place in wanted}), pa.int64())

    def in_shard(index: int) -> Iterator[tuple[Document, int]]:
        table = _table(manifest, manifest.shards[index])
        is_there = pc.and_(pc.is_in(table["source"].cast(pa.string()), sources), pc.is_in(table["place"], places))
        first = int(manifest.first_sequences[index])
        for each in table.filter(is_there).select(["row", "source", "place"]).to_pylist():
            yield (each["source"], each["place"]), first + each["row"]

    found: dict[Document, list[int]] = {document: [] for document in wanted}
    with ThreadPoolExecutor(_THREADS) as pool:
        for document, number in (pair for part in pool.map(in_shard, range(len(manifest.shards))) for pair in part):
            if document in found and number not in found[document][-1:]:
                found[document].append(number)
    return found


def parse_document(name: str) -> Document:
    """SOURCE:PLACE as a source and a place; the name of a text file alone is place 0 of it."""
    source, colon, place = name.rpartition(":")
    return (source, int(place)) if colon and place.isdecimal() else (name, 0)


def _table(manifest: Manifest, entry: ShardEntry) -> Any:
    if entry.docs_bytes is None:
        raise SetError(
            f"{manifest.root}: {entry.file_name} has no provenance beside it, so nobody knows its documents; write the set with "
            "--provenance true"
        )
    name = f"{entry.shard}{provenance.SUFFIX}"
    try:
        if isinstance(manifest.root, Path):
            return pq.read_table(manifest.root / name, use_threads=False)
        return pq.read_table(pa.BufferReader((manifest.root / name).read_bytes()), use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise SetError(
            f"{manifest.root / name}: cannot be read: {error}; `tokentar verify --repair` writes it again"
        ) from None
