"""plan: from what the user names to a fixed list of tasks, cut by size and never by worker count (G2).

Task number and place within the task number the documents, so the same input gives the same tasks on any machine.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs import compression, documents, objects
from tokentar.shard_writer.inputs.documents import Reader
from tokentar.shard_writer.inputs.readers import _LARGEST_TASK, _SMALLEST_TASK, _dataset_readers, file_readers
from tokentar.shard_writer.inputs.rows import Values
from tokentar.shard_writer.storage import files, places

_ROWS_CHARS = 8 << 20  # texts of an iterable per task
_KINDS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **{suffix: suffix[1:] for suffix in (".parquet", ".csv", ".tsv", ".arrow")},
}  # by suffix; any other file is text
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
    stamps: tuple[list[Any], ...] = ()  # of the files: see _stamp

    def refuse_changes(self) -> None:
        """Raises InputError when a file is not the one that was planned: parts of two states of it may have been read."""
        for path, *before in self.stamps:
            if _stamp(path)[1:] != before:
                raise InputError(f"{path}: changed while it was read; write again when nothing writes to it any more")


def plan_files(
    inputs: list[str], *, text_column: str, input_format: str, dataset_config: str | None, dataset_split: str
) -> Source:
    """Tasks for paths, folders, globs and data set names. Raises InputError when one of them gives nothing."""
    readers: list[Reader] = []
    files: dict[str, str] = {}  # path → format
    seen: set[str] = set()  # each file once, however it is spelt and linked to
    identity: list[list[Any]] = []
    stored: dict[str, list[Any]] = {}  # stamps of objects in stores, by URL
    unknown_size = False
    for name in map(partial(_of_dict, split=dataset_split), inputs):
        found = None if input_format == "dataset" or _is_saved_dataset(name) else _find(name, stored)
        if found is None:
            dataset = _load_dataset(name, dataset_config, dataset_split)
            readers += _dataset_readers(name, dataset, text_column)
            identity.append([name, dataset_config, dataset_split, getattr(dataset, "_fingerprint", None)])
            unknown_size = True
        for path in found or ():
            _refuse_odd_name(path)
            if os.path.realpath(path) not in seen:
                seen.add(os.path.realpath(path))
                files[path] = _format(path, input_format)
    stamps = tuple(stored.get(path) or _stamp(path) for path in files)
    task_bytes = _task_bytes(sum(size for _, size, _ in stamps))
    for (kind, in_store), group in groupby(files, lambda path: (files[path], path in stored)):
        paths = list(group)
        if in_store:
            readers += objects.readers(kind, [stored[path] for path in paths], task_bytes, text_column)
        else:
            readers += file_readers(kind, paths, task_bytes, text_column)
    if not readers:
        raise InputError(f"input {' '.join(inputs)!r} holds no file with anything in it")
    tasks = [Task(index, reader) for index, reader in enumerate(readers)]
    size = None if unknown_size else sum(reader.size for reader in readers)
    return Source(tasks, size, [*identity, *stamps], inputs, stamps)


def _task_bytes(total: int) -> int:
    """Bytes of a task where there are `total`: many tasks keep all workers at work to the end, large ones leave few parts to read."""
    return min(_LARGEST_TASK, max(_SMALLEST_TASK, 512 * math.isqrt(total)))


def _find(name: str, stored: dict[str, list[Any]]) -> Iterable[str] | None:
    """The files that a name stands for; those in stores are noted in `stored`. None when nothing is there under this name."""
    if not places.is_url(name):
        return files.find_files(name)
    found = objects.find(name)
    stored |= found
    return found


def _stamp(path: str) -> list[Any]:
    """What changes when a file does."""
    if places.is_url(path):
        return objects.find(path)[path]
    try:
        found = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return [path, found.st_size, found.st_mtime_ns]


def plan_rows(rows: Any, *, text_column: str) -> Source:
    """Tasks for a `datasets` data set or any iterable of mappings; workers read for themselves only what lies on disk."""
    if isinstance(rows, Mapping):
        raise InputError(f"input: {type(rows).__name__} of {sorted(rows)[:5]}, needed: rows; give one of its values")
    format_of_rows = getattr(rows, "format", None) or {}
    has_transform = format_of_rows.get("type") == "custom"  # of the user, who wants what it makes
    rows = rows.with_format(None) if hasattr(rows, "with_format") and not has_transform else rows
    if hasattr(rows, "select") and getattr(rows, "cache_files", None) and not has_transform:
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
            yield Task(index, Values(name, values, first, chars))
            index, first, values, chars = index + 1, number + 1, [], 0
    if values:
        yield Task(index, Values(name, values, first, chars))


def _format(path: str, input_format: str) -> str:
    """How to read a file: jsonl, parquet, text, or the kind of table."""
    if input_format != "auto":
        return input_format
    stem, suffix = os.path.splitext(path.lower())
    if suffix in compression.COMPRESSION:
        suffix = os.path.splitext(stem)[1]
    return _KINDS.get(suffix, "text")


def _load_dataset(name: str, config: str | None, split: str) -> Any:
    import datasets

    if not os.path.isdir(name) and not _DATASET_NAME.fullmatch(name):
        raise InputError(
            f"input {name!r}: no such file or folder; check the path, or give a glob or the name of a data set"
        )
    try:
        if _is_saved_dataset(name):
            return datasets.load_from_disk(name)
        return datasets.load_dataset(name, config, split=split, streaming=True)
    except Exception as error:  # `datasets` and the hub raise many types
        raise InputError(
            f"input {name!r}: no such file, and `datasets` cannot load it: {type(error).__name__}: {error}"
        ) from error


def _of_dict(name: str, split: str) -> str:
    """The folder of one split, where `name` is one that `DatasetDict.save_to_disk` wrote; else `name`."""
    if not os.path.isfile(os.path.join(name, "dataset_dict.json")):
        return name
    folder = os.path.join(name, split)
    if not _is_saved_dataset(folder):
        present = [found for found in sorted(os.listdir(name)) if _is_saved_dataset(os.path.join(name, found))]
        raise InputError(
            f"input {name!r}: a data set without split {split!r}; name one of {present} with --dataset_split"
        )
    return folder


def _refuse_odd_name(path: str) -> None:
    """Raises InputError for a name that no library takes and no manifest could hold."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{os.fsencode(path)!r}: a file name in UTF-8 wanted; rename it, or leave it out of --input"
        ) from None


def _is_saved_dataset(name: str) -> bool:
    """Whether this is a folder that `Dataset.save_to_disk` wrote."""
    return all(os.path.isfile(os.path.join(name, file)) for file in ("state.json", "dataset_info.json"))
