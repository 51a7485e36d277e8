"""The README's programs run as they stand there, one after the other in one folder; those that use ranks on two of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tokenizers import byte_tokenizer
from tests.torchrun.start import ROOT
from tokentar import ShardLoader, open_shards

TORCHRUN = [
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "localhost:0",
]
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(program: str, folder: Path, name: str) -> str:
    (folder / name).write_text(program)
    on_ranks = "init_process_group" in program or "Accelerator" in program
    command = [sys.executable, *(TORCHRUN if on_ranks else []), name]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_the_programs_of_the_readme_run(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    assert len(PROGRAMS) == 4
    output = [run(program, tmp_path, f"program{number}.py") for number, program in enumerate(PROGRAMS)]
    totals = open_shards(tmp_path / "out").info.totals
    assert (totals.documents, totals.tokens) == (10_000, sum(len(f"document number {i}") + 1 for i in range(10_000)))
    assert str(totals) in output[0]
    assert sorted(re.findall(r"rank \d goes on", output[1])) == ["rank 0 goes on", "rank 1 goes on"]
    batches = len(ShardLoader(tmp_path / "out", batch_size=8, rank=0, world_size=2))
    read = sorted(re.findall(r"rank \d read \d+ batches", output[2]))  # ranks may end each other's lines
    assert read == [f"rank {rank} read {batches} batches" for rank in (0, 1)]
    shown = re.findall(r"\[.*?\]", output[3])
    assert len(shown) == 2
    assert len(set(shown)) == 1
