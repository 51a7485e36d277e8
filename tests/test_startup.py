"""What a command imports and starts before it does its work, and how Ctrl-C ends it meanwhile."""

import json
import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import jsonl
from tokentar.shard_writer.engines import local
from tokentar.shard_writer.tokenizing.describe import describe
from tokentar.shard_writer.writing import tokenize_step

pytestmark = pytest.mark.processes
HEAVY = {"torch", "transformers", "datasets", "pandas", "ray", "obstore", "boto3", "huggingface_hub", "matplotlib"}
WATCHED = """
import atexit, json, runpy, sys
def tell():
    server = sys.modules.get("multiprocessing.forkserver")
    has_server = server is not None and server._forkserver._forkserver_pid is not None
    sys.stderr.write("\\n" + json.dumps([has_server, sorted({name.split(".")[0] for name in sys.modules})]))
atexit.register(tell)
sys.argv = ["tokentar", *sys.argv[1:]]
runpy.run_module("tokentar", run_name="__main__")
"""  # a command that tells at its end whether a fork server runs, and what was imported
INTERRUPTED = """
import os, runpy, sys
number, at, module, *rest = sys.argv[1:]
class Interrupts:
    def find_spec(name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), int(number))
sys.meta_path.insert(0, Interrupts)
sys.argv = [module, *rest]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""  # a module that gets a signal when it imports another one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents, a tokenizer and a set of them."""
    folder = tmp_path_factory.mktemp("startup")
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    jsonl(folder / "a.jsonl", ["some text"] * 9)
    watched(folder, *words("write"), "--output", "set", "--workers", "0")
    return folder


def words(command: str) -> list[str]:
    """A command line for the folder."""
    write = "write --input a.jsonl --tokenizer tokenizer --seq_length 8"
    return (write if command == "write" else command).split()


def watched(folder: Path, *argv: str, status: int = 0) -> tuple[bool, set[str]]:
    """Run a command that ends with `status`; whether a fork server runs at its end, and the libraries that were imported."""
    command = [sys.executable, "-c", WATCHED, *argv]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert run.returncode == status, run.stderr
    has_server, imported = json.loads(run.stderr.splitlines()[-1])
    return has_server, set(imported)


@pytest.mark.parametrize(
    "command", ["--help", "--version", "show set", "verify set", "plan --shards set", "plan --help"]
)
def test_commands_that_read_a_set_import_no_library_that_takes_long(command: str, folder: Path) -> None:
    has_server, imported = watched(folder, *words(command))
    assert not imported & (HEAVY | {"pyarrow"})
    assert not has_server


def test_writing_with_a_tokenizer_in_a_file_imports_only_what_it_needs(folder: Path) -> None:
    has_server, imported = watched(folder, *words("write"), "--output", "again", "--workers", "1")
    assert not imported & HEAVY
    assert {"pyarrow", "fastokens"} <= imported
    assert has_server


@pytest.mark.parametrize(
    "flags", ["--help", "--workers 0 --output without", "--engine ray --ray_address localhost:1 --output x"]
)
def test_no_fork_server_starts_without_need(flags: str, folder: Path) -> None:
    has_server, imported = watched(folder, *words("write"), *flags.split(), status="ray" in flags)
    assert not has_server
    assert not imported & (HEAVY - {"ray"} if "ray" in flags else HEAVY)


def test_a_worker_imports_only_what_it_needs() -> None:
    spec = describe(byte_tokenizer(), name="x")
    with local.local(1, tokenize_step.prepare, spec) as engine:
        (imported,) = engine.run(eval, ["{name.split('.')[0] for name in __import__('sys').modules}"])
    assert not imported & HEAVY
    assert {"fastokens", "pyarrow", "numpy"} <= imported


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize(
    ("at", "command"),
    [
        ("logging", "tokentar --help"),
        ("tokentar.shard_writer.commands.main", "tokentar --help"),
        ("numpy", "tokentar verify set"),
        ("tokentar.shard_writer.writing.write", "tokentar write --input a.jsonl --tokenizer tokenizer --output interrupted"),
        ("transformers.utils", "tokentar write --input a.jsonl --tokenizer_engine transformers --tokenizer tokenizer --output interrupted"),
        ("torch", "tokentar train --help"),
        ("yaml", "tokentar.train --shards set"),
        ("torch._C", "tokentar.train --shards set"),
        ("transformers.trainer", "tokentar.train --shards set"),
    ],
)  # fmt: skip
def test_a_signal_while_modules_are_imported_ends_a_command_with_one_line(
    number: signal.Signals, at: str, command: str, folder: Path
) -> None:
    argv = [sys.executable, "-c", INTERRUPTED, str(int(number)), at, *command.split()]
    run = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (run.stderr, run.stdout) == ("interrupted while starting; nothing was done\n", "")
    assert run.returncode == 130


def test_an_ignored_signal_stays_ignored(folder: Path) -> None:
    argv = [sys.executable, "-c", INTERRUPTED, str(int(signal.SIGINT)), "numpy", "tokentar", "verify", "set"]
    ignore: Any = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731  # as `nohup` and `&` do
    run = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, preexec_fn=ignore)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_signals_are_not_for_the_process_that_workers_are_forked_from(number: signal.Signals) -> None:
    local.begin()
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    status = Path(f"/proc/{server._forkserver_pid}/status").read_text().splitlines()
    (blocked,) = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk:")]
    assert blocked & 1 << number - 1
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_ctrl_c_while_a_worker_starts_waits_until_it_has_started() -> None:
    class Interrupts:
        """Pickled on the way to a new worker process, in the midst of its start."""

        def __reduce__(self) -> tuple[Any, ...]:
            os.kill(os.getpid(), signal.SIGINT)
            return (dict, ())

    with local.local(1, id, Interrupts()) as engine:
        with pytest.raises(KeyboardInterrupt):
            list(engine.run(abs, [-1]))
        assert len(engine.pool._processes) == 1  # type: ignore[attr-defined]  # it is known, so that it is ended
