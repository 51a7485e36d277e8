"""Two real ranks: together they train on everything once, and two that read the same stop and do not hang."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.marked import write_marked
from tests.helpers.recorder import quiet_arguments, tiny_model
from tests.helpers.worlds import canonical, canonical_steps, steps_of
from tests.torchrun.start import torchrun
from tokentar import Manifest, ShardLoader, ShardTrainer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]
Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Eight shards of four sequences, by a tokenizer that is looked for nowhere."""
    return write_marked(tmp_path / "set", 8, 4, vocab_length=300)


@pytest.fixture
def run(manifest: Manifest, tmp_path: Path) -> Run:
    """Train on two ranks; the exit status, what each rank reports, and standard error."""

    def run_job(**settings: Any) -> tuple[int, list[dict[str, Any]], str]:
        ended = torchrun("tests.torchrun.job", str(manifest.root), str(tmp_path), json.dumps(settings))
        files = [tmp_path / f"{rank}.json" for rank in range(2)]
        assert all(file.exists() for file in files), ended.stderr
        return ended.returncode, [json.loads(file.read_text()) for file in files], ended.stderr

    return run_job


def test_all_sequences_are_trained_on_once_by_one_rank(run: Run) -> None:
    status, ranks, errors = run(per_device_train_batch_size=2, max_steps=8)
    assert status == 0, errors
    seen = [{number for batch in rank["numbers"] for number in batch} for rank in ranks]
    assert seen[0] | seen[1] == set(range(32))
    assert not seen[0] & seen[1]
    assert [len(rank["numbers"]) for rank in ranks] == [8, 8]


def test_two_ranks_with_two_workers_and_accumulation_take_the_steps_of_the_order(run: Run, manifest: Manifest) -> None:
    status, ranks, errors = run(
        per_device_train_batch_size=1,
        gradient_accumulation_steps=3,
        dataloader_num_workers=2,
        num_train_epochs=2,
        data_seed=5,
        streams=8,
    )
    assert status == 0, errors
    order = ShardLoader(manifest, batch_size=1, seed=5, streams=8).order
    expected = [step for epoch in (0, 1) for step in canonical_steps(canonical(manifest, order, epoch), 6)]
    assert steps_of([rank["numbers"] for rank in ranks], 6) == expected
    assert [rank["steps"] for rank in ranks] == [10, 10]
    assert ranks[0]["weights"] == ranks[1]["weights"], "the replicas are one model"


def test_ranks_that_read_the_same_all_stop_with_the_reason(run: Run) -> None:
    status, ranks, _ = run(per_device_train_batch_size=2, max_steps=8, same_loader=True)
    assert status != 0
    for rank in ranks:
        assert "ranks 0 and 1 both read sequence" in rank["error"]
        assert rank["steps"] == 0
        assert rank["numbers"] == []


def test_ranks_evaluate_each_sequence_once(tmp_path: Path) -> None:
    """13 sequences by batches of three are 6, 6 and 1 for two ranks; each sees the predictions of all, in the order of the set."""
    manifest = write_marked(tmp_path / "set", 2, [7, 6], vocab_length=300)
    ended = torchrun("tests.torchrun.predictions", str(manifest.root), str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert reports[0] == reports[1]
    everything = list(range(13))
    seen = {name: each["seen"] for name, each in reports[0].items()}
    assert seen == {
        "at_once": [everything],
        "by_batch": [everything[:6], everything[6:12], everything[12:]],
        "own_average": [everything],
        "loss_alone": [],
    }
    assert [each["predicted"] for each in reports[0].values()] == [13, 1, 13, None]
    torch.manual_seed(0)
    args = quiet_arguments(tmp_path / "run", per_device_eval_batch_size=5)
    alone = ShardTrainer(tiny_model(), args, shards=manifest, validation_shards=manifest, streams=4).evaluate()
    assert [each["loss"] for each in reports[0].values()] == pytest.approx([alone["eval_loss"]] * 4, rel=1e-6)
