"""FSDP by Trainer's own flag: the losses of a run that shards nothing, also when it goes on with another number of ranks (G5, G6)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.torchrun import journal
from tests.torchrun.start import torchrun

BATCH = {2: 12, 3: 8}  # of a rank: 24 in all
STEPS = {"max_steps": 8, "data_seed": 6, "learning_rate": 5e-3, "eval_strategy": "steps", "eval_steps": 8}


def sharded(folder: Path, name: str, ranks: int, **settings: Any) -> dict[str, Any]:
    """What a run with FSDP reports."""
    options = json.dumps(STEPS | {"per_device_train_batch_size": BATCH[ranks]} | settings)
    ended = torchrun("tests.torchrun.sharded", str(folder / "set"), str(folder), name, options, ranks=ranks)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return report


@pytest.mark.processes
@pytest.mark.timeout(200)
def test_a_sharded_model_learns_as_a_whole_one_and_goes_on_with_other_ranks(tmp_path: Path) -> None:
    manifest = journal.write_set(tmp_path / "set")
    first = sharded(tmp_path, "first", 2, save_strategy="steps", save_steps=4)
    checkpoint = str(tmp_path / "run" / "checkpoint-4")
    second = sharded(tmp_path, "second", 3, resume_from_checkpoint=checkpoint)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    args = quiet_arguments(tmp_path / "whole", per_device_train_batch_size=24, **STEPS)
    whole = RecordingTrainer(model=tiny_model(), args=args, shards=manifest, validation_shards=manifest, streams=24)
    whole.train()
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.03, "the weights move"
    for report in (first, second):
        assert report["kind"] == "FSDPGPT2LMHeadModel", "it is sharded"
        assert report["refused"].startswith("fsdp: accelerate shards models over GPUs only"), "else it would not be"
        assert report["losses"] == pytest.approx(losses, abs=1e-4), "those before a checkpoint are in its log"
        assert report["eval_losses"] == pytest.approx([whole.evaluate()["eval_loss"]], abs=1e-4)
