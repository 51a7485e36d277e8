"""The commands: what they print, their exit status, and errors of one line that say where, what and the way out."""

import logging
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import contents, first_ids, jsonl, rows_of
from tokentar import Manifest, open_shards, write_shards
from tokentar.__main__ import main
from tokentar.shard_writer.writing.tokenize_step import MapStep


@pytest.fixture
def write(tokenizer: str, tmp_path: Path) -> Callable[..., int]:
    """The command `write` with an output, the byte tokenizer and no worker processes."""

    def run(*flags: str) -> int:
        return main(["write", "--output", str(tmp_path / "out"), "--tokenizer", tokenizer, "--workers", "0", *flags])

    return run


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a failed command prints."""
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_write_prints_what_went_in_and_came_out(
    write: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["ab", "c", "", None] * 300)
    assert write("--input", source, "--seq_length", "16", "--num_shards", "4") == 0
    counts, skipped, done = capsys.readouterr().out.splitlines()
    assert counts == "train: 600 documents, 1,500 tokens = 93 sequences × 16 + 12 left over; 4 shards, 0.1 MB"
    assert skipped == "skipped: 300 empty, 300 without text"
    assert done.startswith(f"{tmp_path / 'out'}: done in ")


def test_a_recipe_writes_the_same_as_its_flags_and_as_the_function(
    write: Callable[..., int], tokenizer: str, tmp_path: Path
) -> None:
    source = jsonl(tmp_path / "a.jsonl", [f"number {i}" for i in range(50)])
    assert write("--input", source, "--seq_length", "16", "--seed", "3") == 0
    (tmp_path / "recipe.yaml").write_text(
        f"write: {{input: {source}, tokenizer: {tokenizer}, output: {tmp_path / 'recipe'}, seq_length: 16, seed: 4}}"
    )
    assert main(["write", "--config", str(tmp_path / "recipe.yaml"), "--seed", "3", "--workers", "0"]) == 0
    write_shards(input=source, tokenizer=tokenizer, output=tmp_path / "function", seq_length=16, seed=3, workers=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "recipe") == contents(tmp_path / "function")


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b'{"content":"ab"}\n', [], "a.jsonl:1: no column 'text'; there are ['content']; name the right one with --text_"),
        (b'{"text":5}\n', [], "a.jsonl:1: text wanted, found int 5; mend it, or leave such rows out with --bad_doc"),
        (b'{"text":5}\n', ["--bad_documents", "skip"], "0 sequences: 0 tokens < 16 (seq_length) in 0 documents of"),
        (b'{"text":"hello"}\n', [], "0 sequences: 6 tokens < 16 (seq_length) in 1 documents of split 'train'; give more"),
        (b"", [], "a.jsonl' holds no file with anything in it"),
        (b"{}", ["--eos_token", "<end>"], "eos_token: '<end>' is not in the vocabulary of tokenizer"),
        (b"{}", ["--seq_length", "0"], "seq_length: 0, needed: at least 1"),
        (b"{}", ["--seq_len", "16"], "unknown flag '--seq_len'; nearest: seq_length"),
        (b"{}", ["--tokenizer", "/nowhere/at/all"], "tokenizer '/nowhere/at/all': no such folder"),
        (b"{}", ["--tokenizer", "nowhere"], "tokenizer 'nowhere' cannot be loaded"),
        (b'{\n"text":"a"\n}\n', ["--bad_documents", "skip"], "one JSON object a line wanted, this one goes over several"),
        (b'{"text":"a"}\n' * 20, ["--validation_fraction", "1e-9"], "or, where it is held out, a larger --validation_frac"),
    ],
)  # fmt: skip
def test_what_cannot_work_ends_with_status_1_one_line_and_no_files(
    content: bytes,
    flags: list[str],
    message: str,
    write: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    assert write("--input", str(tmp_path / "a.jsonl"), "--seq_length", "16", *flags) == 1
    assert message in error_of(capsys)
    assert not (tmp_path / "out").exists()


def test_a_column_is_chosen_by_its_name(write: Callable[..., int], tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["ab"], column="content")
    assert write("--input", source, "--seq_length", "3", "--text_column", "content") == 0
    assert rows_of(open_shards(tmp_path / "out")) == [[100, 101, 2]]


def test_a_set_is_replaced_only_when_asked_for(
    write: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["abcdefg"] * 10)
    flags = ["--input", source, "--seq_length", "8"]
    other = ["--input", source, "--seq_length", "4"]
    assert write(*flags) == 0
    capsys.readouterr()
    assert write(*other) == 1
    assert "already holds dataset.json, manifest.jsonl, train-000000.tar" in error_of(capsys)
    assert write(*other, "--overwrite") == 0


def test_a_job_that_is_started_again_says_that_it_is_complete_and_ends_well(
    write: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--input", jsonl(tmp_path / "a.jsonl", ["abcdefg"] * 10), "--seq_length", "8"]
    copy = ["reshard", str(tmp_path / "out"), str(tmp_path / "copy"), "--num_shards", "2"]
    for command in (lambda: write(*flags), lambda: main(copy)):
        assert command() == 0
        lines = capsys.readouterr().out.splitlines()
        assert command() == 0
        assert capsys.readouterr().out.splitlines() == [
            *lines[:-1],
            f"{lines[-1].partition(': ')[0]}: complete already, nothing to write",
        ]


@pytest.mark.parametrize(
    ("stop", "message", "status"),
    [
        (KeyboardInterrupt(), "interrupted; the same command goes on from what is done", 130),
        (
            OSError(28, "No space left on device", "/disk"),
            "error: /disk: No space left on device; the same command goes",
            1,
        ),
    ],
    ids=["interrupt", "full disk"],
)
def test_a_run_that_was_stopped_says_that_it_can_go_on(
    stop: BaseException,
    message: str,
    status: int,
    write: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*arguments: Any) -> None:
        raise stop

    flags = ["--input", jsonl(tmp_path / "a.jsonl", ["abcdefg"] * 10), "--seq_length", "8"]
    with monkeypatch.context() as patch:
        patch.setattr(MapStep, "__call__", stopped)
        assert write(*flags) == status
    assert message in capsys.readouterr().err
    assert write(*flags) == 0


def test_an_output_that_cannot_be_is_no_run_that_goes_on(
    write: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(jsonl(tmp_path / "a.jsonl", ["abcdefg"] * 10))
    before = file.read_bytes()
    assert write("--input", str(file), "--seq_length", "8", "--output", str(file)) == 1
    assert "goes on" not in error_of(capsys)
    assert file.read_bytes() == before


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["help"], 2), (["--help"], 0), (["-h"], 0)])
def test_without_a_command_the_commands_are_listed(
    argv: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == status
    printed = capsys.readouterr()
    usage = printed.err if status else printed.out
    assert all(f"\n  {command} " in usage for command in ("write", "verify", "reshard", "show"))


def test_an_unknown_command_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    for word, nearest in (("wirte", "write"), ("trian", "train"), ("reshrad", "reshard")):
        assert main([word, "--help"]) == 2
        assert capsys.readouterr().err.startswith(f"error: no command {word!r}; nearest: {nearest}\nusage: tokentar ")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert capsys.readouterr().out == f"tokentar {pyproject['project']['version']}\n"


def test_train_says_how_to_start_it_with_the_flags_that_were_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "my recipe.yaml", "--max_steps", "5"]) == 2
    first, line = capsys.readouterr().err.splitlines()
    assert first.startswith("error: tokentar train starts no processes, torchrun does; type this")
    assert line == "  torchrun --nproc-per-node gpu -m tokentar.train --config 'my recipe.yaml' --max_steps 5"


def test_train_lists_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    flags = capsys.readouterr().out
    assert all(f"--{flag} " in flags for flag in ("shards", "config", "separate_documents", "max_steps"))


def test_verify_passes_a_whole_set_and_names_what_differs(
    marked: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    root = marked(4, 4).root
    assert main(["verify", str(root)]) == 0
    assert capsys.readouterr().out == f"{root}: 4 shards, 40,960 bytes, all as written\n"
    flipped = bytearray((root / "train-000000.tar").read_bytes())
    flipped[5000] ^= 0x10
    (root / "train-000000.tar").write_bytes(flipped)
    os.truncate(root / "train-000001.tar", 2048)
    (root / "train-000002.tar").unlink()
    (root / "train-000004.tar").write_bytes(b"")
    assert main(["verify", str(root)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = [line for line in printed.err.splitlines() if line.startswith("train-")]
    assert [line.split(": ")[0] for line in lines] == [f"train-00000{i}.tar" for i in (0, 1, 2, 4)]
    assert (
        printed.err.splitlines()[-1]
        == f"{root}: 4 faults; restore these files, write them again with --repair, or write the set again"
    )


@pytest.mark.parametrize("command", ["verify", "show"])
def test_a_set_that_is_missing_or_names_foreign_files_is_one_line_of_error(
    command: str, marked: Callable[..., Manifest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "nowhere")]) == 1
    assert "no dataset.json, so there is no finished set here" in error_of(capsys)
    path = marked(1, 4).root / "manifest.jsonl"
    path.write_text(path.read_text().replace("train-000000", "../train-000000"))
    assert main([command, str(path.parent)]) == 1
    assert "manifest.jsonl:1: shard '../train-000000' is not a plain name" in error_of(capsys)


def test_show_prints_sequences_with_their_document_boundaries(
    write: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["ab", "c", "déf", "g"])
    assert write("--input", source, "--seq_length", "5", "--num_shards", "2", "--shuffle", "false") == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "── sequence 0 · train-000000.tar row 0 · 5 tokens, 2 document ends",
        "ab",
        "⏎ end of document ⏎",
        "c",
        "⏎ end of document ⏎",
        "",
        "── sequence 1 · train-000001.tar row 0 · 5 tokens, 1 document ends",
        "déf",
        "⏎ end of document ⏎",
        "",
    ]
    assert main(["show", str(tmp_path / "out"), "--rows", "1"]) == 0
    assert capsys.readouterr().out.count("── sequence") == 1
    assert main(["show", str(tmp_path / "out"), "--split", "test"]) == 1
    assert "no split 'test'; there are ['train']" in error_of(capsys)


def test_only_our_own_lines_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    assert main(["verify", "/nowhere"]) == 1
    for name in ("botocore.credentials", "tokentar.shard_writer"):
        logging.getLogger(name).info("a line of %s", name)
    assert capsys.readouterr().err.splitlines()[1:] == ["a line of tokentar.shard_writer"]


def test_show_and_verify_refuse_what_would_show_nothing(
    write: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["ab"])
    assert write("--input", source, "--seq_length", "1") == 0
    capsys.readouterr()
    for words, message in (
        (["show", str(tmp_path / "out"), "--rows", "0"], "rows: 0, needed: at least 1"),
        (["verify", source], "a.jsonl: no dataset.json, so there is no finished set here"),
    ):
        assert main(words) == 1
        assert message in error_of(capsys)


def test_show_refuses_a_tokenizer_that_did_not_write_the_set(
    write: Callable[..., int], tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = byte_tokenizer()
    other.add_tokens(["<new>"])
    other.save_pretrained(tmp_path / "other")
    assert write("--input", jsonl(tmp_path / "a.jsonl", ["ab"]), "--seq_length", "3") == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "out"), "--tokenizer", str(tmp_path / "other")]) == 1
    assert "fingerprint" in (line := error_of(capsys))
    assert "(260 tokens)" in line
    assert "(259 tokens)" in line


def test_show_asks_for_the_tokenizer_of_a_set_whose_tokenizer_had_no_name(
    t0: Any, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_ids(t0, [{"text": "ab"}], tmp_path / "out", 3)
    assert main(["show", str(tmp_path / "out")]) == 1
    assert "--tokenizer" in error_of(capsys)
    assert main(["show", str(tmp_path / "out"), "--tokenizer", tokenizer]) == 0


@pytest.mark.processes
def test_output_that_nobody_reads_on_ends_a_command_without_a_word(tokenizer: str, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["abcdefg" * 1000] * 100)
    write_shards(input=source, tokenizer=tokenizer, output=tmp_path / "set", seq_length=64, workers=0)
    command = [sys.executable, "-m", "tokentar", "show", str(tmp_path / "set"), "--rows", "10000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        assert shown.stdout.readline().startswith("── sequence 0".encode())
        shown.stdout.close()
        assert shown.stderr.read() == b""
        assert shown.wait(60) == 128 + signal.SIGPIPE


@pytest.mark.processes
def test_writing_by_transformers_waits_for_no_import_of_torch_or_pandas(tokenizer: str, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["some text"] * 9)
    flags = ["--input", source, "--tokenizer", tokenizer, "--output", str(tmp_path / "out"), "--seq_length", "8"]
    flags += ["--tokenizer_engine", "transformers"]
    command = [sys.executable, "-X", "importtime", "-m", "tokentar", "write", *flags]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stderr.splitlines()
    imported = {line.split("|")[-1].strip() for line in lines if line.startswith("import time:")}
    assert {"transformers", "tokentar.shard_writer.writing.write"} <= imported
    assert not [name for name in imported if name.split(".")[0] in ("torch", "pandas")]
    assert lines == [line for line in lines if "PyTorch" not in line]


@pytest.mark.processes
def test_a_killed_run_leaves_no_process_and_its_rerun_gives_the_same_bytes(tokenizer: str, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["some text of a document " * 200] * 3000)
    flags = ["--input", source, "--tokenizer", tokenizer, "--seq_length", "512", "--num_shards", "12"]
    command = [sys.executable, "-m", "tokentar", "write", *flags, "--output", str(tmp_path / "out")]
    run = subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: list((tmp_path / "out" / ".spool").glob("0*.json")), "a finished task")
        workers = psutil.Process(run.pid).children(recursive=True)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert len(workers) >= 2
    assert not (tmp_path / "out" / "dataset.json").exists()
    wait_until(lambda: not any(worker.is_running() for worker in workers), "the end of the workers")
    for output in ("out", "whole"):
        assert main(["write", *flags, "--output", str(tmp_path / output), "--workers", "0"]) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for a condition; the test fails when it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.02)
