"""Real ranks on a mixture: killed, and gone on with on other numbers of ranks, the audit finds each planned sequence once."""

import json
from pathlib import Path

import pytest

from tests.helpers.marked import write_marked
from tests.torchrun.start import torchrun
from tokentar.__main__ import main

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def test_a_killed_job_on_other_ranks_with_other_weights_is_trained_on_what_its_order_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks, killed after the checkpoint of step 8 is whole; then one rank with other weights; then three with those."""
    for name, shards, rows in (("code", 4, 15), ("web", 12, 20)):
        write_marked(tmp_path / name, shards, rows, vocab_length=300)
    config = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 300}
    flags = {"output_dir": tmp_path / "run", "model_config": json.dumps(config), "use_cpu": "true", "save_steps": 4}
    flags |= {"report_to": "none", "streams": 12, "audit": tmp_path / "audit", "resume_from_checkpoint": "true"}

    def train(weights: tuple[float, float], ranks: int, batch: int, steps: int, killed_at: int | None = None) -> None:
        shards = [f"--shards={tmp_path / name}={weight}" for name, weight in zip(("code", "web"), weights, strict=True)]
        words = flags | {"per_device_train_batch_size": batch, "max_steps": steps}
        saved = tmp_path / "run" / f"checkpoint-{killed_at}" / "trainer_state.json"
        ended = torchrun(
            "tokentar.train",
            *shards,
            *(f"--{key}={value}" for key, value in words.items()),
            ranks=ranks,
            kill_when=saved.exists if killed_at else None,
        )
        assert (ended.returncode == 0) == (killed_at is None), ended.stderr

    train((0.3, 0.7), ranks=2, batch=6, steps=4000, killed_at=8)
    train((0.8, 0.2), ranks=1, batch=12, steps=14)
    train((0.8, 0.2), ranks=3, batch=4, steps=20)
    capsys.readouterr()
    named = ["--shards", str(tmp_path / "code"), str(tmp_path / "web")]
    assert main(["trace", *named, "--check", str(tmp_path / "audit")]) == 0
    assert "3 starts, 20 steps, 240 sequences, 0 faults" in capsys.readouterr().out
    path = tmp_path / "audit" / "rank-00002.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1].replace("/0000", "/0001")]) + "\n")
    assert main(["trace", *named, "--check", str(tmp_path / "audit")]) == 1
    assert "step 20: " in capsys.readouterr().err
