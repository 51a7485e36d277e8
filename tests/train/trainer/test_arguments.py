"""Each argument of Trainer works, makes no difference or is refused; what the command is to do; libraries' errors in words."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import TrainingArguments

from tests.helpers.commands import train_main as main
from tests.helpers.marked import write_marked
from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.torchrun.start import ROOT
from tokentar import Manifest, SettingError, ShardTrainer
from tokentar.shard_writer.format.manifest import write_manifest
from tokentar.train.trainer.training_arguments import FOR_METRICS, HARMLESS, REFUSED, TESTED, TRAINERS_OWN

CONFIG = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}'


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """41 sequences by a tokenizer that is looked for nowhere."""
    torch.set_num_threads(1)
    manifest = write_marked(tmp_path / "set", 4, [10, 10, 11, 10], vocab_length=300)
    manifest = replace(
        manifest, info=replace(manifest.info, tokenizer=replace(manifest.info.tokenizer, name=str(tmp_path)))
    )
    write_manifest(manifest)
    return manifest


@pytest.fixture
def command(manifest: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command with these flags; its exit status, standard output and error."""

    def run(**flags: Any) -> tuple[int, str, str]:
        named = {"shards": manifest.root, "model_config": CONFIG, "output_dir": tmp_path / "run", "use_cpu": "true"}
        named |= {"report_to": "none", "disable_tqdm": "true", "max_steps": "2"} | flags
        status = main([word for flag, value in named.items() for word in (f"--{flag}", str(value))])
        return status, *capsys.readouterr()

    return run


# The table


def test_every_argument_of_trainer_is_in_the_table_once() -> None:
    """A new one has to be looked at: does it do here what it says?"""
    kinds = (TESTED, TRAINERS_OWN, HARMLESS, REFUSED)
    listed = [name for kind in kinds for name in kind]
    assert sorted(listed) == sorted(field.name for field in fields(TrainingArguments))
    assert set(FOR_METRICS) <= {*TESTED, *TRAINERS_OWN}


@pytest.mark.parametrize("name", TESTED)
def test_what_the_table_calls_tested_has_that_test(name: str) -> None:
    file, _, test = TESTED[name].partition("::")
    places = list((ROOT / "tests").rglob(file))
    assert len(places) == 1
    assert f"def {test}(" in places[0].read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size: True is refused: each rank would shrink .* name a --per_dev"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy: group_by_length .*; see --order"),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy: sequential is refused"),
        ({"length_column_name": "n"}, "length_column_name: n is refused: all sequences are of one length"),
        ({"include_num_input_tokens_seen": "non_padding"}, "include_num_input_tokens_seen: non_padding .* use `all`"),
        ({"enable_jit_checkpoint": True}, r"enable_jit_checkpoint: True .* callbacks=\[LastCheckpoint\(\)\]"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config: .* is refused: accelerate does not see"),
        ({"accelerator_config": {"dispatch_batches": False}}, "accelerator_config: .* is refused"),
        ({"dataloader_num_workers": 1, "dataloader_persistent_workers": True}, "persistent_workers: True is refused"),
        ({"dataloader_num_workers": 1, "dataloader_prefetch_factor": 4}, "prefetch_factor: 4 is refused: workers always"),
        ({"dataloader_multiprocessing_context": "spawn"}, "dataloader_multiprocessing_context: spawn is refused"),
        ({"dataloader_in_order": False}, "dataloader_in_order: False is refused: the order of reading"),
        ({"label_names": ["targets"]}, r"label_names: \['targets'\] is refused: the labels of a batch are called"),
        ({"do_predict": True}, "do_predict: True is refused: there is no test set"),
    ],
)  # fmt: skip
def test_what_would_do_nothing_is_refused_with_the_reason(
    manifest: Manifest, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        ShardTrainer(tiny_model(), quiet_arguments(tmp_path / "run", **settings), shards=manifest)
    assert set(settings) & set(REFUSED)


@pytest.mark.parametrize(
    "settings",
    [
        {"label_names": ["labels"]},
        {"include_num_input_tokens_seen": "all"},
        {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}},
        {"ignore_data_skip": True, "dataloader_drop_last": True, "remove_unused_columns": False, "do_train": True},
    ],
)
def test_what_does_as_it_says_or_no_harm_is_taken(manifest: Manifest, tmp_path: Path, settings: dict[str, Any]) -> None:
    trainer = RecordingTrainer(tiny_model(), quiet_arguments(tmp_path, max_steps=2, **settings), shards=manifest)
    trainer.train()
    assert [len(batch) for batch in trainer.numbers] == [8, 8]
    if "include_num_input_tokens_seen" in settings:
        assert trainer.state.num_input_tokens_seen == 2 * 8 * 8


def test_a_batch_size_that_is_changed_after_the_order_was_laid_out_is_refused(
    manifest: Manifest, tmp_path: Path
) -> None:
    trainer = ShardTrainer(tiny_model(), quiet_arguments(tmp_path), shards=manifest)
    trainer.args.per_device_train_batch_size = 4
    with pytest.raises(SettingError, match="per_device_train_batch_size: 4, but 8 when this trainer was made"):
        trainer.train()


