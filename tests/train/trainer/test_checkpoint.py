"""Positions in checkpoints (G6) in one process: runs that are stopped and go on, and which checkpoint is whole."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PrinterCallback, TrainerCallback

from tests.helpers.commands import train_main as main
from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.torchrun.journal import SEED, STEPS, STREAMS, expected_steps, write_set
from tokentar import Manifest
from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.format.manifest import write_manifest
from tokentar.train.trainer import checkpoint

ORDERS = pytest.mark.parametrize("order", ["epoch", "repeat", "resample"])
RATE = 0.01
Train = Callable[..., RecordingTrainer]


class Stopped(Exception):
    """The power went off."""


class StopAfter(TrainerCallback):
    """Lets a run die at the end of a step, before that is saved."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Stopped


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """273 sequences: an epoch is 11 global batches of 24."""
    torch.set_num_threads(1)
    return write_set(tmp_path / "set")


@pytest.fixture
def train(manifest: Manifest, tmp_path: Path) -> Train:
    """Trains in one output folder, saving every four steps; returns the trainer, stopped or not."""

    def run(
        batch_size: int = 24,
        accumulation: int = 1,
        *,
        stop: int | None = None,
        resume: Any = True,
        order: str = "epoch",
        streams: int | None = STREAMS,
        max_tokens: int | None = None,
        **settings: Any,
    ) -> RecordingTrainer:
        batches = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        saving = {"save_strategy": "steps", "save_steps": 4, "data_seed": SEED, "learning_rate": RATE}
        endless = {"max_steps": STEPS} if order != "epoch" and max_tokens is None else {}
        args = quiet_arguments(tmp_path / "run", **batches | saving | endless | settings)
        trainer = RecordingTrainer(
            model=tiny_model(), args=args, shards=manifest, streams=streams, order=order, max_tokens=max_tokens
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(StopAfter(stop))
        with suppress(Stopped):
            trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def steps(trainer: RecordingTrainer, first: int) -> dict[int, list[int]]:
    """The sequences, sorted, of each step that a trainer took, `first` its first."""
    each = trainer.args.gradient_accumulation_steps
    parts = [trainer.numbers[i : i + each] for i in range(0, len(trainer.numbers), each)]
    return {first + number: sorted(chain(*part)) for number, part in enumerate(parts)}


def rates(trainer: RecordingTrainer) -> dict[int, float]:
    return {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry}


@ORDERS
def test_a_stopped_run_goes_on_with_the_steps_of_the_one_that_was_not(
    manifest: Manifest, train: Train, order: str
) -> None:
    """Stopped in the second epoch and in the third, each time with another batch and accumulation."""
    expected = expected_steps(manifest, order)
    parts = [
        (train(24, 1, stop=14, order=order), 1, 14),
        (train(6, 4, stop=26, order=order), 13, 26),
        (train(3, 8, order=order), 25, 33),
    ]
    for trainer, first, last in parts:
        assert steps(trainer, first) == {step: expected[step] for step in range(first, last + 1)}
        assert trainer.state.max_steps == 33
    assert rates(parts[2][0]) == pytest.approx({step: RATE * (34 - step) / 33 for step in range(1, 34)})
    assert parts[2][0].state.epoch == 3.0


def test_a_checkpoint_holds_the_position_of_the_whole_job(manifest: Manifest, train: Train, tmp_path: Path) -> None:
    """Step 12 is the first of the second epoch, 264 samples behind it and its own 24."""
    train(6, 4, stop=14)
    assert json.loads((tmp_path / "run/checkpoint-12/data_position.json").read_text()) == {
        "fingerprint": manifest.fingerprint,
        "tokenizer": "0" * 32,
        "left_out": {"rows": 0, "shards": []},
        "order": "epoch",
        "seed": SEED,
        "streams": 24,
        "epoch": 1,
        "position": 24,
        "consumed": 288,
        "step": 12,
        "history": [{"step": 0, "epoch": 0, "position": 0, "global_batch_size": 24}],
    }


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "later"),
    [
        (10, 1, 24 + 26),  # 240 samples are left of the second epoch, 264 are in the third
        (25, 2, 4 + 5),
        (7, 5, 6 + 7),
        (4, 3, 20 + 22),
    ],
)
def test_with_another_global_batch_each_remaining_sequence_comes_once_and_the_schedule_knows_the_end(
    manifest: Manifest, train: Train, batch_size: int, accumulation: int, later: int
) -> None:
    train(24, 1, stop=14)
    trainer = train(batch_size, accumulation)
    assert trainer.state.global_step == trainer.state.max_steps == 12 + later
    taken, expected = list(steps(trainer, 13).values()), expected_steps(manifest, "epoch")
    size = batch_size * accumulation
    second = list(chain(*taken[: 240 // size]))
    assert len(set(second)) == len(second) == 240 // size * size
    assert not set(second) & set(expected[12])
    third = list(chain(*taken[240 // size :]))
    assert len(set(third)) == len(third) == 264 // size * size
    assert rates(trainer)[12 + later] == pytest.approx(RATE / (12 + later)), "the last step of a linear schedule"
    assert trainer.state.epoch == pytest.approx(3, abs=0.01)


@ORDERS
@pytest.mark.parametrize(("batch_size", "accumulation"), [(24, 1), (6, 4), (5, 1)])
def test_a_finished_run_takes_no_step_more(train: Train, order: str, batch_size: int, accumulation: int) -> None:
    first = train(24, 1, order=order)
    again = train(batch_size, accumulation, order=order)
    assert again.numbers == []
    assert again.state.global_step == 33
    for one, other in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@ORDERS
def test_a_budget_of_tokens_ends_a_run_also_with_another_batch(train: Train, order: str) -> None:
    """1920 tokens are 240 sequences of 8: 10 steps of 24; or 4 of them and then 144 sequences by 10, rounded up."""
    whole = train(24, 1, order=order, max_tokens=1920)
    assert whole.state.global_step == whole.state.max_steps == 10
    assert rates(whole)[10] == pytest.approx(RATE / 10)
    shutil.rmtree(whole.args.output_dir)
    train(24, 1, order=order, max_tokens=1920, stop=6)
    rest = train(5, 2, order=order, max_tokens=1920)
    assert len(rest.numbers) == 2 * 15
    assert rest.state.global_step == 4 + 15
    assert rest.train_loader.loader.consumed == 96 + 150
    assert train(24, 1, order=order, max_tokens=1920).numbers == [], "spent"


def test_one_token_more_is_one_step_more(train: Train) -> None:
    assert train(max_tokens=1921, resume=None).state.global_step == 11


def test_a_run_has_one_end(train: Train) -> None:
    with pytest.raises(SettingError, match="max_tokens: 100 and max_steps: 5; give one of them"):
        train(max_tokens=100, max_steps=5)
    with pytest.raises(SettingError, match="max_tokens: 0, needed: at least 1"):
        train(max_tokens=0)
    for order in ("repeat", "resample"):
        with pytest.raises(SettingError, match=f"order '{order}' has no end; set max_steps or max_tokens"):
            train(order=order, max_steps=-1)


def test_to_ask_trainer_not_to_skip_changes_nothing(manifest: Manifest, train: Train) -> None:
    train(stop=14)
    trainer = train(ignore_data_skip=True)
    assert steps(trainer, 13) == {step: expected_steps(manifest, "epoch")[step] for step in range(13, 34)}


@ORDERS
def test_to_train_again_begins_anew(manifest: Manifest, train: Train, order: str) -> None:
    train(stop=14, order=order)
    trainer = train(order=order, save_strategy="no")
    assert len(trainer.numbers) == 33 - 12
    trainer.batches.clear()
    trainer.train()
    assert steps(trainer, 1) == expected_steps(manifest, order)


# Which checkpoint is whole


def test_an_unfinished_checkpoint_is_passed_over(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(train(stop=14).args.output_dir)
    (folder / "checkpoint-12/trainer_state.json").unlink()
    (folder / "checkpoint-8/trainer_state.json").write_text('{"global_step": 8')
    assert len(train(stop=5).numbers) == 1, "the fifth step, from checkpoint 4"
    assert "checkpoint-12: unfinished, passed over" in caplog.text
    assert "checkpoint-8: unfinished, passed over" in caplog.text


def test_a_checkpoint_that_is_written_again_is_unfinished_until_it_is_whole(train: Train) -> None:
    folder = Path(train(stop=5).args.output_dir) / "checkpoint-4"
    assert checkpoint.global_step(folder) == 4
    checkpoint.write_position(folder, {}, 4)
    assert checkpoint.global_step(folder) is None


@pytest.mark.parametrize(("wish", "found"), [(None, None), (False, None), ("false", None), (True, 4), ("True", 4)])
def test_true_is_the_last_whole_checkpoint(train: Train, wish: Any, found: int | None) -> None:
    folder = Path(train(stop=6).args.output_dir)
    assert checkpoint.find(folder, wish) == (folder / f"checkpoint-{found}" if found else None)
    assert checkpoint.find(folder / "nowhere", True) is None


def test_a_name_that_is_no_whole_checkpoint_is_refused_with_the_last_that_is(train: Train, tmp_path: Path) -> None:
    train(stop=6)
    with pytest.raises(SettingError, match=r"run/checkpoint-5: no whole checkpoint .*`true` .*: \S+/run/checkpoint-4"):
        train(resume=str(tmp_path / "run/checkpoint-5"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "checkpoint-4: no data_position.json, so this is no checkpoint of a run on shards; start anew, or"),
        ('{"step": 4', r"data_position.json: not JSON \(.*\); use an earlier checkpoint"),
        ("[]", "data_position.json: list in it, needed: an object; use an earlier checkpoint"),
        ('{"step": 8}', r"data_position.json is of step 8, trainer_state.json of step 4; use an earlier checkpoint"),
    ],
)
def test_a_checkpoint_without_its_position_is_refused(
    train: Train, tmp_path: Path, text: str | None, message: str
) -> None:
    train(stop=6)
    folder = tmp_path / "run/checkpoint-4"
    (folder / "data_position.json").unlink()
    if text is not None:
        (folder / "data_position.json").write_text(text)
    with pytest.raises(SetError, match=message):
        train(resume=str(folder))


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", None), *((name, b"cut") for name in ("model.safetensors", "optimizer.pt", "rng_state.pth"))],
)
def test_a_damaged_file_of_a_checkpoint_is_told_with_its_folder(train: Train, name: str, content: bytes | None) -> None:
    folder = Path(train(stop=5).args.output_dir) / "checkpoint-4"
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(SetError, match=r"checkpoint-4: cannot be loaded into this model .* an earlier checkpoint"):
        train(resume=True)


def test_what_fails_later_is_not_put_down_to_the_checkpoint(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    train(stop=5)
    monkeypatch.setattr(RecordingTrainer, "training_step", fails)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        train()


def test_each_node_that_saves_has_the_position(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """With save_on_each_node, rank 0 of each node writes a checkpoint there; one that is not rank 0 of all stands for it."""
    monkeypatch.setattr(RecordingTrainer, "is_world_process_zero", lambda self: False)
    folder = Path(train(stop=5, save_on_each_node=True).args.output_dir) / "checkpoint-4"
    assert checkpoint.read_position(folder)["consumed"] == 4 * 24


def test_a_schedule_that_begins_anew_is_told(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(train(stop=5).args.output_dir) / "checkpoint-4"
    train(resume=True, stop=6)
    assert "start anew" not in caplog.text
    (folder / "optimizer.pt").unlink()
    train(resume=str(folder), stop=6)
    assert "checkpoint-4: no state of optimizer and learning rate in it" in caplog.text


def test_what_does_not_fit_the_checkpoint_is_refused_before_a_step(train: Train) -> None:
    train(stop=6)
    with pytest.raises(SetError, match="the seed of the order was 6 and is 7 now; use the same, or start anew"):
        train(data_seed=7)
    with pytest.raises(SetError, match="the order was 'epoch' and is 'repeat' now"):
        train(order="repeat")
    with pytest.raises(SettingError, match=r"streams: 24 cannot be dealt to 5 ranks × workers; .* that work: \[1, 2,"):
        train(streams=None, dataloader_num_workers=5)


def test_the_command_goes_on_from_the_last_checkpoint(
    manifest: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = replace(manifest.info.tokenizer, name=str(tmp_path))  # is not there, and is looked for nowhere else
    write_manifest(replace(manifest, info=replace(manifest.info, tokenizer=tokenizer)))
    config = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}'
    flags = ["--shards", str(manifest.root), "--model_config", config, "--output_dir", str(tmp_path / "run")]
    flags += ["--use_cpu", "true", "--report_to", "none", "--save_steps", "2", "--disable_tqdm", "true"]
    for steps_in_all in ("4", "6"):
        assert main([*flags, "--max_steps", steps_in_all, "--resume_from_checkpoint", "true"]) == 0
    assert f"going on from {tmp_path}/run/checkpoint-4: step 4, epoch 0, sample 32" in caplog.text
    assert "sequences read: rank 0: 16" in capsys.readouterr().out
