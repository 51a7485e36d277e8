"""Columns by name: a nested one is found in every format, a column that bears the whole name wins, what is there is named."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.written import FEW_SHARDS, written_texts
from tokentar import InputError, write_shards

Rows = list[dict[str, Any]]
NESTED: Rows = [{"id": 1, "data": {"text": "ab", "n": 1}}, {"id": 2, "data": {"text": "é", "n": 2}}]


def as_jsonl(rows: Rows, folder: Path) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "a.jsonl")


def as_gzip(rows: Rows, folder: Path) -> str:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(Path(as_jsonl(rows, folder)).read_bytes()))
    return str(folder / "a.jsonl.gz")


def as_parquet(rows: Rows, folder: Path) -> str:
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=1)
    return str(folder / "a.parquet")


def as_arrow(rows: Rows, folder: Path) -> str:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(folder / "a.arrow", table.schema) as stream:
        stream.write_table(table)
    return str(folder / "a.arrow")


def as_saved(rows: Rows, folder: Path) -> str:
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")
    return str(folder / "saved")


def as_data_set(rows: Rows, folder: Path) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows)


def as_stream(rows: Rows, folder: Path) -> datasets.IterableDataset:
    return datasets.Dataset.from_list(rows).to_iterable_dataset()


def as_list(rows: Rows, folder: Path) -> Rows:
    return rows


def as_generator(rows: Rows, folder: Path) -> Iterator[dict[str, Any]]:
    yield from rows


FILES = [as_jsonl, as_gzip, as_parquet, as_arrow, as_saved]
ALL = [*FILES, as_data_set, as_stream, as_list, as_generator]
Form = Callable[[Rows, Path], Any]


@pytest.mark.parametrize("form", ALL)
def test_a_field_of_an_object_is_a_column(form: Form, t0: Any, tmp_path: Path) -> None:
    assert written_texts(t0, form(NESTED, tmp_path), tmp_path / "out", text_column="data.text") == ["ab", "é"]


@pytest.mark.parametrize("form", ALL)
def test_fields_are_found_at_any_depth_and_with_dots_in_their_names(form: Form, t0: Any, tmp_path: Path) -> None:
    rows = [{"a": {"b": {"c": text}, "d.e": f"{text}!"}} for text in ("ab", "c")]
    for column, texts in (("a.b.c", ["ab", "c"]), ("a.d.e", ["ab!", "c!"])):
        assert written_texts(t0, form(rows, tmp_path), tmp_path / column, text_column=column) == texts


@pytest.mark.parametrize("form", ALL)
def test_a_column_that_has_the_whole_name_wins(form: Form, t0: Any, tmp_path: Path) -> None:
    rows = [row | {"data.text": f"right {row['id']}"} for row in NESTED]
    texts = written_texts(t0, form(rows, tmp_path), tmp_path / "out", text_column="data.text")
    assert texts == ["right 1", "right 2"]


@pytest.mark.parametrize("form", ALL)
def test_a_null_on_the_way_is_a_row_without_text(form: Form, t0: Any, tmp_path: Path) -> None:
    rows = [NESTED[0], {"id": 3, "data": None}, {"id": 4, "data": {"text": None, "n": 3}}, NESTED[1]]
    manifest = write_shards(
        input=form(rows, tmp_path),
        tokenizer=t0,
        output=tmp_path / "out",
        text_column="data.text",
        seq_length=1,
        **FEW_SHARDS,
    )
    assert manifest.info.skipped == {"without text": 2}
    assert manifest.info.totals.documents == 2


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize(
    ("column", "there"),
    [
        ("data.body", r"no column 'data\.body'; in 'data' there are \['n', 'text'\]"),
        ("other.text", r"no column 'other\.text'; there are \['data', 'id'\]"),
        ("body", r"no column 'body'; there are \['data', 'id'\]"),
    ],
)
def test_a_missing_column_is_an_error_with_what_is_there_where_the_path_ends(
    column: str, there: str, form: Form, t0: Any, tmp_path: Path
) -> None:
    where = r"a\.\w+(:1)?.*" if form in FILES[:4] else "saved.*" if form is as_saved else ""
    with pytest.raises(InputError, match=f"{where}{there}"):
        written_texts(t0, form(NESTED, tmp_path), tmp_path / "out", text_column=column)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ALL)
def test_a_path_through_what_is_no_object_is_refused(form: Form, t0: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'id\.text'"):
        written_texts(t0, form(NESTED, tmp_path), tmp_path / "out", text_column="id.text")


def test_lines_of_both_kinds_and_lines_without_the_field_stand_side_by_side(t0: Any, tmp_path: Path) -> None:
    rows = [NESTED[0], {"data.text": "flat"}, {"data": {}}, {"data": [1]}, {"id": 3}, NESTED[1]]
    manifest = write_shards(
        input=as_jsonl(rows, tmp_path),
        tokenizer=t0,
        output=tmp_path / "out",
        text_column="data.text",
        bad_documents="skip",
        seq_length=1,
        **FEW_SHARDS,
    )
    assert manifest.info.skipped == {"no column data.text": 3}
    assert manifest.info.totals.tokens == len(b"abflat" + "é".encode()) + 3
