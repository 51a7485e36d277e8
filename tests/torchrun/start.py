"""Start torchrun, with a limit."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import tests

ROOT = Path(tests.__file__).parent.parent


def torchrun(
    module: str,
    *arguments: str,
    ranks: int = 2,
    seconds: float = 120,
    max_restarts: int = 0,
    kill_when: Callable[[], bool] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`torchrun -m module arguments` on this machine.

    A hang becomes TimeoutError, says where every process stood, and leaves none behind. kill_when: is asked again and
    again; once it says so, torchrun and all of its processes are killed with SIGKILL.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", str(max_restarts)]
    command += ["-m", module, *arguments]
    environment = os.environ | {
        "PYTHONFAULTHANDLER": "1",  # SIGABRT prints where a process stands
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else gloo finds the addresses of the ranks before a restart
    }
    deadline = time.monotonic() + seconds
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stderr=errors) as process,
    ):
        while process.poll() is None:
            time.sleep(0.02)
            if kill_when is not None and kill_when():
                _signal_all(process, signal.SIGKILL)
                kill_when = None
            if time.monotonic() > deadline:
                _signal_all(process, signal.SIGABRT)
                errors.seek(0)
                raise TimeoutError(f"{module} took more than {seconds} s:\n{errors.read()}")
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, "", errors.read())


def _signal_all(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a process and to all that it started, and wait for their end."""
    started = psutil.Process(process.pid).children(recursive=True)
    for member in (process, *started):
        member.send_signal(number)
    process.wait()
    psutil.wait_procs(started, timeout=5)
