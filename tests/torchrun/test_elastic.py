"""Runs that are killed and go on elsewhere (G5, G6), by real processes; tests/torture/train.py does more rounds of it."""

import json
from pathlib import Path

import pytest

from tests.torchrun import journal
from tests.torchrun.journal import Death, expected_steps
from tests.torchrun.start import torchrun
from tests.torture.train import Part, run_round

processes = pytest.mark.processes


@pytest.mark.parametrize("order", ["epoch", "repeat", "resample"])
def test_the_run_that_nobody_stops_takes_the_steps_of_the_order(tmp_path: Path, order: str) -> None:
    manifest = journal.write_set(tmp_path / "set")
    journal.run(tmp_path / "set", tmp_path, "whole", per_device_train_batch_size=24, order=order)
    record = journal.read(tmp_path, "whole")
    assert record.sequences == expected_steps(manifest, order)
    assert len(record.sequences) == 33
    assert record.losses[33] < record.losses[1] - 0.2, "the weights move, so that they can differ"


def test_another_run_is_told_from_the_same(tmp_path: Path) -> None:
    journal.write_set(tmp_path / "set")
    for name, settings in [("one", {}), ("same", {}), ("order", {"data_seed": 1}), ("rate", {"learning_rate": 6e-3})]:
        (tmp_path / name).mkdir()
        once = {"per_device_train_batch_size": 24, "save_strategy": "no"}
        journal.run(tmp_path / "set", tmp_path / name, "whole", **once | settings)
    found = {
        name: journal.differences(tmp_path / "one", tmp_path / name, ["whole"]) for name in ("same", "order", "rate")
    }
    assert found["same"] == []
    assert sum("read other sequences" in line for line in found["order"]) == 33
    assert not any("read other sequences" in line for line in found["rate"])
    assert any("has loss" in line for line in found["rate"])
    assert any(line.startswith("weights ") for line in found["rate"])


@processes
@pytest.mark.timeout(280)
def test_a_run_killed_on_4_2_and_1_ranks_ends_on_3_as_if_nobody_had_stopped_it(tmp_path: Path) -> None:
    """Killed in the second epoch at step 14, in the third while checkpoint 24 is written, and with all processes at step 27."""
    parts = [
        Part(ranks=4, workers=0, batch_size=3, accumulation=2, death=Death(step=14, rank=2)),
        Part(ranks=2, workers=2, batch_size=12, accumulation=1, death=Death(step=24, while_saving=True)),
        Part(ranks=1, workers=3, batch_size=6, accumulation=4, death=Death(step=27, from_outside=True)),
        Part(ranks=3, workers=0, batch_size=8, accumulation=1),
    ]
    assert run_round(tmp_path, parts, "epoch") == []
    taken = [journal.read(tmp_path / "parts", f"part{number}.0").sequences for number in range(4)]
    assert [min(steps) for steps in taken[:3]] == [1, 13, 21], "from the last whole checkpoint of 12, 20"
    assert max(taken[1]) == 24
    assert taken[0].keys() >= set(range(1, 14))
    assert max(taken[3]) == 33


@processes
@pytest.mark.timeout(150)
def test_torchrun_starts_a_killed_worker_again_and_the_run_goes_on(tmp_path: Path) -> None:
    manifest = journal.write_set(tmp_path / "set")
    death = json.dumps({"step": 11, "rank": 1})
    settings = json.dumps({"per_device_train_batch_size": 12, "order": "resample"})
    command = ("tests.torchrun.elastic", str(tmp_path / "set"), str(tmp_path), "run", death, settings)
    ended = torchrun(*command, ranks=2, max_restarts=1)
    assert ended.returncode == 0, ended.stderr
    first, second = (journal.read(tmp_path, f"run.{restart}").sequences for restart in (0, 1))
    steps = expected_steps(manifest, "resample")
    assert sorted(second) == list(range(9, 34)), "from checkpoint 8 on"
    assert second == {step: steps[step] for step in range(9, 34)}
    assert first == {step: steps[step] for step in first}
    assert max(first) in (10, 11)
