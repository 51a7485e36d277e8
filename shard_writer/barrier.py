"""barrier: once all tasks are mapped, the counts per part and cell fix which tokens every shard owns. No files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_writer import layout
from shard_writer.errors import InputError, SettingError
from shard_writer.manifest import Totals
from shard_writer.shards import RowFormat
from shard_writer.spool import Part, Run
from shard_writer.steps import RunPiece, ShardTask


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

    def totals(self, split: Split) -> Totals:
        """What goes into a split and what comes out. Raises InputError when that is no sequence at all."""
        documents, tokens = self.counts[:, split.cells.start : split.cells.stop].sum(axis=(0, 1)).tolist()
        length = self.row_format.seq_length
        if tokens < length:
            raise InputError(
                f"0 sequences: {tokens} tokens < {length} (seq_length) in {documents} documents of split {split.name!r}; "
                "give more text or a smaller --seq_length"
            )
        return Totals(documents=documents, tokens=tokens, sequences=tokens // length, tail=tokens % length)

    def shard_tasks(
        self, split: Split, sequences: int, num_shards: int | None, first_sequence: int
    ) -> Iterator[ShardTask]:
        """The shards of a split, equal up to one sequence. Raises SettingError when some would be empty."""
        num_shards = num_shards or layout.default_num_shards(sequences, self.row_format.stride)
        if num_shards > sequences:
            raise SettingError(
                f"num_shards: {num_shards} shards for {sequences} sequences of {split.name!r}; ask for {sequences} at most"
            )
        runs = list(self._runs(split))
        run_tokens = np.array([run[1] for run in runs], np.int64)
        bounds = layout.even_split(sequences, num_shards).tolist()
        length = self.row_format.seq_length
        for index in range(num_shards):
            start, stop = bounds[index : index + 2]
            pieces = layout.pieces(run_tokens, start * length, stop * length)
            yield ShardTask(
                name=f"{split.name}-{index:06d}",
                split=split.name,
                first_sequence=first_sequence + start,
                num_sequences=stop - start,
                pieces=tuple(
                    RunPiece(runs[p.run][0], p.start, p.stop, self.shuffle, self.row_format.dtype) for p in pieces
                ),
            )

    def _runs(self, split: Split) -> Iterator[tuple[list[Run], int]]:
        """The runs of a split and their tokens: those of a cell, over all parts, or, in input order, part by part."""
        if self.shuffle:
            for cell in split.cells:
                yield (
                    [self._run(i, cell) for i in np.flatnonzero(self.counts[:, cell, 0]).tolist()],
                    int(self.counts[:, cell, 1].sum()),
                )
        else:
            for i in range(len(self.parts)):
                yield [self._run(i, split.cells.start)], int(self.counts[i, split.cells.start, 1])

    def _run(self, part: int, cell: int) -> Run:
        return self.parts[part].run(cell, self.counts[part])
