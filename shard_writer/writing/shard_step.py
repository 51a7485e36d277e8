"""Write a shard from the spool. Its bytes depend on the argument and on files that do not change, on nothing else (G2)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format import provenance
from tokentar.shard_writer.format.manifest import ShardEntry
from tokentar.shard_writer.format.shards import RowFormat, shard_slices
from tokentar.shard_writer.packing import layout, policies, ragged, random_order
from tokentar.shard_writer.packing.policies import Tiles
from tokentar.shard_writer.packing.token_ids import TokenIds
from tokentar.shard_writer.storage import files
from tokentar.shard_writer.writing.origins import Origins
from tokentar.shard_writer.writing.spool import Spans

_ROWS = 3  # purpose of random numbers, see tokenize_step.py
PieceT = TypeVar("PieceT")


@dataclass(frozen=True)
class Stretch:
    """A stretch of the stream of documents; the first and the last may be cut."""

    ids: TokenIds  # (tokens,)
    lengths: NDArray[np.int64]  # (documents,): tokens of each that are here
    tasks: NDArray[np.int64]  # (documents,)
    documents: NDArray[Any]  # (documents,) DOCUMENT


@dataclass(frozen=True)
class Window:
    """The documents of `spans`, one span after the other or, when `merge` is set, merged by their key."""

    spans: Spans
    merge: bool
    dtype: np.dtype[Any]

    def read(self, start: int = 0, stop: int | None = None) -> Stretch:
        """Tokens `start` … `stop - 1`, or all; of other documents only what they are ordered by is read."""
        documents = self.spans.documents()
        order = np.argsort(documents["key"], kind="stable") if self.merge else np.arange(len(documents))
        ends = np.cumsum(documents["length"][order])
        stop = int(ends[-1]) if stop is None else stop
        within = slice(np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1)
        taken, ends = order[within], ends[within]
        begins = ends - documents["length"][taken]
        kept = np.sort(taken)  # neighbours in each span, as it is in the order of keys itself
        ids = self._ids(documents["length"], kept)
        if self.merge:
            ids = ragged.take(ids, documents["length"][kept], np.searchsorted(kept, taken))
        begin = int(begins.min(initial=start))
        tasks = np.repeat(self.spans.where["task"], self.spans.where["documents"])[taken]
        lengths = np.minimum(ends, stop) - np.maximum(begins, start)
        return Stretch(ids[start - begin : stop - begin], lengths, tasks, documents[taken])

    def _ids(self, lengths: NDArray[np.int64], kept: NDArray[np.int64]) -> TokenIds:
        """The ids of the documents `kept`. lengths: (documents,), of all; kept: (kept documents,), ascending."""
        where = self.spans.where
        span = np.repeat(np.arange(len(where)), where["documents"])
        place = np.cumsum(lengths) - lengths - (np.cumsum(where["tokens"]) - where["tokens"])[span]
        used, first = np.unique(span[kept], return_index=True)
        return self.spans.of(used).ids(self.dtype, place[kept[first]], np.add.reduceat(lengths[kept], first))


@dataclass(frozen=True)
class WindowPiece:
    """Tokens `start` … `stop - 1` of a window or, where windows are packed one by one, its rows of these numbers."""

    window: Window
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class ShardTask(Generic[PieceT]):
    """One shard to be made from pieces of what holds its tokens: windows of documents, or shards of another set."""

    name: str
    split: str
    first_sequence: int
    num_sequences: int
    pieces: tuple[PieceT, ...]


def shard_tasks(
    split: str,
    sequences: int,
    num_shards: int,
    pieces: Callable[[int, int], Iterable[PieceT]],
    *,
    first_shard: int = 0,
    first_sequence: int = 0,
) -> Iterator[ShardTask[PieceT]]:
    """Shards equal up to one sequence, each made when it is asked for. Raises SettingError when some would be empty.

    pieces(start, stop) gives what sequences `start` … `stop - 1` of the split are made from.
    """
    if num_shards > sequences:
        raise SettingError(
            f"num_shards: {num_shards} shards for {sequences} sequences of {split!r}; ask for {sequences} at most"
        )
    bounds = layout.even_split(sequences, num_shards).tolist()
    return (
        ShardTask(
            name=f"{split}-{first_shard + index:06d}",
            split=split,
            first_sequence=first_sequence + start,
            num_sequences=stop - start,
            pieces=tuple(pieces(start, stop)),
        )
        for index, (start, stop) in enumerate(pairwise(bounds))
    )


@dataclass(frozen=True)
class Rows:
    """The rows of a shard and where they come from."""

    ids: TokenIds  # (rows, seq_length)
    tiles: Tiles
    tasks: NDArray[np.int64]  # of the documents that `tiles` points at
    documents: NDArray[Any]


@dataclass(frozen=True)
class Built:
    """What a shard is written from: rows `order` of ids (rows, seq_length), and where they come from."""

    ids: TokenIds
    order: NDArray[np.int64]
    origins: pa.Table | None


@dataclass(frozen=True, kw_only=True)
class ReduceStep:
    """shard task → a whole shard under its name in `folder`, its provenance beside it."""

    folder: Path
    origins: Path | None  # where Origins are; None: no provenance
    row_format: RowFormat
    packing: str
    fill: int  # id behind the documents of a row that they do not fill
    shuffle: bool
    seed: int

    def __call__(self, task: ShardTask[WindowPiece]) -> ShardEntry:
        """Build one shard, or only read it when an earlier run did; returns its line of the manifest."""

        def build() -> Built:
            rows = self._wrapped(task) if self.packing == "wrap" else self._fitted(task)
            order = np.arange(len(rows.ids))
            if self.shuffle:
                order = random_order.permutation(len(rows.ids), self.seed, _ROWS, task.first_sequence)
            if self.origins is None:
                return Built(rows.ids, order, None)
            tiles = rows.tiles.reordered(order)
            return Built(rows.ids, order, Origins.load(self.origins).table(tiles, rows.tasks, rows.documents))

        return make_shard(self.folder, task, self.row_format, build)

    def _wrapped(self, task: ShardTask[WindowPiece]) -> Rows:
        length = self.row_format.seq_length
        (piece,) = task.pieces
        whole = piece.window.read(piece.start, piece.stop)
        return Rows(whole.ids.reshape(-1, length), policies.wrap(whole.lengths, length), whole.tasks, whole.documents)

    def _fitted(self, task: ShardTask[WindowPiece]) -> Rows:
        parts = [self._fitted_piece(piece) for piece in task.pieces]
        return Rows(
            np.concatenate([part.ids for part in parts]),
            Tiles.join(
                [part.tiles for part in parts], [len(part.ids) for part in parts], [len(part.tasks) for part in parts]
            ),
            np.concatenate([part.tasks for part in parts]),
            np.concatenate([part.documents for part in parts]),
        )

    def _fitted_piece(self, piece: WindowPiece) -> Rows:
        """Some rows of a window, all of which is packed for them."""
        whole = piece.window.read()
        length = self.row_format.seq_length
        tiles = policies.best_fit(whole.lengths, length).between(piece.start, piece.stop)
        ids = policies.lay_out(whole.ids, tiles, piece.stop - piece.start, length, self.fill)
        return Rows(ids, tiles, whole.tasks, whole.documents)


@dataclass(frozen=True)
class CountRows:
    """(number of a window, window) → (the number, rows that the window makes by itself)."""

    seq_length: int

    def __call__(self, window: tuple[int, Window]) -> tuple[int, int]:
        """Pack one window."""
        return window[0], policies.num_rows(window[1].spans.documents()["length"], self.seq_length)


def make_shard(folder: Path, shard: ShardTask[Any], row_format: RowFormat, build: Callable[[], Built]) -> ShardEntry:
    """Write what `build` gives as a shard and its provenance, unless an earlier run did; returns its line of the manifest.

    The line is left beside them, last of all: where it is and tells the truth they are whole (G3), also after a loss of power.
    """
    line = folder / f"{shard.name}.json"
    if (entry := _made(line)) is not None:
        return entry
    built = build()
    docs_size, docs_digest = None, None
    if built.origins is not None:
        docs = provenance.path_of(folder, shard.name)
        docs_size, docs_digest = files.put(docs, provenance.to_parquet(built.origins), durable=False)
    slices = shard_slices(built.ids, built.order, shard.first_sequence, row_format)
    size, digest = files.put(folder / f"{shard.name}.tar", slices, durable=False)
    entry = ShardEntry(
        shard=shard.name,
        split=shard.split,
        num_sequences=shard.num_sequences,
        bytes=size,
        xxh3=digest,
        docs_bytes=docs_size,
        docs_xxh3=docs_digest,
    )
    files.put(line, msgspec.json.encode(entry), durable=False)
    return entry


def _made(line: Path) -> ShardEntry | None:
    """What an earlier run left beside a shard, if the shard is there as it says."""
    try:
        entry = msgspec.json.decode(line.read_bytes(), type=ShardEntry)
        whole = all(files.file_checksum(line.parent / name) == seen for name, seen in entry.files.items())
    except (FileNotFoundError, ValueError):
        return None
    return entry if whole else None
