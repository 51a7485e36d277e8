"""Trainer on one process: it trains on what the loader yields, as long as the plan says, and logs what data cost."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.commands import train_main as main
from tests.helpers.marked import write_marked
from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.worlds import rest_of_epoch
from tokentar import Manifest, ShardLoader, write_shards
from tokentar.shard_writer.format.manifest import write_manifest
from tokentar.train.trainer.arguments import DataArguments, ModelArguments

Train = Callable[..., RecordingTrainer]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A model of this size only loses by more."""
    torch.set_num_threads(1)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """41 sequences in four shards, by a tokenizer that is not at hand (and is looked for nowhere else)."""
    manifest = write_marked(tmp_path / "set", 4, [10, 10, 11, 10], vocab_length=300)
    tokenizer = replace(manifest.info.tokenizer, name=str(tmp_path))
    manifest = replace(manifest, info=replace(manifest.info, tokenizer=tokenizer))
    write_manifest(manifest)
    return manifest


@pytest.fixture
def trained(manifest: Manifest, tmp_path: Path) -> Train:
    """A factory of trainers that have been trained on the set."""

    def train(streams: int | None = None, **settings: Any) -> RecordingTrainer:
        args = quiet_arguments(tmp_path / "run", **settings)
        trainer = RecordingTrainer(model=tiny_model(), args=args, shards=manifest, streams=streams)
        trainer.train()
        return trainer

    return train


@pytest.mark.parametrize("workers", [0, 1])
def test_the_model_is_trained_on_what_the_loader_yields(manifest: Manifest, trained: Train, workers: int) -> None:
    trainer = trained(
        per_device_train_batch_size=3, num_train_epochs=3, data_seed=4, dataloader_num_workers=workers, streams=4
    )
    loader = ShardLoader(manifest, batch_size=3, seed=4, streams=4)
    epochs = [rest_of_epoch(loader) for _ in range(3)]
    assert trainer.numbers == [batch for batches in epochs for batch in batches]
    assert len(trainer.numbers) == 3 * (40 // 3) == trainer.state.global_step


def test_an_epoch_ends_on_a_whole_global_batch(trained: Train) -> None:
    trainer = trained(
        per_device_train_batch_size=3, gradient_accumulation_steps=4, num_train_epochs=2, streams=4, learning_rate=0.1
    )
    assert len(trainer.get_train_dataloader()) == 12, "3 global batches of 12 in 40 samples"
    assert trainer.state.max_steps == trainer.state.global_step == 6
    assert trainer.state.epoch == 2.0
    assert [len(batch) for batch in trainer.numbers] == [3] * 24
    for epoch in (trainer.numbers[:12], trainer.numbers[12:]):
        assert len({number for batch in epoch for number in batch}) == 36
    assert trainer.train_loader.loader.plan.left_out == 5
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0.1 * (6 - step) / 6 for step in range(6)]), "the schedule spans both epochs"


def test_accumulation_takes_the_same_step_as_a_large_batch(manifest: Manifest, tmp_path: Path) -> None:
    """Plain SGD from the same weights: what the step is must show in the weights after it."""
    weights = []
    for batch_size, accumulation in [(8, 1), (4, 2), (1, 8)]:
        torch.manual_seed(0)
        args = quiet_arguments(
            tmp_path / "run",
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=3,
            optim="sgd",
            learning_rate=0.5,
        )
        trainer = RecordingTrainer(model=tiny_model(), args=args, shards=manifest, streams=8)
        trainer.train()
        weights.append(trainer.model.transformer.wte.weight.detach().clone())
        assert len(trainer.numbers) == 3 * accumulation
    assert not torch.equal(weights[0], torch.zeros_like(weights[0]))
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=1e-4, atol=1e-5)


def test_max_steps_beyond_an_epoch_go_on_in_the_next(manifest: Manifest, trained: Train) -> None:
    trainer = trained(per_device_train_batch_size=5, max_steps=11, streams=1)
    loader = ShardLoader(manifest, batch_size=5, streams=1)
    epochs = rest_of_epoch(loader) + rest_of_epoch(loader)
    assert trainer.numbers == epochs[:11]
    assert trainer.state.epoch == pytest.approx(11 / 8)


def test_the_log_tells_speed_waiting_and_epoch(trained: Train) -> None:
    trainer = trained(per_device_train_batch_size=4, num_train_epochs=1, logging_steps=2)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in logs] == [2, 4, 6, 8, 10]
    assert [entry["epoch"] for entry in logs] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(entry["tokens_per_second"] > 0 for entry in logs)
    assert all(0 <= entry["data_wait"] <= 1 for entry in logs)


def test_the_model_learns(manifest: Manifest, tmp_path: Path) -> None:
    """Marked rows repeat one id, which one layer learns at once."""
    args = quiet_arguments(tmp_path / "run", per_device_train_batch_size=8, num_train_epochs=12, learning_rate=0.03)
    trainer = RecordingTrainer(model=tiny_model(), args=args, shards=manifest)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] / 2


