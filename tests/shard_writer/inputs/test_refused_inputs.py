"""A refused input is one line of ours on standard error: no library adds log lines of its own, in no process."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from tokentar.shard_writer.inputs import libraries


def folder_of_no_parquet(folder: Path) -> list[str]:
    (folder / "set").mkdir()
    (folder / "set" / "a.parquet").write_bytes(b"PAR1 no" * 99)
    return [str(folder / "set"), "--input_format", "dataset"]


def arrow_that_is_cut(folder: Path) -> list[str]:
    table = pa.table({"text": ["ab" * 100] * 10_000})
    with pa.ipc.new_stream(folder / "cut.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=1000)
    (folder / "cut.arrow").write_bytes((folder / "cut.arrow").read_bytes()[:1_000_000])
    return [str(folder / "cut.arrow")]


def saved_data_set_that_is_cut(folder: Path) -> list[str]:
    datasets.Dataset.from_dict({"text": ["ab"] * 99}).save_to_disk(folder / "saved")
    (file,) = (folder / "saved").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:200])
    return [str(folder / "saved")]


@pytest.mark.processes
@pytest.mark.parametrize("make", [folder_of_no_parquet, arrow_that_is_cut, saved_data_set_that_is_cut])
def test_a_refused_input_is_one_line(make: Callable[[Path], list[str]], tokenizer: str, tmp_path: Path) -> None:
    flags = ["--tokenizer", tokenizer, "--output", str(tmp_path / "out"), "--seq_length", "8", "--workers", "1"]
    command = [sys.executable, "-m", "tokentar", "write", *flags, "--input", *make(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(tmp_path) in line


def test_libraries_log_again_behind_the_reading(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("datasets.packaged_modules")
    with libraries.silent():
        logger.error("during")
    logger.error("behind")
    assert "during" not in caplog.messages
    assert logger.isEnabledFor(logging.ERROR)


def test_an_error_of_many_lines_becomes_one() -> None:
    assert libraries.one_line(ValueError("a\n  b\nc")) == "ValueError: a b c"
