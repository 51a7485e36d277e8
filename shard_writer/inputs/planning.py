"""From what the user names to a fixed list of tasks, cut by size and never by the number of workers (G2).

Task number and place within the task number the documents, so the same input gives the same tasks on any machine.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs import columns, compression, libraries, objects
from tokentar.shard_writer.inputs.documents import Reader
from tokentar.shard_writer.inputs.readers import _LARGEST_TASK, _SMALLEST_TASK, _dataset_readers, file_readers
from tokentar.shard_writer.inputs.rows import Values
from tokentar.shard_writer.inputs.source import Source, Task, stamp
from tokentar.shard_writer.storage import files, places
from tokentar.shard_writer.storage.urls import Url

_ROWS_CHARS = 8 << 20  # texts of an iterable per task
_KINDS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **{suffix: suffix[1:] for suffix in (".parquet", ".csv", ".tsv", ".arrow")},
}  # by suffix; any other file is text
_DATASET_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def plan_files(
    inputs: list[str], *, text_column: str, input_format: str, dataset_config: str | None, dataset_split: str
) -> Source:
    """Tasks for paths, folders, globs and data set names. Raises InputError when one of them gives nothing."""
    readers: list[Reader] = []
    found: dict[str, str | Url] = {}  # each file once, by its real path, however it is spelt and linked to
    identity: list[list[Any]] = []
    unknown_size = False
    for name in map(partial(_of_dict, split=dataset_split), inputs):
        named = None if input_format == "dataset" or _is_saved_dataset(name) else _find(name)
        if named is None:
            dataset = _load_dataset(name, dataset_config, dataset_split)
            readers += _dataset_readers(name, dataset, text_column)
            identity.append([name, dataset_config, dataset_split, getattr(dataset, "_fingerprint", None)])
            unknown_size = True
        for file in named or ():
            _refuse_odd_name(str(file))
            found.setdefault(os.path.realpath(file) if isinstance(file, str) else str(file), file)
    all_files = tuple(found.values())
    stamps = tuple(map(stamp, all_files))
    readers += _readers(all_files, stamps, input_format, text_column)
    names = list(map(places.without_query, inputs))
    if not readers:
        raise InputError(f"input {' '.join(names)!r} holds no file with anything in it")
    tasks = [Task(index, reader) for index, reader in enumerate(readers)]
    size = None if unknown_size else sum(reader.size for reader in readers)
    return Source(tasks, size, [*identity, *stamps], names, all_files, stamps)


def _readers(
    all_files: Sequence[str | Url], stamps: Sequence[list[Any]], input_format: str, text_column: str
) -> Iterator[Reader]:
    """Tasks for files and objects, neighbours of one format together."""
    sizes = {file: size for file, (_, size, _) in zip(all_files, stamps, strict=True)}
    task_bytes = _task_bytes(sum(sizes.values()))
    for (kind, _), group in groupby(all_files, lambda file: (_format(str(file), input_format), isinstance(file, Url))):
        paths, urls = [], []
        for file in group:
            urls.append((file, sizes[file])) if isinstance(file, Url) else paths.append(file)
        yield from file_readers(kind, paths, task_bytes, text_column)
        yield from objects.readers(kind, urls, task_bytes, text_column) if urls else ()


def _task_bytes(total: int) -> int:
    """Bytes of a task where there are `total`: many tasks keep all workers at work to the end, large ones leave few parts to read."""
    return min(_LARGEST_TASK, max(_SMALLEST_TASK, 512 * math.isqrt(total)))


def _find(name: str) -> Sequence[str | Url] | None:
    """The files that a name stands for; None when nothing is there under this name."""
    return objects.find(name) if places.is_url(name) else files.find_files(name)


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
        try:
            values.append(columns.value_at(row, text_column))
        except (KeyError, TypeError):
            raise columns.missing_value(row, text_column, f"row {number} of the data set") from None
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
            f"input {places.without_query(name)!r}: no such file or folder; check the path, or give a glob or the name of a data set"
        )
    try:
        with libraries.silent():
            if _is_saved_dataset(name):
                return datasets.load_from_disk(name)
            return datasets.load_dataset(name, config, split=split, streaming=True)
    except Exception as error:  # `datasets` and the hub raise many types
        what = "" if os.path.exists(name) else "no such file, and "
        raise InputError(f"input {name!r}: {what}`datasets` cannot load it: {libraries.one_line(error)}") from error


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
