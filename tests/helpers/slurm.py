"""What stands for Slurm on one machine: scripts of its commands' names, which the scripts of recipes/slurm find before all others."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.torchrun.start import ROOT

SCRIPTS = sorted((ROOT / "recipes" / "slurm").glob("*.sbatch"))
JOB = 4711
# the step is the command itself; as with the real one SIGUSR1 is passed on to it, and SIGTERM means SIGKILL for it
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
trap 'kill -USR1 $!' USR1
trap 'kill -KILL $!' TERM
"$@" &
while kill -0 $! 2>/dev/null; do wait $!; done
wait $!
"""
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then echo "$3" | tr , '\\n'; else echo "$@" >>"$SCONTROL_LOG"; fi
"""


def slurm(folder: Path, *, nodes: str = "localhost", job: int = JOB, **tools: str) -> dict[str, str]:
    """The environment of a job's script, which notes what it asks of scontrol in `folder`/calls. tools: more such scripts."""
    place = folder / "bin"
    place.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, **tools}.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return {
        "PATH": f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SCONTROL_LOG": str(folder / "calls"),
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(len(nodes.split(","))),
        "SLURM_GPUS_ON_NODE": "2",
    }


def calls(folder: Path) -> str:
    """What was asked of scontrol but for the names of nodes, a line each."""
    log = folder / "calls"
    return log.read_text() if log.exists() else ""


def script(name: str) -> list[str]:
    """The command that runs a script of recipes/slurm as Slurm would."""
    return ["bash", str(ROOT / "recipes" / "slurm" / name)]


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
