"""Tokenize all tasks and write all shards, with a progress bar and a log line on what an earlier run has done."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tqdm import tqdm

from tokentar.shard_writer.engines.local import Engine
from tokentar.shard_writer.format.manifest import ShardEntry
from tokentar.shard_writer.inputs.source import Source, Task
from tokentar.shard_writer.storage import files
from tokentar.shard_writer.writing import spool
from tokentar.shard_writer.writing.shard_step import PieceT, ShardTask
from tokentar.shard_writer.writing.spool import TaskRecord
from tokentar.shard_writer.writing.tokenize_step import MapStep

_log = logging.getLogger(__name__)


def map_tasks(engine: Engine, step: MapStep, source: Source, folder: Path) -> list[TaskRecord]:
    """Records of all tasks in input order; tasks that an earlier run finished are not done again."""
    records: dict[int, TaskRecord] = {}
    with tqdm(desc="tokenize", total=source.size, unit="B", unit_scale=True, disable=None) as bar:

        def unfinished() -> Iterator[Task]:
            for task in source.tasks:
                record = spool.read_record(folder, task.index, step.num_cells)
                if record is None:
                    yield task
                else:
                    note(record)

        def note(record: TaskRecord) -> None:
            records[record.index] = record
            bar.update(record.size)

        done = 0
        for record in engine.run(step, unfinished()):
            note(record)
            done += 1
    if len(records) > done:
        _log.info("tokenize: goes on with %d tasks that an earlier run did", len(records) - done)
    return [records[index] for index in sorted(records)]


def make_shards(
    engine: Engine,
    step: Callable[[ShardTask[PieceT]], ShardEntry],
    folder: Path,
    tasks: Iterable[ShardTask[PieceT]],
    shards: int,
) -> tuple[ShardEntry, ...]:
    """Let `step` write all shards into `folder`; returns their lines of the manifest, in order.

    Each is synced to the disk while others are written.
    """
    entries: dict[str, ShardEntry] = {}
    names: list[str] = []

    def named() -> Iterator[ShardTask[PieceT]]:
        for task in tasks:
            names.append(task.name)
            yield task

    if present := len(list(folder.glob("*.json"))):
        _log.info("write shards: goes on with %d shards that an earlier run made", present)
    with tqdm(desc="write shards", total=shards, unit="shard", disable=None) as bar, files.syncing() as sync:
        for entry in engine.run(step, named()):
            for name in entry.files:
                sync(folder / name)
            entries[entry.shard] = entry
            bar.update()
    return tuple(entries[name] for name in names)
