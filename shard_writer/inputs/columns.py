"""Columns by name. `data.text` is the column of that name or, where there is none, the field `text` of an object or struct `data`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokentar.shard_writer.errors import InputError


def value_at(record: Mapping[str, Any], column: str) -> Any:
    """What a row holds in a column; None below a null. Raises KeyError, and TypeError where no object is."""
    if column in record:
        return record[column]
    head, dot, rest = column.partition(".")
    if not dot:
        raise KeyError(column)
    below = record[head]
    if below is None:
        return None
    if not isinstance(below, Mapping):
        raise TypeError(below)
    return value_at(below, rest)


def missing_value(record: Mapping[str, Any], column: str, where: str) -> InputError:
    """The error for a row that `value_at` finds nothing in: it names what is there at the level where the path ends."""
    level, rest, below = "", column, record
    while "." in rest and isinstance(below, Mapping) and rest.partition(".")[0] in below:
        head, _, rest = rest.partition(".")
        level, below = f"{level}.{head}".strip("."), below[head]
    if isinstance(below, Mapping):
        return missing_column(column, list(below), where, level)
    return InputError(
        f"{where}: no column {column!r}: {level!r} holds {type(below).__name__} {below!r:.60}, needed: an object; "
        "name another column with --text_column"
    )


def missing_column(column: str, present: Sequence[str], where: str, level: str = "") -> InputError:
    """The error for an input without the column that was asked for; `level`: the object or struct that lacks it."""
    return InputError(
        f"{where}: no column {column!r}; {f'in {level!r} ' if level else ''}there are {sorted(present)}; "
        "name the right one with --text_column"
    )


def one_column(column: str, present: Sequence[str], where: str) -> int:
    """The number of a column. Raises InputError when it is not there once and only once."""
    if present.count(column) > 1:
        raise InputError(
            f"{where}: {present.count(column)} columns are named {column!r}, one wanted; rename the others"
        )
    if column not in present:
        raise missing_column(column, present, where)
    return present.index(column)


def top_column(column: str, present: Sequence[str]) -> str:
    """The column at the top that holds `column`: itself or, where there is none of this name, what is before its first dot."""
    return column if column in present else column.partition(".")[0]
