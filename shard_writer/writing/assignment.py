"""Which shard gets which tokens: computed from the counts per part and cell once all tasks are tokenized. No files.

The stream of a split is made of windows: cells of hashed documents, each over all parts (shuffle), or parts (input
order). `wrap` cuts the whole stream; `best_fit` packs each window by itself, so that memory stays bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.format.dataset_info import Totals
from tokentar.shard_writer.format.shards import RowFormat
from tokentar.shard_writer.packing import layout
from tokentar.shard_writer.writing import shard_step
from tokentar.shard_writer.writing.shard_step import ShardTask, Window, WindowPiece
from tokentar.shard_writer.writing.spool import SPAN, Spans


@dataclass(frozen=True)
class Split:
    """One split of the set: its name and its cells, as a range of all cells."""

    name: str
    cells: range


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the shards of a set are cut from: the spool's folder, its parts in input order, and what `Part.ends` says of each.

    parts: (parts, 2) int64, task and number of each.
    ends: (parts, cells, 2) uint32, which is what the memory of the main process grows by: 33 kB a part at most.
    """

    folder: Path
    parts: NDArray[np.int64]
    ends: NDArray[np.uint32]
    row_format: RowFormat
    shuffle: bool

    def windows(self, split: Split) -> "Windows":
        """The windows of a split, in the order of its stream."""
        return Windows(self, split)

    def counts(self, cell: int) -> NDArray[np.int64]:
        """Documents and tokens that each part has of a cell: (parts, 2) int64."""
        ends = self.ends[:, cell].astype(np.int64)
        return ends - self.ends[:, cell - 1] if cell else ends

    def spans(self, parts: slice, cells: range) -> Spans:
        """The documents of some cells in some parts, of those parts that have any."""
        last = self.ends[parts, cells.stop - 1].astype(np.int64)
        before = self.ends[parts, cells.start - 1].astype(np.int64) if cells.start else np.zeros_like(last)
        found = np.empty(len(last), SPAN)
        found["task"], found["number"] = self.parts[parts].T
        found["all_documents"] = self.ends[parts, -1, 0]
        found["first_document"], found["first_token"] = before.T
        found["documents"], found["tokens"] = (last - before).T
        return Spans(self.folder, self.ends.shape[1], found[found["documents"] > 0])

    def totals(self, split: Split, stream: "Stream") -> Totals:
        """What goes into a split and what comes out. Raises InputError when that is no sequence at all."""
        documents, tokens = sum(self.counts(cell).sum(axis=0) for cell in split.cells).tolist()
        length, sequences = self.row_format.seq_length, stream.sequences
        if not sequences:
            raise InputError(
                f"0 sequences: {tokens} tokens < {length} (seq_length) in {documents} documents of split {split.name!r}; "
                "give more text, a smaller --seq_length or, where it is held out, a larger --validation_fraction"
            )
        left = tokens - sequences * length
        return Totals(documents=documents, tokens=tokens, sequences=sequences, tail=max(0, left), padding=max(0, -left))


@dataclass(frozen=True)
class Windows:
    """The windows of a split, made when they are asked for: all of them would be as many spans as parts × cells."""

    layout: Layout
    split: Split

    def __len__(self) -> int:
        return len(self.split.cells) if self.layout.shuffle else len(self.layout.parts)

    def __iter__(self) -> Iterator[Window]:
        return (self.between(index, index + 1) for index in range(len(self)))

    def between(self, start: int, stop: int) -> Window:
        """Windows `start` … `stop - 1` as one."""
        shape, cells = self.layout, self.split.cells
        spans = shape.spans(slice(None), cells[start:stop]) if shape.shuffle else shape.spans(slice(start, stop), cells)
        return Window(spans, shape.shuffle, shape.row_format.dtype)

    def tokens(self) -> NDArray[np.int64]:
        """Tokens of each window: (windows,) int64."""
        shape, cells = self.layout, self.split.cells
        if not shape.shuffle:
            return shape.counts(cells.start)[:, 1]
        return np.array([shape.counts(cell)[:, 1].sum() for cell in cells], np.int64)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The windows of a split and how much each holds, in units of which a sequence has `per_sequence`: tokens, or rows."""

    windows: Windows
    sizes: NDArray[np.int64]  # (windows,)
    per_sequence: int
    apart: bool  # windows are packed one by one

    @property
    def sequences(self) -> int:
        """Whole sequences in all."""
        return int(self.sizes.sum()) // self.per_sequence

    def shard_tasks(self, split: str, num_shards: int, **first: int) -> Iterator[ShardTask[WindowPiece]]:
        """The shards of the split, see shard_step.shard_tasks."""
        return shard_step.shard_tasks(split, self.sequences, num_shards, self._pieces, **first)

    def _pieces(self, first_sequence: int, stop_sequence: int) -> tuple[WindowPiece, ...]:
        """What some sequences are made from, window by window or as one."""
        start, stop = first_sequence * self.per_sequence, stop_sequence * self.per_sequence
        pieces = list(layout.pieces(self.sizes, start, stop))
        if self.apart:
            return tuple(WindowPiece(self.windows.between(p.run, p.run + 1), p.start, p.stop) for p in pieces)
        first = pieces[0]
        window = self.windows.between(first.run, pieces[-1].run + 1)
        return (WindowPiece(window, first.start, first.start + stop - start),)
