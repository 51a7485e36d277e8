"""Tokenize a task of the input into the spool. What it writes depends on the task and its files, on nothing else (G2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokentar.shard_writer.inputs.documents import Bad
from tokentar.shard_writer.inputs.source import Task
from tokentar.shard_writer.packing import layout, ragged, random_order
from tokentar.shard_writer.packing.token_ids import TokenIds
from tokentar.shard_writer.tokenizing.encoder import DocumentEncoder
from tokentar.shard_writer.tokenizing.spec import TokenizerSpec
from tokentar.shard_writer.writing import spool
from tokentar.shard_writer.writing.spool import DOCUMENT, Part, TaskRecord

# ids of a part, and up to a batch more: what a task holds in memory, and again while it is put in order
PART_BYTES = 32 << 20
_ORDER, _SPLIT = 1, 2  # purposes of random numbers, so that none is used twice; 3 is in shard_step.py
_encoder: DocumentEncoder  # of this process


def prepare(spec: TokenizerSpec) -> None:
    """Load the tokenizer, once a process."""
    global _encoder
    _encoder = DocumentEncoder(spec)


@dataclass(frozen=True)
class Encoded:
    """What a Batch becomes."""

    ids: TokenIds  # (tokens,)
    lengths: NDArray[np.int64]  # (documents,): tokens of each
    rows: NDArray[np.int64]  # (documents,) and
    size: int  # as in Batch

    @classmethod
    def join(cls, parts: list["Encoded"]) -> "Encoded":
        """Several, one after the other."""
        before = np.cumsum([0, *(part.size for part in parts)])
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([first + part.rows for first, part in zip(before, parts, strict=False)]),
            int(before[-1]),
        )


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
        for group in self._groups(task, bad):
            if len(group.lengths):
                part = Part(self.folder, task.index, len(parts), self.num_cells)
                parts.append(self._write(part, group, documents, rows))
            documents, tokens, rows = documents + len(group.lengths), tokens + len(group.ids), rows + group.size
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

    def _groups(self, task: Task, bad: Bad) -> Iterator[Encoded]:
        """All rows of a task with their documents tokenized, in order, about PART_BYTES of ids at a time."""
        held: list[Encoded] = []
        for batch in task.reader.read(self.text_column, bad):
            held.append(Encoded(*_encoder.encode(batch.texts), batch.rows, batch.size))
            if sum(encoded.ids.nbytes for encoded in held) >= PART_BYTES:
                yield Encoded.join(held)
                held = []
        if held:
            yield Encoded.join(held)

    def _write(self, part: Part, group: Encoded, first_document: int, first_row: int) -> str:
        """Write documents in the order of their cells and keys; returns the part's checksum."""
        keys, cells = self._place(part.task, first_document, len(group.lengths))
        order = np.lexsort((keys, cells))
        found = np.empty(len(order), DOCUMENT)
        found["key"], found["length"] = keys[order], group.lengths[order]
        found["number"], found["row"] = first_document + order, first_row + group.rows[order]
        return part.write(ragged.take(group.ids, group.lengths, order), found, cells[order])

    def _place(self, task: int, first: int, count: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Key and cell of documents `first` … `first + count - 1` of a task; without shuffle the key is the place itself."""
        if self.shuffle:
            keys = random_order.spread(random_order.mix(self.seed, _ORDER, task), count, first)
        else:
            keys = np.arange(first, first + count, dtype=np.uint64)
        cells = layout.cell_of(keys, self.train_cells)
        if self.validation_fraction:
            draw = random_order.spread(random_order.mix(self.seed, _SPLIT, task), count, first) >> np.uint64(11)
            held_out = draw < np.uint64(round(self.validation_fraction * 2**53))
            cells[held_out] = self.train_cells + layout.cell_of(keys[held_out], self.validation_cells)
        return keys, cells
