"""barrier: once all tasks are mapped, the counts per part and cell fix what every shard owns. No files.

A window is what stands together in the stream of a split: a cell of hashed documents over all parts (shuffle), or a
part (input order). `wrap` cuts the whole stream; `best_fit` packs each window by itself, so that memory stays bounded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_writer import layout
from shard_writer.errors import InputError, SettingError
from shard_writer.manifest import Totals
from shard_writer.reduce import ShardTask, Window, WindowPiece
from shard_writer.shards import RowFormat
from shard_writer.spool import Part, Run


@dataclass(frozen=True)
class Split:
    """One split of the set: its name and its cells, as a range of all cells."""

    name: str
    cells: range


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the shards of a set are cut from: the spool's parts in input order, and counts (parts, cells, documents and tokens)."""

    parts: Sequence[Part]
    counts: NDArray[np.int64]
    row_format: RowFormat
    shuffle: bool

    def windows(self, split: Split) -> list[Window]:
        """The windows of a split, in the order of its stream."""
        dtype = self.row_format.dtype
        if self.shuffle:
            return [
                Window([self._run(i, cell) for i in np.flatnonzero(self.counts[:, cell, 0]).tolist()], True, dtype)
                for cell in split.cells
            ]
        return [Window([self._run(i, split.cells.start)], False, dtype) for i in range(len(self.parts))]

    def _run(self, part: int, cell: int) -> Run:
        return self.parts[part].run(cell, self.counts[part])

    def totals(self, split: Split, stream: "Stream") -> Totals:
        """What goes into a split and what comes out. Raises InputError when that is no sequence at all."""
        documents, tokens = self.counts[:, split.cells.start : split.cells.stop].sum(axis=(0, 1)).tolist()
        length, sequences = self.row_format.seq_length, stream.sequences
        if not sequences:
            raise InputError(
                f"0 sequences: {tokens} tokens < {length} (seq_length) in {documents} documents of split {split.name!r}; "
                "give more text or a smaller --seq_length"
            )
        left = tokens - sequences * length
        return Totals(documents=documents, tokens=tokens, sequences=sequences, tail=max(0, left), padding=max(0, -left))


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The windows of a split and how much each holds, in units of which a sequence has `per_sequence`: tokens, or rows."""

    windows: Sequence[Window]
    sizes: NDArray[np.int64]  # (windows,)
    per_sequence: int

    @property
    def sequences(self) -> int:
        """Whole sequences in all."""
        return int(self.sizes.sum()) // self.per_sequence

    def shard_tasks(self, split: str, *, num_shards: int, first_shard: int, first_sequence: int) -> Iterator[ShardTask]:
        """Shards equal up to one sequence. Raises SettingError when some would be empty."""
        if num_shards > self.sequences:
            raise SettingError(
                f"num_shards: {num_shards} shards for {self.sequences} sequences of {split!r}; ask for {self.sequences} at most"
            )
        bounds = layout.even_split(self.sequences, num_shards).tolist()
        for index in range(num_shards):
            start, stop = bounds[index : index + 2]
            pieces = layout.pieces(self.sizes, start * self.per_sequence, stop * self.per_sequence)
            yield ShardTask(
                name=f"{split}-{first_shard + index:06d}",
                split=split,
                first_sequence=first_sequence + start,
                num_sequences=stop - start,
                pieces=tuple(WindowPiece(self.windows[p.run], p.start, p.stop) for p in pieces),
            )
