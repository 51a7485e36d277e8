"""map: from a task to spool parts. A function of its argument and of files that nobody changes (G2)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_writer import layout, seeds, spool
from shard_writer.documents import Bad, Batch
from shard_writer.shards import TokenIds
from shard_writer.sources import Task
from shard_writer.spool import DOCUMENT, Part, TaskRecord
from shard_writer.tokens import DocumentEncoder, TokenizerSpec

_ORDER, _SPLIT = 1, 2  # purposes of random numbers, so that none is used twice; 3 is in reduce.py
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
        documents = tokens = rows = 0
        parts: list[str] = []
        for batch in task.reader.read(self.text_column, bad):
            if batch.texts:
                part = Part(self.folder, task.index, len(parts), self.num_cells)
                ids, found, cells = self._tokenize(task.index, batch, documents, rows)
                parts.append(part.write(ids, found, cells))
                tokens += len(ids)
            documents, rows = documents + len(batch.texts), rows + batch.size
        record = TaskRecord(
            index=task.index,
            size=task.reader.size,
            documents=documents,
            tokens=tokens,
            rows=rows,
            sources=list(task.reader.sources),
            first_place=task.reader.first_place,
            skipped=dict(sorted(bad.skipped.items())),
            parts=parts,
        )
        spool.write_record(self.folder, record)
        return record

    def _tokenize(
        self, task: int, batch: Batch, first_document: int, first_row: int
    ) -> tuple[TokenIds, NDArray[Any], NDArray[np.int64]]:
        """A batch in the order of its cells: ids (tokens,), documents (documents,) DOCUMENT and the cell of each."""
        keys, cells = self._place(task, first_document, len(batch.texts))
        order = np.lexsort((keys, cells))
        ids, lengths = _encoder.encode([batch.texts[i] for i in order.tolist()])
        found = np.empty(len(order), DOCUMENT)
        found["key"], found["length"] = keys[order], lengths
        found["number"], found["row"] = first_document + order, first_row + batch.rows[order]
        return ids, found, cells[order]

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
