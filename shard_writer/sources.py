"""plan: from what the user names to a fixed list of tasks, cut by size and never by worker count (G2).

Task number and place within the task number the documents, so the same input gives the same tasks on any machine.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from shard_writer import documents, storage
from shard_writer.documents import Reader
from shard_writer.errors import InputError

_SMALLEST_TASK, _LARGEST_TASK, _TASKS = 1 << 20, 32 << 20, 16
_ROWS_CHARS = 8 << 20  # texts of an iterable per task
_TABULAR = {".csv": "csv", ".tsv": "tsv", ".arrow": "arrow"}  # read through `datasets`
_DATASET_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class Task:
    """A part of the input for one worker."""

    index: int
    reader: Reader


@dataclass(frozen=True)
class Source:
    """The planned input."""

    tasks: Iterable[Task]  # lazy for iterables
    size: int | None  # bytes of input; None when nobody knows before reading
    identity: list[list[Any]] | None  # what must be the same for a rerun to go on; None: cannot go on
    names: list[str]  # for dataset.json


def plan_files(
    inputs: list[str], *, text_column: str, input_format: str, dataset_config: str | None, dataset_split: str
) -> Source:
    """Tasks for paths, folders, globs and data set names. Raises InputError when one of them gives nothing."""
    readers: list[Reader] = []
    files: dict[str, str] = {}  # path → format
    seen: set[str] = set()  # each file once, however it is spelt
    identity: list[list[Any]] = []
    unknown_size = False
    for name in inputs:
        found = None if input_format == "dataset" or _is_saved_dataset(name) else storage.find_files(name)
        if found is None:
            dataset = _load_dataset(name, dataset_config, dataset_split)
            readers += _dataset_readers(name, dataset, text_column)
            identity.append([name, dataset_config, dataset_split, getattr(dataset, "_fingerprint", None)])
            unknown_size = True
        for path in found or ():
            if os.path.abspath(path) not in seen:
                seen.add(os.path.abspath(path))
                files[path] = _format(path, input_format)
    identity += [[path, os.path.getsize(path), os.stat(path).st_mtime_ns] for path in files]
    task_bytes = min(_LARGEST_TASK, max(_SMALLEST_TASK, sum(map(os.path.getsize, files)) // _TASKS))
    for kind, paths in groupby(files, files.__getitem__):
        readers += _file_readers(kind, list(paths), task_bytes, text_column)
    if not readers:
        raise InputError(f"input {' '.join(inputs)!r} holds no file with anything in it")
    tasks = [Task(index, reader) for index, reader in enumerate(readers)]
    return Source(tasks, None if unknown_size else sum(reader.size for reader in readers), identity, inputs)


def plan_rows(rows: Any, *, text_column: str) -> Source:
    """Tasks for a `datasets` data set or any iterable of mappings; workers read for themselves only what lies on disk."""
    if hasattr(rows, "select") and rows.cache_files:
        name = f"datasets.Dataset {rows._fingerprint}"
        tasks = [Task(index, reader) for index, reader in enumerate(_dataset_readers(name, rows, text_column))]
        return Source(tasks, None, None, [name])
    name = type(rows).__name__
    return Source(_row_tasks(name, rows, text_column), None, None, [name])


def _row_tasks(name: str, rows: Iterable[Mapping[str, Any]], text_column: str) -> Iterator[Task]:
    values: list[Any] = []
    index = first = chars = 0
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(
                f"row {number} of the input: {type(row).__name__} {row!r:.60}, needed: a mapping with a key {text_column!r}"
            )
        if text_column not in row:
            raise documents.missing_column(text_column, list(row), f"row {number} of the data set")
        values.append(row[text_column])
        chars += len(values[-1]) if isinstance(values[-1], str) else 1
        if chars >= _ROWS_CHARS:
            yield Task(index, documents.Values(name, values, first, chars))
            index, first, values, chars = index + 1, number + 1, [], 0
    if values:
        yield Task(index, documents.Values(name, values, first, chars))


def _format(path: str, input_format: str) -> str:
    """How to read a file: jsonl, parquet, text, or the kind of table."""
    if input_format != "auto":
        return input_format
    stem, suffix = os.path.splitext(path.lower())
    if suffix in documents.COMPRESSION:
        suffix = os.path.splitext(stem)[1]
    if suffix in (".jsonl", ".ndjson", ".json"):
        return "jsonl"
    return "parquet" if suffix == ".parquet" else _TABULAR.get(suffix, "text")


def _file_readers(kind: str, paths: list[str], task_bytes: int, text_column: str) -> Iterator[Reader]:
    if kind == "text":
        yield from _text_readers(paths, task_bytes)
    elif kind in _TABULAR.values():
        builder, options = ("csv", {"sep": "\t"}) if kind == "tsv" else (kind, {})
        for path in paths:
            table = _load_dataset(builder, None, "train", data_files=path, **options)
            yield from _dataset_readers(path, table, text_column)
    else:
        for path in paths:
            yield from (
                _parquet_readers(path, task_bytes, text_column)
                if kind == "parquet"
                else _json_readers(path, task_bytes)
            )


def _json_readers(path: str, task_bytes: int) -> Iterator[Reader]:
    size = os.path.getsize(path)
    if documents.compression(path):
        if size:
            yield documents.CompressedJsonLines(path)
        return
    for start in range(0, size, task_bytes):
        yield documents.JsonLines(path, start, min(start + task_bytes, size))


def _parquet_readers(path: str, task_bytes: int, text_column: str) -> Iterator[Reader]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema, meta = file.schema_arrow, file.metadata
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from None
    if text_column not in schema.names:
        raise documents.missing_column(text_column, schema.names, path)
    kind = schema.field(text_column).type
    if not any(
        is_text(getattr(kind, "value_type", kind)) for is_text in (pa.types.is_string, pa.types.is_large_string)
    ):
        raise InputError(
            f"{path}: column {text_column!r} holds {kind}, text wanted; name another one with --text_column"
        )
    start = size = 0
    for group in range(meta.num_row_groups):
        size += meta.row_group(group).total_byte_size
        if size >= task_bytes or group + 1 == meta.num_row_groups:
            yield documents.ParquetGroups(path, start, group + 1, size)
            start, size = group + 1, 0


def _text_readers(paths: list[str], task_bytes: int) -> Iterator[Reader]:
    group: list[str] = []
    size = 0
    for path in paths:
        group.append(path)
        size += os.path.getsize(path)
        if size >= task_bytes:
            yield documents.TextFiles(tuple(group), size)
            group, size = [], 0
    if group:
        yield documents.TextFiles(tuple(group), size)


def _load_dataset(name: str, config: str | None, split: str, **options: Any) -> Any:
    import datasets

    if not options and not os.path.isdir(name) and not _DATASET_NAME.fullmatch(name):
        raise InputError(
            f"input {name!r}: no such file or folder; check the path, or give a glob or the name of a data set"
        )
    try:
        if _is_saved_dataset(name):
            return datasets.load_from_disk(name)
        return datasets.load_dataset(name, config, split=split, streaming=True, **options)
    except Exception as error:  # `datasets` and the hub raise many types
        raise InputError(
            f"input {name!r}: no such file, and `datasets` cannot load it: {type(error).__name__}: {error}"
        ) from error


def _is_saved_dataset(name: str) -> bool:
    """Whether this is a folder that `Dataset.save_to_disk` wrote."""
    return all(os.path.isfile(os.path.join(name, file)) for file in ("state.json", "dataset_info.json"))


def _dataset_readers(name: str, dataset: Any, text_column: str) -> list[Reader]:
    """Index ranges of a data set with random access, else its shards."""
    present = dataset.column_names
    if present and text_column not in present:
        raise documents.missing_column(text_column, present, "the data set")
    rows_of = partial(documents.DatasetRows, name, dataset)
    if hasattr(dataset, "select"):
        rows = len(dataset)
        step = max(1, -(-rows // _TASKS))
        return [rows_of(start, min(start + step, rows), step) for start in range(0, rows, step)]
    return [rows_of(index, dataset.num_shards, 1) for index in range(dataset.num_shards)]
