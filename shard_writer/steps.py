"""map and reduce: what the workers do. Each is a function of its argument and of files that nobody changes (G2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_writer import layout, seeds, spool, storage
from shard_writer.documents import Bad
from shard_writer.manifest import ShardEntry
from shard_writer.shards import RowFormat, TokenIds, shard_image
from shard_writer.sources import Task
from shard_writer.spool import Part, Run, TaskRecord
from shard_writer.tokens import DocumentEncoder, TokenizerSpec

_ORDER, _SPLIT, _ROWS = 1, 2, 3  # purposes of random numbers, so that none is used twice
_encoder: DocumentEncoder  # of this process


def prepare(spec: TokenizerSpec) -> None:
    """Load the tokenizer, once a process."""
    global _encoder
    _encoder = DocumentEncoder(spec)


@dataclass(frozen=True, kw_only=True)
class MapStep:
    """task → spool parts. Documents get a key and a cell from (seed, task, place in the task) alone."""

    folder: Path
    text_column: str
    bad_documents: str
    shuffle: bool
    seed: int
    validation_fraction: float
    train_cells: int
    validation_cells: int

    @property
    def num_cells(self) -> int:
        """Cells of all splits: first those of training, then those of validation."""
        return self.train_cells + self.validation_cells

    def __call__(self, task: Task) -> TaskRecord:
        """Tokenize one task into the spool and leave its record, which is returned."""
        bad = Bad(self.bad_documents)
        documents = tokens = 0
        parts: list[str] = []
        for batch in task.reader.read(self.text_column, bad):
            texts = batch.texts
            if not texts:
                continue
            keys, cells = self._place(task.index, documents, len(texts))
            order = np.lexsort((keys, cells))
            ids, lengths = _encoder.encode([texts[i] for i in order.tolist()])
            part = Part(self.folder, task.index, len(parts), self.num_cells)
            parts.append(part.write(ids, keys[order], lengths, cells[order]))
            documents += len(texts)
            tokens += len(ids)
        record = TaskRecord(
            index=task.index,
            size=task.reader.size,
            documents=documents,
            tokens=tokens,
            skipped=dict(sorted(bad.skipped.items())),
            parts=parts,
        )
        spool.write_record(self.folder, record)
        return record

    def _place(self, task: int, first: int, count: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Key and cell of documents `first` … `first + count - 1` of a task; without shuffle the key is the place itself."""
        if self.shuffle:
            keys = seeds.spread(seeds.mix(self.seed, _ORDER, task), count, first)
        else:
            keys = np.arange(first, first + count, dtype=np.uint64)
        cells = layout.cell_of(keys, self.train_cells)
        if self.validation_fraction:
            draw = seeds.spread(seeds.mix(self.seed, _SPLIT, task), count, first) >> np.uint64(11)
            held_out = draw < np.uint64(round(self.validation_fraction * 2**53))
            cells[held_out] = self.train_cells + layout.cell_of(keys[held_out], self.validation_cells)
        return keys, cells


@dataclass(frozen=True)
class RunPiece:
    """Tokens `start` … `stop - 1` of what `runs` hold one after the other, or, when `merge` is set, merged by document key."""

    runs: Sequence[Run]
    start: int
    stop: int
    merge: bool
    dtype: np.dtype[Any]

    def read(self) -> TokenIds:
        """The piece's ids: (stop - start,)."""
        held: TokenIds = np.empty(sum(run.tokens for run in self.runs), self.dtype)
        filled = 0
        documents = []
        for run in self.runs:
            documents.append(run.read(held[filled : filled + run.tokens]))
            filled += run.tokens
        if not self.merge:
            return held[self.start : self.stop]
        keys, lengths = np.concatenate(documents).T
        order = np.argsort(keys.view(np.uint64), kind="stable")
        return take_documents(held, lengths, order, self.start, self.stop)


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to be built: which rows, from which pieces of the stream."""

    name: str
    split: str
    first_sequence: int
    num_sequences: int
    pieces: tuple[RunPiece, ...]


@dataclass(frozen=True, kw_only=True)
class ReduceStep:
    """shard task → a whole shard under its name in `folder`."""

    folder: Path
    row_format: RowFormat
    shuffle: bool
    seed: int

    def __call__(self, task: ShardTask) -> ShardEntry:
        """Build one shard, or only read it when an earlier run did; returns its line of the manifest."""
        path = self.folder / f"{task.name}.tar"
        if path.exists():
            size, digest = storage.file_checksum(path)
        else:
            image = shard_image(self._rows(task), task.first_sequence, self.row_format)
            storage.put(path, image)
            size, digest = image.nbytes, storage.checksum(image)
        return ShardEntry(shard=task.name, split=task.split, num_sequences=task.num_sequences, bytes=size, xxh3=digest)

    def _rows(self, task: ShardTask) -> TokenIds:
        """(num_sequences, seq_length) ids in their order in the shard."""
        flat = np.concatenate([piece.read() for piece in task.pieces])
        rows = flat.reshape(task.num_sequences, self.row_format.seq_length)
        return rows[seeds.permutation(len(rows), self.seed, _ROWS, task.first_sequence)] if self.shuffle else rows


def take_documents(
    ids: TokenIds, lengths: NDArray[np.int64], order: NDArray[np.int64], start: int, stop: int
) -> TokenIds:
    """Tokens `start` … `stop - 1` of the documents of `ids` laid out anew in `order`.

    ids: (tokens,); lengths: (documents,) in the stored order; order: (documents,). pyarrow copies whole documents, so
    the cost is that of memory.
    """
    import pyarrow as pa

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    ends = np.cumsum(lengths[order])
    first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1
    column = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets * ids.itemsize), pa.py_buffer(ids)]
    )
    taken = column.take(pa.array(order[first:last]))
    flat: Any = np.frombuffer(taken.buffers()[2], ids.dtype)
    skip = start - int(ends[first] - lengths[order[first]])
    piece: TokenIds = flat[skip : skip + stop - start]
    return piece
