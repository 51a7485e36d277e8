"""Readers for files on this machine's disk and for data sets: what a task reads."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from tokentar.shard_writer.errors import InputError
from tokentar.shard_writer.inputs import columns, compression, json_lines, libraries
from tokentar.shard_writer.inputs.csv_files import CsvRows
from tokentar.shard_writer.inputs.documents import Reader
from tokentar.shard_writer.inputs.parquet import ParquetGroups, is_text, type_of
from tokentar.shard_writer.inputs.rows import DatasetRows
from tokentar.shard_writer.inputs.text_files import TextFiles

_SMALLEST_TASK, _LARGEST_TASK, _TASKS = 1 << 20, 64 << 20, 16


def file_readers(kind: str, paths: list[str], task_bytes: int, text_column: str) -> Iterator[Reader]:
    """Tasks for files of one format on this machine's disk."""
    if kind == "text":
        yield from _text_readers(paths, task_bytes)
        return
    for path in paths:
        if kind == "jsonl":
            yield from _json_readers(path, task_bytes)
        elif kind == "parquet":
            yield from _parquet_readers(path, task_bytes, text_column)
        elif kind == "arrow":
            yield from _dataset_readers(path, _load_arrow(path), text_column)
        else:
            compression.head(path, "a table")
            yield CsvRows(path, "\t" if kind == "tsv" else ",", os.path.getsize(path))


def _json_readers(path: str, task_bytes: int) -> Iterator[Reader]:
    size = os.path.getsize(path)
    json_lines.refuse_other_kinds(path)
    if compression.compression(path):
        if size:
            yield json_lines.CompressedJsonLines(path)
        return
    for start in range(0, size, task_bytes):
        yield json_lines.JsonLines(path, start, min(start + task_bytes, size))


def _parquet_readers(path: str, task_bytes: int, text_column: str) -> Iterator[Reader]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema, meta = file.schema_arrow, file.metadata
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path}: cannot be read as Parquet: {error}; fetch it again, or leave it out of --input"
        ) from None
    kind = type_of(schema, text_column, path)
    if not is_text(kind):
        raise InputError(
            f"{path}: column {text_column!r} holds {kind}, text wanted; name another one with --text_column"
        )
    start = size = 0
    for group in range(meta.num_row_groups):
        size += meta.row_group(group).total_byte_size
        if size >= task_bytes or group + 1 == meta.num_row_groups:
            yield ParquetGroups(path, start, group + 1, size)
            start, size = group + 1, 0


def _text_readers(paths: list[str], task_bytes: int) -> Iterator[Reader]:
    group: list[str] = []
    size = 0
    for path in paths:
        group.append(path)
        size += os.path.getsize(path)
        if size >= task_bytes:
            yield TextFiles(tuple(group), size)
            group, size = [], 0
    if group:
        yield TextFiles(tuple(group), size)


def _load_arrow(path: str) -> Any:
    import datasets

    try:
        with libraries.silent():
            return datasets.load_dataset("arrow", data_files=path, split="train", streaming=True)
    except Exception as error:  # `datasets` raises many types
        raise InputError(f"{path}: cannot be read as Arrow: {libraries.one_line(error)}") from error


def _dataset_readers(name: str, dataset: Any, text_column: str) -> list[Reader]:
    """Index ranges of a data set with random access, else its shards."""
    present = dataset.column_names
    if present and (columns.top_column(text_column, present) not in present):
        raise columns.missing_column(text_column, present, name)
    rows_of = partial(DatasetRows, name, dataset)
    if hasattr(dataset, "select"):
        rows = len(dataset)
        step = max(1, -(-rows // _TASKS))
        return [rows_of(start, min(start + step, rows), step) for start in range(0, rows, step)]
    return [rows_of(index, dataset.num_shards, 1) for index in range(dataset.num_shards)]
