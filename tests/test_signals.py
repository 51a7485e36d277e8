"""A job that is told to end leaves a whole checkpoint of the step under way (G6), and Slurm's scripts say so to it and queue it again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from shard_writer.manifest import write_manifest
from tests.marked import write_marked
from tests.torchrun.start import ROOT
from train.__main__ import main
from train.checkpoint import find, global_step, read_position

SCRIPTS = sorted((ROOT / "recipes" / "slurm").glob("*.sbatch"))
CONFIG = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}'
# what stands for Slurm on one machine: the step is the command itself, so that it gets its signals
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
SCONTROL = '#!/bin/sh\nif [ "$1" = show ]; then echo localhost; else echo "$@" >>"$SCONTROL_LOG"; fi\n'


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """Of a training that would take hours, and says each step."""
    manifest = write_marked(tmp_path / "set", 8, 8, vocab_length=300)
    tokenizer = replace(manifest.info.tokenizer, name=str(tmp_path))
    write_manifest(replace(manifest, info=replace(manifest.info, tokenizer=tokenizer)))
    settings = {"shards": tmp_path / "set", "output_dir": tmp_path / "run", "model_config": CONFIG}
    settings |= {"per_device_train_batch_size": "2", "max_steps": "1000000", "logging_steps": "1", "streams": "8"}
    settings |= {"report_to": "none", "use_cpu": "true", "disable_tqdm": "true", "save_strategy": "no"}
    return [word for flag, value in settings.items() for word in (f"--{flag}", str(value))]


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that nothing outlives."""
    with open(log, "w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environment,
            stdout=output,
            stderr=output,
            text=True,
        )
    try:
        yield process
    finally:
        left = [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        process.kill()
        process.wait()
        for member in left:
            member.kill()


def wait_until(holds: Callable[[], bool], seconds: float, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def check_last_checkpoint(tmp_path: Path, log: str, global_batch: int) -> None:
    folder = find(tmp_path / "run", "true")
    assert folder is not None, log
    step = global_step(folder)
    assert folder.name == f"checkpoint-{step}"
    position = read_position(folder)
    assert position["consumed"] == global_batch * step, "what is behind the checkpoint is what was trained on"
    assert f"stopped by a signal after step {step}; --resume_from_checkpoint true goes on" in log
    assert not (tmp_path / "run" / "model.safetensors").exists(), "this is not its end"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_process_that_is_told_to_end_saves_the_step_under_way(
    number: signal.Signals, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)

    def tell_when_it_listens() -> None:
        while signal.getsignal(number) is before:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), number)

    threading.Thread(target=tell_when_it_listens, daemon=True).start()
    assert main(flags) == 0
    check_last_checkpoint(tmp_path, capsys.readouterr().out, 2)
    assert signal.getsignal(number) is before


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_slurm_lets_all_ranks_save_one_step_and_queues_the_job_again(flags: list[str], tmp_path: Path) -> None:
    log, calls, tools = tmp_path / "log", tmp_path / "calls", tmp_path / "bin"
    tools.mkdir()
    for name, script in [("srun", SRUN), ("scontrol", SCONTROL)]:
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n0", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = str(ROOT / "recipes" / "slurm" / "train.sbatch")
    with started(["bash", script, *flags], log, PATH=path, SCONTROL_LOG=str(calls), **slurm) as process:
        wait_until(lambda: "'loss'" in log.read_text(), 60, log)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 0, log.read_text()
    check_last_checkpoint(tmp_path, log.read_text(), 4)
    assert calls.read_text() == "requeue 4711\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_for_slurm_is_one_bash_takes_and_leaves_time_to_save(path: Path) -> None:
    text = path.read_text()
    checked = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=10)
    assert (checked.returncode, checked.stderr) == (0, "")
    options = dict(line[len("#SBATCH --") :].partition("=")[::2] for line in text.splitlines() if "#SBATCH" in line)
    assert options["signal"] == "B:USR1@120"
    assert options["ntasks-per-node"] == "1"
    assert options.keys() >= {"requeue", "open-mode", "time", "nodes"}
    assert f"`{path.name}`" in (ROOT / "recipes" / "README.md").read_text()


def test_the_scripts_are_there() -> None:
    assert [path.name for path in SCRIPTS] == ["train.sbatch", "write.sbatch"]
