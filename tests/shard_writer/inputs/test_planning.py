"""Inputs: whatever the user names, each document is read exactly once and in order, and nothing by accident."""

import bz2
import csv
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.helpers.written import first_ids, jsonl, written_texts
from tokentar import InputError, write_shards
from tokentar.shard_writer.inputs import planning
from tokentar.shard_writer.inputs.source import Source

TEXTS = [f"document {i} é" for i in range(40)]


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files become many tasks."""
    monkeypatch.setattr(planning, "_LARGEST_TASK", 64)
    monkeypatch.setattr(planning, "_ROWS_CHARS", 64)


def plan(*inputs: str, **settings: Any) -> Source:
    defaults = {"text_column": "text", "input_format": "auto", "dataset_config": None, "dataset_split": "train"}
    return planning.plan_files(list(inputs), **(defaults | settings))


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_every_line_is_written_exactly_once_however_many_tasks_a_file_is_cut_into(
    end: str, newline: str, start: str, t0: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(start + newline.join(json.dumps({"text": text}) for text in TEXTS) + end, newline="")
    assert len(list(plan(str(path)).tasks)) > 10
    assert written_texts(t0, str(path), tmp_path / "out") == TEXTS


def test_tasks_depend_on_the_input_alone(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ["x" * 1000] * 4000)
    assert plan(path) == plan(path)
    assert [task.reader.size for task in plan(path).tasks] == [1 << 20] * 3 + [4000 * 1013 - 3 * (1 << 20)]


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".jsonl.bz2", ".json.GZ", ".ndjson"])
def test_json_lines_are_read_in_every_compression(suffix: str, t0: Any, tmp_path: Path) -> None:
    plain = Path(jsonl(tmp_path / "plain", TEXTS)).read_bytes()
    pack = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress}
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack.get(path.suffix.lower(), bytes)(plain))
    assert written_texts(t0, str(path), tmp_path / "out") == TEXTS


@pytest.mark.usefixtures("small_tasks")
def test_parquet_row_groups_are_read_in_order(t0: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(40), "text": TEXTS}), path, row_group_size=7)
    assert len(list(plan(str(path)).tasks)) == 6
    assert written_texts(t0, str(path), tmp_path / "out") == TEXTS


def test_a_parquet_file_without_the_column_or_with_numbers_in_it_is_refused(t0: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"content": ["ab"], "score": [1.5]}), path)
    with pytest.raises(InputError, match=r"a\.parquet: no column 'text'; there are \['content', 'score'\]"):
        plan(str(path))
    with pytest.raises(InputError, match=r"a\.parquet: column 'score' holds double, text wanted"):
        plan(str(path), text_column="score")
    assert first_ids(t0, str(path), tmp_path / "out", 3, text_column="content") == [100, 101, 2]


def test_a_parquet_column_is_not_taken_for_a_field_of_another(t0: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([{"b": "no"}]), "a.b": ["ab"]}), path)
    assert first_ids(t0, str(path), tmp_path / "out", 3, text_column="a.b") == [100, 101, 2]


def test_a_row_of_an_arrow_file_that_is_no_text_is_named_by_file_and_row(t0: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, pa.schema([("text", pa.int64())])) as stream:
        stream.write_table(pa.table({"text": [5]}))
    with pytest.raises(InputError, match=r"a\.arrow, shard 0, row 0: text wanted, found int 5"):
        first_ids(t0, str(path), tmp_path / "out", 1)


def test_a_file_name_that_is_no_utf8_is_refused_before_anything_is_written(t0: Any, tmp_path: Path) -> None:
    for suffix in ("jsonl", "txt", "parquet"):
        path = os.fsencode(tmp_path) + b"/caf\xe9." + suffix.encode()
        Path(os.fsdecode(path)).write_bytes(b"{}")
        with pytest.raises(InputError, match=r"caf\\xe9\.\w+': a file name in UTF-8 wanted"):
            first_ids(t0, os.fsdecode(path), tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet"):
        plan(str(path))


@pytest.mark.parametrize("suffix", ["tsv", "csv", "tsv.gz"])
def test_tables_are_read_by_their_suffix(suffix: str, t0: Any, tmp_path: Path) -> None:
    texts = ["a,b", 'c"d', "e\nf", "g;h"]
    path = tmp_path / f"a.{suffix}"
    opener: Any = gzip.open if suffix.endswith("gz") else open
    with opener(path, "wt", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if "tsv" in suffix else ",")
        writer.writerows([["id", "text"], *enumerate(texts)])
    assert written_texts(t0, str(path), tmp_path / "out") == texts


def test_csv_and_tsv_side_by_side_are_each_read_their_own_way(t0: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,id\na,1\nb,2\n")
    (tmp_path / "b.tsv").write_text("text\tid\nc,d\t3\n")
    assert written_texts(t0, str(tmp_path / "*"), tmp_path / "out") == ["a", "b", "c,d"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Text files, hidden and compiled ones beside them."""
    root = tmp_path / "in"
    for name in ("b.txt", "a/c.md", "a/deep/d.py", "z.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"text of {name}")
    for name in (".hidden", ".git/config", "__pycache__/d.pyc", "a/.b.swp"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"\xff\x00")
    return root


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", ["a/c.md", "a/deep/d.py", "b.txt", "z.txt"]),
        ("*.txt", ["b.txt", "z.txt"]),
        ("**/*.py", ["a/deep/d.py"]),
        ("**/*.[mpt]*[dty]", ["a/c.md", "a/deep/d.py", "b.txt", "z.txt"]),
        ("[a-y].txt", ["b.txt"]),
        ("a/deep/d.py", ["a/deep/d.py"]),
    ],
)
@pytest.mark.usefixtures("small_tasks")
def test_folders_and_globs_name_sorted_visible_files(
    pattern: str, found: list[str], folder: Path, t0: Any, tmp_path: Path
) -> None:
    texts = written_texts(t0, str(folder / pattern) if pattern else str(folder), tmp_path / "out")
    assert texts == [f"text of {name}" for name in found]


