"""The audit of a job tells each step that was trained on something else than its order says, over restarts and world sizes."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.marked import write_marked
from tokentar import Manifest, ShardLoader
from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.train.trace.audit import Audit, faults, read_runs, totals

BATCH, ROWS = 24, 20
Job = Callable[..., dict[str, Any]]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return write_marked(tmp_path / "set", 24, ROWS)


@pytest.fixture
def train(manifest: Manifest, tmp_path: Path) -> Job:
    """Lets a job of some ranks take steps with an audit; returns its state. `crash`: steps that its checkpoint lacks."""
    runs = iter(range(1, 99))

    def run(ranks: int, steps: int, state: dict[str, Any] | None = None, at: int = 0, crash: int = 0) -> dict[str, Any]:
        number, kept = next(runs), {}
        for rank in range(ranks):
            loader = ShardLoader(
                manifest,
                batch_size=BATCH // ranks // 2,
                rank=rank,
                world_size=ranks,
                streams=12,
                global_batch_size=BATCH,
            )
            if state:
                loader.load_state_dict(state)
            audit = Audit(tmp_path / "audit", rank)
            audit.begin(number, loader, at)
            for step in range(at + 1, at + steps + 1):
                for _ in islice(loader, 0, None):
                    audit.add(loader.sample_keys)
                    if loader.position % BATCH == 0:
                        break
                audit.end_step(step)
                loader.load_state_dict(loader.state_dict())
                if step == at + steps - crash:
                    kept = loader.state_dict()
        return kept

    return run


def checked(manifest: Manifest, folder: Path) -> list[str]:
    return list(faults(folder, ShardLoader(manifest, batch_size=1, rank=0, world_size=1, streams=12)))


def test_a_job_that_follows_its_order_has_no_faults(manifest: Manifest, train: Job, tmp_path: Path) -> None:
    """Two ranks, then one after a crash that took three steps, then three, over the end of an epoch of 20 steps."""
    state = train(2, 9, crash=3)
    state = train(1, 10, state, at=6)
    train(3, 12, state, at=16)
    assert checked(manifest, tmp_path / "audit") == []
    assert totals(tmp_path / "audit") == (3, 28, 28 * BATCH)


def edit(path: Path, line: int, change: Callable[[dict[str, Any]], Any]) -> None:
    lines = path.read_text().splitlines()
    record = json.loads(lines[line])
    change(record)
    lines[line] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")


def test_a_sequence_that_is_missing_doubled_or_foreign_is_named_with_its_step(
    manifest: Manifest, train: Job, tmp_path: Path
) -> None:
    train(2, 4)
    path = tmp_path / "audit" / "rank-00001.jsonl"
    keys = json.loads(path.read_text().splitlines()[3])["keys"]
    edit(path, 3, lambda record: record["keys"].__setitem__(0, keys[1]))
    assert checked(manifest, tmp_path / "audit") == [
        f"step 3: {keys[0]} is missing",
        f"step 3: {keys[1]} was trained on, and is not of this step",
    ]


def test_a_step_that_a_rank_did_not_note_is_named(manifest: Manifest, train: Job, tmp_path: Path) -> None:
    train(2, 4)
    path = tmp_path / "audit" / "rank-00001.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + '\n{"step": 4, "ke')
    assert checked(manifest, tmp_path / "audit") == ["step 4: nothing from rank 1 of 2"]


def test_a_line_that_a_kill_cut_is_taken_back_by_the_next_start(manifest: Manifest, train: Job, tmp_path: Path) -> None:
    state = train(1, 4, crash=1)
    path = tmp_path / "audit" / "rank-00000.jsonl"
    path.write_text(path.read_text()[:-9])
    train(1, 3, state, at=3)
    assert checked(manifest, tmp_path / "audit") == []
    assert [run.leg.step for run in read_runs(tmp_path / "audit")] == [0, 3]


def test_a_resume_that_lost_a_step_is_found(manifest: Manifest, train: Job, tmp_path: Path) -> None:
    state = train(1, 4)
    train(1, 3, state, at=5)
    assert checked(manifest, tmp_path / "audit") == ["step 5: nothing from rank 0 of 1"]


def test_a_folder_without_an_audit_and_a_damaged_one_are_errors(manifest: Manifest, train: Job, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no rank-\*\.jsonl in it, needed: the folder that --audit was given"):
        checked(manifest, tmp_path)
    train(1, 2)
    path = tmp_path / "audit" / "rank-00000.jsonl"
    path.write_text(path.read_text().replace('{"step": 1', "{", 1))
    with pytest.raises(SetError, match=r"rank-00000\.jsonl:2: not a line of an audit"):
        checked(manifest, tmp_path / "audit")