# What is to be done


@pytest.mark.parametrize(
    ("flags", "trains", "evaluated"),
    [
        ({}, True, []),
        ({"do_train": "true"}, True, []),
        ({"do_train": "false", "do_eval": "true"}, False, [0]),
        ({"do_train": "false", "eval_strategy": "epoch"}, False, [0]),
        ({"do_eval": "true"}, False, [0]),
        ({"eval_strategy": "steps", "eval_steps": "1"}, True, [1, 2]),
        ({"do_train": "true", "do_eval": "true"}, True, [2]),
        ({"do_train": "true", "do_eval": "true", "eval_strategy": "steps", "eval_steps": "1"}, True, [1, 2]),
    ],
)
def test_what_is_to_be_done(
    command: Any, manifest: Manifest, tmp_path: Path, flags: dict[str, str], trains: bool, evaluated: list[int]
) -> None:
    validation = {"validation_shards": manifest.root} if evaluated else {}
    status, out, _ = command(**validation, **flags)
    assert status == 0
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-2"] * trains
    assert (tmp_path / "run/model.safetensors").exists() == trains
    assert ("'loss'" in out or "sequences read: " in out) == trains
    printed = [float(text) for text in re.findall(r"^eval_loss = ([\d.]+)$", out, re.MULTILINE)]
    assert len(printed) == (evaluated in ([0], [2]))
    if trains:
        log = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
        assert [entry["step"] for entry in log if "eval_loss" in entry] == evaluated
    elif evaluated:
        assert 5 < printed[0] < 6.5, "about ln 300"


def test_nothing_to_do_is_an_error(command: Any, tmp_path: Path) -> None:
    status, _, errors = command(do_train="false")
    assert (status, errors) == (
        1,
        "error: do_train: False and no --do_eval true: nothing to do; leave out do_train to train\n",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"do_eval": "true", "resume_from_checkpoint": "true"}, "resume_from_checkpoint: true, but no training goes on;"),
        ({"do_eval": "true"}, "do_eval: true, but .*; write the set with --validation_fraction, or give --validation_shards"),
        ({"batch_eval_metrics": "true"}, "batch_eval_metrics: True is refused: it is for compute_metrics"),
        ({"include_for_metrics": "loss"}, "include_for_metrics: .*loss.* is refused: it is for compute_metrics"),
    ],
)  # fmt: skip
def test_flags_that_would_be_passed_over_are_refused(command: Any, flags: dict[str, str], message: str) -> None:
    status, _, errors = command(**flags)
    assert status == 1
    assert re.fullmatch(f"error: .*{message}.*\n", errors)


# What libraries refuse


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"lr_scheduler_type": "cosine_with_min_lr"},
         "lr_scheduler_type: cosine_with_min_lr with lr_scheduler_kwargs None: One of min_lr .*; give what it needs by --lr_s"),
        ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": '{"nothing": 1}'}, "lr_scheduler_type: cosine with .*nothing"),
        ({"optim": "lomo"}, "optim: lomo: You need to install `lomo_optim`"),
        ({"optim": "adafactor", "optim_args": "x"}, "optim: adafactor: .*; see --optim and --optim_args"),
        ({"use_liger_kernel": "true"}, "use_liger_kernel.* Please install"),
    ],
)  # fmt: skip
def test_a_setting_that_a_library_refuses_is_told_with_the_flag(
    command: Any, tmp_path: Path, flags: dict[str, str], message: str
) -> None:
    status, _, errors = command(**flags)
    assert status == 1
    assert re.fullmatch(f"error: .*{message}.*\n", errors)
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_schedule_that_has_what_it_needs_reaches_it(command: Any, tmp_path: Path) -> None:
    flags = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": 3e-5}', "max_steps": "3"}
    assert command(**flags, logging_steps="1", learning_rate="1e-4")[0] == 0
    log = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    rates = [entry["learning_rate"] for entry in log if "loss" in entry]
    assert rates == pytest.approx([1e-4, 8.25e-5, 4.75e-5]), "half a cosine from 1e-4 to 3e-5 in three steps"


def test_a_hub_that_is_not_reached_is_told_before_the_first_step(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    status, _, errors = command(push_to_hub="true", hub_token="hf_none", hub_model_id="nobody/nothing")
    assert status == 1
    assert re.fullmatch(r"error: push_to_hub: nobody/nothing: ConnectError: .*; leave push_to_hub out, or .*\n", errors)
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_the_losses(command: Any, manifest: Manifest, tmp_path: Path, monkeypatch: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    flags = {"report_to": "tensorboard", "logging_steps": "1", "eval_strategy": "steps", "eval_steps": "2"}
    assert command(**flags, validation_shards=manifest.root)[0] == 0
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    log = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    for name, tag in (("loss", "train/loss"), ("eval_loss", "eval/loss")):
        expected = [(entry["step"], pytest.approx(entry[name])) for entry in log if name in entry]
        assert [(event.step, event.value) for event in events.Scalars(tag)] == expected
        assert len(expected) == {"loss": 2, "eval_loss": 1}[name]