def test_a_file_that_several_inputs_name_is_read_once(folder: Path, t0: Any, tmp_path: Path) -> None:
    inputs = [str(folder / "z.txt"), str(folder / "*.txt"), str(folder), str(folder / "a" / ".." / "b.txt")]
    texts = written_texts(t0, inputs, tmp_path / "out")
    assert texts == [f"text of {name}" for name in ("z.txt", "b.txt", "a/c.md", "a/deep/d.py")]


def test_a_file_whose_name_looks_like_a_glob_is_found(t0: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "part[1].jsonl", ["ab"])
    assert first_ids(t0, path, tmp_path / "out", 3) == [100, 101, 2]


def test_inputs_of_several_kinds_stand_in_the_order_given(t0: Any, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("text")
    pq.write_table(pa.table({"text": ["parquet"]}), tmp_path / "c.parquet")
    inputs = [str(tmp_path / "b.txt"), jsonl(tmp_path / "a.jsonl", ["json"]), str(tmp_path / "c.parquet")]
    assert written_texts(t0, inputs, tmp_path / "out") == ["text", "json", "parquet"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("*.jsonl", r"input '.*\*\.jsonl' matches no file; check the pattern"),
        ("s-{000000...000003}.jsonl", "no such file or folder; check the path"),
        ("missing.jsonl", "no such file or folder; check the path"),
        ("empty", "holds no file with anything in it"),
    ],
)
def test_an_input_that_names_nothing_is_an_error_that_repeats_it(
    name: str, message: str, t0: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=message):
        write_shards(input=str(tmp_path / name), tokenizer=t0, output=tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()


def test_no_input_at_all_is_an_error(t0: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="input"):
        write_shards(input=[], tokenizer=t0, output=tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()


def in_memory() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"id": range(len(TEXTS)), "text": TEXTS})


def generator() -> Iterator[dict[str, Any]]:
    yield from ({"text": text} for text in TEXTS)


@pytest.mark.parametrize(
    "rows",
    [
        in_memory,
        lambda: in_memory().to_iterable_dataset(num_shards=3),
        lambda: [{"text": text} for text in TEXTS],
        generator,
    ],
    ids=["Dataset", "IterableDataset", "list", "generator"],
)
@pytest.mark.usefixtures("small_tasks")
def test_rows_in_memory_are_read_in_order(rows: Any, t0: Any, tmp_path: Path) -> None:
    assert written_texts(t0, rows(), tmp_path / "out") == TEXTS