def test_every_end_of_document_is_a_label_though_it_is_also_the_pad_token(tmp_path: Path, t0: Any) -> None:
    t0.save_pretrained(tmp_path / "t0")
    documents = ["ab", "c", "d", "efgh"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    manifest = write_shards(
        input=[str(tmp_path / "a.jsonl")],
        tokenizer=str(tmp_path / "t0"),
        seq_length=8,
        output=str(tmp_path / "set"),
        workers=1,
        shuffle=False,
    )
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    args = quiet_arguments(tmp_path / "run", per_device_train_batch_size=1, max_steps=1)
    trainer = RecordingTrainer(model=tiny_model(), args=args, shards=manifest, processing_class=tokenizer)
    trainer.train()
    assert set(trainer.batches[0]) == {"input_ids", "labels"}
    assert trainer.batches[0]["input_ids"].tolist() == [[100, 101, 2, 102, 2, 103, 2, 104]]
    assert trainer.batches[0]["labels"].tolist() == [[100, 101, 2, 102, 2, 103, 2, 104]]


# The command line

CONFIG = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}'


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shard", "SET", "--model_config", CONFIG], "unknown flag '--shard'; nearest: shards"),
        (["--shards", "SET", "--model_config", CONFIG, "--learning_rat", "1"], "nearest: learning_rate"),
        (["--shards", "SET"], "model: give one of --model_name_or_path .* and --model_config"),
        (["--shards", "SET", "--model_config", CONFIG, "--model_name_or_path", "x"], "model: give one of"),
        (["--shards", "SET/nowhere", "--model_config", CONFIG], r"SET/nowhere: no dataset\.json"),
        (["--shards", "SET/train-{0..3}.tar", "--model_config", CONFIG], r"train-0\.tar.*\(4 of 4\) not there"),
        (["--shards", "SET", "--model_config", '{"model_type": "gpt2", "n_positions": 4}'], "has 4 positions"),
        (["--shards", "SET", "--model_config", CONFIG, "--streams", "500"], "41 sequences for 500 streams"),
        (["--shards", "SET", "--model_config", CONFIG, "--per_device_train_batch_size", "64"], "global batch of 64"),
        (["--shards", "SET", "--model_config", '{"model_type": "gpt2", "n_embd": 15}'], "model_config: "),
        (["--shards", "SET", "--model_config", '{"model_type": "gpt2", "n_embd": "x"}'], "model_config: .*'n_embd'"),
        (["--shards", "SET", "--model_config", CONFIG, "--attn_implementation", "flash_attention_2"], "FlashAttention2"),
        (["--shards", "SET/dataset.json", "--model_config", CONFIG], r"SET/dataset\.json: no dataset\.json"),
        (["--shards", "SET", "--model_config", CONFIG, "--output_dir", "SET/dataset.json"], "error: SET/dataset.json: File"),
        (["--shards", "SET", "--model_config", CONFIG, "--logging_steps", "0"], "requires non-zero --logging_steps"),
        (["--shards", "SET", "--model_config", CONFIG, "--report_to", "wandb"], "requires wandb to be installed"),
        (["--shards", "SET", "--model_config", CONFIG, "--fsdp", "full_shard"], "fsdp only works in distributed training"),
        (["--shards", "SET", "--model_config", CONFIG, "--gradient_accumulation_steps", "0"],
         "gradient_accumulation_steps: 0, needed: at least 1"),
        (["--shards", "SET", "--model_config", CONFIG, "--max_steps", "0"], "max_steps: 0, needed: 1 or more, or -1"),
        (["--shards", "SET", "--model_config", CONFIG, "--num_train_epochs", "-1"], r"num_train_epochs: -1\.0, needed: 0"),
        (["--shards", "SET", "--model_config", CONFIG, "--auto_find_batch_size", "true"], "auto_find_batch_size: True is refused: each"),
        (["--shards", "SET", "--model_config", CONFIG, "--per_device_eval_batch_size", "0"], "eval_batch_size: 0, needed"),
        (["--config", "SET/none.yaml"], "config: .*none.yaml: No such file or directory"),
        (["--model_config", CONFIG], "shards"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(
    manifest: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    here = [flag.replace("SET", str(manifest.root)) for flag in flags]
    assert main(["--output_dir", str(tmp_path / "run"), "--use_cpu", "true", "--report_to", "none", *here]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert re.search(message.replace("SET", str(manifest.root)), errors[0])


def test_a_run_tells_its_plan_and_its_result(
    manifest: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    flags = {
        "shards": str(manifest.root),
        "streams": "5",
        "model_config": CONFIG,
        "output_dir": str(tmp_path / "run"),
        "per_device_train_batch_size": "2",
        "gradient_accumulation_steps": "3",
        "num_train_epochs": "2",
    }
    quiet = ["--use_cpu", "true", "--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "true"]
    assert main([word for flag, value in flags.items() for word in (f"--{flag}", value)] + quiet) == 0
    lines = caplog.text + capsys.readouterr().out
    assert "41 sequences × 8 tokens in 4 shards" in lines
    assert "4 shards are cut into 8 row ranges, as 5 streams" in lines
    assert "global batch 6 = 1 ranks × 2 × 3 accumulated; 6 steps an epoch" in lines
    assert "left out of each epoch, another choice each time: 5 of 41 sequences" in lines
    assert "sequences read: rank 0: 72" in lines
    assert "(overlap): 0" in lines
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_the_flags_are_these() -> None:
    """Adding one is a decision."""
    assert set(DataArguments.__dataclass_fields__) == {
        "shards",
        "sources",
        "stages",
        "stopping_strategy",
        "skip_list",
        "audit",
        "loss_by_source",
        "validation_shards",
        "cache_dir",
        "cache_bytes",
        "bad_shards",
        "order",
        "streams",
        "separate_documents",
        "max_tokens",
    }
    assert set(ModelArguments.__dataclass_fields__) == {"model_name_or_path", "model_config", "attn_implementation"}
