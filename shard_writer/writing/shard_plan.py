"""Which shards a set gets: from the records of the tokenized tasks to one task a shard."""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from tokentar.shard_writer.engines.local import Engine
from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.format.dataset_info import Totals
from tokentar.shard_writer.packing import layout
from tokentar.shard_writer.writing import spool
from tokentar.shard_writer.writing.append import Base
from tokentar.shard_writer.writing.arguments import WriteArguments
from tokentar.shard_writer.writing.assignment import Layout, Split, Stream, Windows
from tokentar.shard_writer.writing.shard_step import CountRows, ReduceStep, ShardTask, WindowPiece
from tokentar.shard_writer.writing.spool import TaskRecord
from tokentar.shard_writer.writing.tokenize_step import MapStep

VALIDATION = "validation"


def layout_of(records: list[TaskRecord], step: MapStep, reduce_step: ReduceStep) -> Layout:
    """What the shards are cut from."""
    parts = [part for record in records for part in spool.parts_of(step.folder, record, step.num_cells)]
    ends = np.empty((len(parts), step.num_cells, 2), np.uint32)
    for index, part in enumerate(parts):
        ends[index] = part.ends()
    return Layout(
        folder=step.folder,
        parts=np.array([(part.task, part.number) for part in parts], np.int64).reshape(-1, 2),
        ends=ends,
        row_format=reduce_step.row_format,
        shuffle=step.shuffle,
    )


def cut(
    engine: Engine, arguments: WriteArguments, step: MapStep, shape: Layout, base: Base, skipped: dict[str, int]
) -> tuple[dict[str, Totals], int, Iterator[ShardTask[WindowPiece]]]:
    """Totals by split, and the shards of all splits, numbered through: how many, and one after the other."""
    splits = [Split(arguments.name, range(step.train_cells))]
    if step.validation_cells:
        splits.append(Split(VALIDATION, range(step.train_cells, step.num_cells)))
    totals: dict[str, Totals] = {}
    tasks: list[Iterator[ShardTask[WindowPiece]]] = []
    shards = 0
    for split in splits:
        stream = _stream(engine, arguments, shape.windows(split))
        first_sequence = base.totals.sequences + sum(before.sequences for before in totals.values())
        try:
            totals[split.name] = shape.totals(split, stream)
        except InputError as error:
            raise InputError(f"{error}; skipped: {skipped or 'nothing'}") from None
        num_shards = (
            (arguments.num_shards if split.name == arguments.name else None)
            or base.num_shards(split.name, stream.sequences)
            or layout.default_num_shards(stream.sequences, shape.row_format.stride)
        )
        first = {"first_shard": base.next_shard(split.name), "first_sequence": first_sequence}
        tasks.append(stream.shard_tasks(split.name, num_shards, **first))
        shards += num_shards
    return totals, shards, chain.from_iterable(tasks)


def _stream(engine: Engine, arguments: WriteArguments, windows: Windows) -> Stream:
    if arguments.packing == "wrap":
        return Stream(windows=windows, sizes=windows.tokens(), per_sequence=arguments.seq_length, apart=False)
    rows = dict(engine.run(CountRows(arguments.seq_length), enumerate(windows)))
    sizes = np.array([rows[i] for i in range(len(windows))], np.int64)
    return Stream(windows=windows, sizes=sizes, per_sequence=1, apart=True)