def test_a_data_set_on_disk_is_read_by_object_and_by_name(t0: Any, tmp_path: Path) -> None:
    in_memory().save_to_disk(tmp_path / "saved")
    loaded = datasets.load_from_disk(str(tmp_path / "saved"))
    assert written_texts(t0, loaded, tmp_path / "object") == TEXTS
    assert written_texts(t0, loaded.select(range(5, 9)), tmp_path / "part") == TEXTS[5:9]
    backwards = loaded.select(range(len(TEXTS) - 1, -1, -1))
    assert written_texts(t0, backwards, tmp_path / "backwards") == TEXTS[::-1]
    assert written_texts(t0, str(tmp_path / "saved"), tmp_path / "name") == TEXTS


def test_what_a_transform_makes_of_the_rows_is_written(t0: Any, tmp_path: Path) -> None:
    in_memory().save_to_disk(tmp_path / "saved")
    for number, rows in enumerate((in_memory(), datasets.load_from_disk(str(tmp_path / "saved")))):
        louder = rows.with_transform(lambda batch: {"made": [text + "!" for text in batch["text"]]})
        made = written_texts(t0, louder, tmp_path / str(number), text_column="made")
        assert made == [f"{text}!" for text in TEXTS]


def test_a_dict_of_data_sets_is_refused_with_its_names(t0: Any, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"input: DatasetDict of \['test', 'train'\], needed: rows; give one of its values"
    ):
        written_texts(t0, datasets.DatasetDict(train=in_memory(), test=in_memory()), tmp_path / "out")


def test_of_a_saved_dict_of_data_sets_one_split_is_read(t0: Any, tmp_path: Path) -> None:
    splits = {"train": in_memory(), "test": in_memory().select([3])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    assert written_texts(t0, str(tmp_path / "saved"), tmp_path / "train") == TEXTS
    assert written_texts(t0, str(tmp_path / "saved"), tmp_path / "test", dataset_split="test") == TEXTS[3:4]
    with pytest.raises(InputError, match=r"saved': a data set without split 'dev'; name one of \['test', 'train'\]"):
        plan(str(tmp_path / "saved"), dataset_split="dev")


def test_a_saved_data_set_that_changed_is_not_taken_for_the_one_of_before(tmp_path: Path) -> None:
    in_memory().save_to_disk(tmp_path / "saved")
    before = plan(str(tmp_path / "saved")).identity
    assert plan(str(tmp_path / "saved")).identity == before
    in_memory().select(range(3)).save_to_disk(tmp_path / "new")
    (tmp_path / "saved").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "saved")
    assert plan(str(tmp_path / "saved")).identity != before


@pytest.mark.parametrize("rows", [in_memory, lambda: in_memory().to_iterable_dataset(), generator])
def test_rows_without_the_column_are_refused_with_the_columns_that_are_there(
    rows: Any, t0: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"no column 'body'; there are \[.*'text'\]"):
        write_shards(input=rows(), tokenizer=t0, output=tmp_path / "out", text_column="body", workers=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows", [(text for text in TEXTS), [1, 2]])
def test_rows_that_are_no_mappings_are_refused(rows: Any, t0: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 0 of the input: .*needed: a mapping with a key 'text'"):
        write_shards(input=rows, tokenizer=t0, output=tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("value", "found"), [(5, "int 5"), (float("nan"), "float nan"), (b"a", "bytes b'a'")])
def test_a_row_in_memory_that_is_no_text_is_named_by_its_number(
    value: Any, found: str, t0: Any, tmp_path: Path
) -> None:
    rows = [{"text": "ab"}, {"text": None}, {"text": value}, {"text": "c"}]
    with pytest.raises(InputError, match=f"data set, row 2: text wanted, found {found}"):
        write_shards(input=rows, tokenizer=t0, output=tmp_path / "out", workers=0)
    manifest = write_shards(
        input=rows, tokenizer=t0, output=tmp_path / "out", seq_length=5, bad_documents="skip", workers=0
    )
    assert manifest.info.skipped == {"not text": 1, "without text": 1}
    assert manifest.info.totals.documents == 2
