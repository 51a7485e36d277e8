"""A job that is told to end leaves a whole checkpoint of the step under way (G6), and Slurm's scripts say so to it and queue it again."""

import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.commands import train_main as main
from tests.helpers.marked import write_marked
from tests.helpers.slurm import SCRIPTS, calls, script, slurm, started, wait_until
from tests.torchrun.start import ROOT
from tokentar.shard_writer.format.manifest import write_manifest
from tokentar.train.trainer.checkpoint import find, global_step, read_position

CONFIG = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}'


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
    log = tmp_path / "log"
    with started([*script("train.sbatch"), *flags], log, **slurm(tmp_path)) as process:
        wait_until(lambda: "'loss'" in log.read_text(), 60, log)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 0, log.read_text()
    check_last_checkpoint(tmp_path, log.read_text(), 4)
    assert calls(tmp_path) == "requeue 4711\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
@pytest.mark.parametrize("status", [0, 3])
def test_a_step_that_ends_by_itself_gives_the_job_its_status_and_is_not_queued_again(
    path: Path, status: int, tmp_path: Path
) -> None:
    step = f"#!/bin/sh\nexit {status}\n"
    with started(script(path.name), tmp_path / "log", **slurm(tmp_path, torchrun=step, ray=step)) as process:
        assert process.wait(20) == status, (tmp_path / "log").read_text()
    assert calls(tmp_path) == ""


STEP = """#!/bin/bash
trap 'echo told >>"$HEARD"; exit 5' USR1
echo started >"$HEARD"
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(
    ("name", "number", "heard", "status", "asked"),
    [
        ("train.sbatch", signal.SIGUSR1, "started\ntold\n", 0, "requeue 4711\n"),
        ("train.sbatch", signal.SIGTERM, "started\ntold\n", 5, ""),  # by Slurm itself, if at all
        ("write.sbatch", signal.SIGUSR1, "started\n", 0, "requeue 4711\n"),  # killed: it goes on from what is done
        ("write.sbatch", signal.SIGTERM, "started\n", 128 + signal.SIGKILL, ""),
    ],
)
def test_what_a_signal_to_a_script_is_to_its_step(
    name: str, number: signal.Signals, heard: str, status: int, asked: str, tmp_path: Path
) -> None:
    log, told = tmp_path / "log", tmp_path / "heard"
    with started(script(name), log, HEARD=str(told), **slurm(tmp_path, torchrun=STEP, ray=STEP)) as process:
        wait_until(lambda: told.exists() and told.read_text() == "started\n", 20, log)
        process.send_signal(number)
        assert process.wait(20) == status, log.read_text()
    assert (told.read_text(), calls(tmp_path)) == (heard, asked)


def test_the_nodes_of_a_writing_share_a_token_that_no_other_job_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    environment, said = slurm(tmp_path, ray='#!/bin/sh\necho "$RAY_AUTH_MODE $RAY_AUTH_TOKEN"\n'), []
    for log in (tmp_path / "first", tmp_path / "second"):
        with started(script("write.sbatch"), log, **environment) as process:
            assert process.wait(20) == 0
        said.append(log.read_text())
    assert all(re.fullmatch("token [0-9a-f]{64}\n", line) for line in said), said
    assert said[0] != said[1]


def test_a_set_that_is_finished_when_time_is_up_is_not_written_again(tmp_path: Path) -> None:
    log, told = tmp_path / "log", tmp_path / "heard"
    ends = "#!/bin/bash\ntrap 'exit 0' TERM\necho started >\"$HEARD\"\nwhile :; do sleep 0.05; done\n"
    with started(script("write.sbatch"), log, HEARD=str(told), **slurm(tmp_path, srun=ends)) as process:
        wait_until(told.exists, 20, log)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == 0, log.read_text()
    assert calls(tmp_path) == ""


def test_a_job_that_slurm_does_not_queue_again_fails(tmp_path: Path) -> None:
    log, told = tmp_path / "log", tmp_path / "heard"
    refuse = "#!/bin/sh\nif [ $1 = show ]; then echo localhost; else echo disabled >&2; exit 1; fi\n"
    tools = slurm(tmp_path, torchrun=STEP, scontrol=refuse)
    with started(script("train.sbatch"), log, HEARD=str(told), **tools) as process:
        wait_until(told.exists, 20, log)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(20) == 1, log.read_text()
    assert "disabled" in log.read_text()


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
