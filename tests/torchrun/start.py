"""Start torchrun, with a limit."""

import subprocess
import sys
from pathlib import Path

import tests

ROOT = Path(tests.__file__).parent.parent


def torchrun(module: str, *arguments: str, ranks: int = 2, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """`torchrun -m module arguments` on this machine; a hang becomes TimeoutExpired and leaves no process behind."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", module, *arguments]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
