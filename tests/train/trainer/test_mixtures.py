"""Trainer on several sets: their order, their figures in the log, going on with other weights, and what can be traced afterwards."""

import json
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.helpers.commands import train_main
from tests.helpers.marked import write_marked
from tests.helpers.recorder import RecordingTrainer, quiet_arguments, tiny_model
from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import jsonl
from tokentar import Manifest, ShardLoader, write_shards
from tokentar.__main__ import main
from tokentar.shard_writer.errors import SettingError
from tokentar.train.trainer.arguments import DataArguments

Sources = dict[str, tuple[Any, float]]
Train = Callable[..., RecordingTrainer]


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """Two sets of 60 and 240 sequences; those of `code` are numbered as in its set, and so are those of `web`."""
    return {
        "code": (write_marked(tmp_path / "code", 4, 15, vocab_length=300), 0.25),
        "web": (write_marked(tmp_path / "web", 12, 20, vocab_length=300), 0.75),
    }


@pytest.fixture
def train(sources: Sources, tmp_path: Path) -> Train:
    """Trains for some steps of 8 sequences, from the last checkpoint when there is one."""

    def run(steps: int, shards: Any = None, **settings: Any) -> RecordingTrainer:
        of_trainer = ("stages", "stopping_strategy", "skip_list", "audit", "loss_by_source", "separate_documents")
        own = {key: settings.pop(key) for key in of_trainer if key in settings}
        defaults = {"max_steps": steps, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
        args = quiet_arguments(tmp_path / "run", **defaults | {"save_strategy": "steps", "save_steps": 5} | settings)
        torch.manual_seed(0)
        trainer = RecordingTrainer(model=tiny_model(), args=args, shards=shards or sources, streams=8, **own)
        trainer.train(resume_from_checkpoint=True)
        return trainer

    return run


def expected(shards: Sources, samples: int, **settings: Any) -> list[int]:
    """The sequences of the first samples, by the loader alone."""
    loader = ShardLoader(shards, batch_size=4, rank=0, world_size=1, streams=8, global_batch_size=8, **settings)
    keys = chain(*(loader.sample_keys for _ in islice(loader, samples // 4)))
    return [int(key.split("/")[1]) for key in keys]


def test_trainer_trains_on_the_samples_of_the_mixture_and_logs_each_source(train: Train, sources: Sources) -> None:
    trainer = train(12)
    assert list(chain(*trainer.numbers)) == expected(sources, 96)
    last = [line for line in trainer.state.log_history if "loss" in line][-1]
    assert last["tokens/code"] + last["tokens/web"] == 96 * 8
    assert last["tokens/code"] == 24 * 8
    assert last["epoch/code"] == pytest.approx(24 / 56, abs=1e-5), "60 sequences are 56 in whole rounds of 8 streams"
    assert last["epoch/web"] == pytest.approx(72 / 240)


def test_a_run_goes_on_with_other_weights_where_the_stages_of_one_run_would_change(
    train: Train, sources: Sources
) -> None:
    later = {name: (shards, weight) for (name, (shards, _)), weight in zip(sources.items(), (0.5, 0.5), strict=True)}
    train(10)
    trainer = train(20, later)
    stages = [(10 * 8 * 8, {"code": 0.25, "web": 0.75}), (None, {"code": 0.5, "web": 0.5})]
    assert list(chain(*trainer.numbers)) == expected(sources, 160, stages=stages)[80:]


def test_stages_of_a_run_change_exactly_with_a_step(train: Train, sources: Sources) -> None:
    """100 tokens are reached in the second step of 64."""
    stages = [(100, {"code": 1.0}), (None, {"web": 1.0})]
    trainer = train(5, stages=stages)
    assert list(chain(*trainer.numbers))[:16] == expected({"code": (sources["code"][0], 1.0)}, 16)
    assert list(chain(*trainer.numbers)) == expected(sources, 40, stages=stages)
    assert [line["tokens/code"] for line in trainer.state.log_history if "loss" in line] == [64, 128, 128, 128, 128]


def test_a_run_ends_with_the_first_source_that_is_exhausted(train: Train, sources: Sources) -> None:
    trainer = train(-1, stopping_strategy="first_exhausted")
    loader = ShardLoader(
        sources, batch_size=4, streams=8, global_batch_size=8, rank=0, world_size=1, stopping_strategy="first_exhausted"
    )
    assert trainer.state.global_step == loader.plan.steps == len(loader) // 2
    assert list(chain(*trainer.numbers)) == expected(sources, loader.plan.steps * 8)


def test_the_losses_of_sources_are_those_of_their_rows(train: Train, sources: Sources) -> None:
    trainer = train(1, loss_by_source=True, learning_rate=0.0)
    (line,) = [line for line in trainer.state.log_history if "loss" in line]
    model = tiny_model()
    model.load_state_dict(trainer.model.state_dict())
    loader = ShardLoader(sources, batch_size=8, streams=8, rank=0, world_size=1)
    batch = next(iter(loader))
    names = [key.split("/")[0] for key in loader.sample_keys]
    for name in sources:
        rows = batch["input_ids"][[seen == name for seen in names]]
        assert line[f"loss/{name}"] == pytest.approx(float(model(rows, labels=rows).loss.detach()), rel=1e-5)
    shares = {name: names.count(name) / 8 for name in sources}
    assert sum(shares[name] * line[f"loss/{name}"] for name in sources) == pytest.approx(line["loss"], abs=1e-3)


def test_more_steps_than_a_mixture_has_are_refused(train: Train) -> None:
    """Each of 8 streams has 7 rows of code, one in every 4: 28 rounds, and as many steps of 8."""
    with pytest.raises(SettingError, match="max_steps: 1000, but the first source ends after 28 steps"):
        train(1000, stopping_strategy="first_exhausted")


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """Two sets written from lines whose text names them."""
    found = {}
    for name, count in (("code", 120), ("web", 400)):
        source = jsonl(tmp_path / f"{name}.jsonl", [f"{name} document {number}" for number in range(count)])
        folder = tmp_path / f"set-{name}"
        write_shards(input=source, tokenizer=byte_tokenizer(), output=folder, seq_length=16, num_shards=4, workers=0)
        found[name] = str(folder)
    return found


def flags(tmp_path: Path, **more: Any) -> list[str]:
    """Those of a small job on the CPU."""
    config = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16}
    values = {"output_dir": tmp_path / "run", "model_config": json.dumps(config), "use_cpu": "true", "max_steps": 6}
    values |= {
        "report_to": "none",
        "streams": 8,
        "per_device_train_batch_size": 8,
        "save_steps": 3,
        "disable_tqdm": "true",
    }
    return [f"--{key}={value}" for key, value in (values | more).items()]


def test_every_step_of_a_run_is_traced_to_what_its_audit_says(
    job: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six steps, then four more with half the batch, then three again that a kill took; a planted document both ways."""
    shards = [f"--shards=code={job['code']}=0.3", f"--shards=web={job['web']}=0.7"]
    audit = f"--audit={tmp_path / 'audit'}"
    assert train_main([*shards, audit, *flags(tmp_path)]) == 0
    again = flags(tmp_path, max_steps=10, per_device_train_batch_size=4, resume_from_checkpoint="true")
    assert train_main([*shards, audit, *again]) == 0
    capsys.readouterr()
    named = ["--shards", f"code={job['code']}", f"web={job['web']}"]
    assert main(["trace", *named, "--check", str(tmp_path / "audit")]) == 0
    assert "2 starts, 10 steps, 64 sequences, 0 faults" in capsys.readouterr().out
    checkpoint = ["--checkpoint", str(tmp_path / "run" / "checkpoint-10")]
    assert main(["trace", *named, *checkpoint, "--step", "1:10", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = [json.loads(line) for line in (tmp_path / "audit" / "rank-00000.jsonl").read_text().splitlines()]
    trained = {line["step"]: line["keys"] for line in lines if "step" in line}
    assert {step: [each["sequence"] for each in found if each["step"] == step] for step in trained} == trained
    document = next(each for each in found[30]["documents"])
    name = f"{document['source']}:{document['place']}"
    assert main(["trace", *named, *checkpoint, "--document", name, "--json", "--text"]) == 1, (
        "the tokenizer had no name"
    )
    capsys.readouterr()
    assert main(["trace", *named, *checkpoint, "--document", name, "--json"]) == 0
    back = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    of_sequence = next(each for each in back if each["sequence"] == found[30]["sequence"])
    assert {"epoch": 0, "step": found[30]["step"]} in of_sequence["steps"]


def test_a_skip_list_keeps_the_losses_of_all_other_rows(
    job: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skip = tmp_path / "skip"
    skip.write_text("000000000003\n")
    shards = [f"--shards={job['web']}", f"--skip_list={skip}"]
    assert train_main([*shards, *flags(tmp_path, max_steps=3)]) == 0
    state = json.loads((tmp_path / "run/checkpoint-3/data_position.json").read_text())
    assert len(state["skip_list"]) == 16


def test_a_recipe_names_sources_and_stages(job: dict[str, str], tmp_path: Path) -> None:
    train = {
        "sources": {"code": {"shards": job["code"], "weight": 1}, "web": {"shards": job["web"], "weight": 3}},
        "stages": {"first": {"until": "200 tokens", "weights": {"web": 1}}, "second": {"weights": {"code": 1}}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"train": train}, sort_keys=False))
    assert train_main([f"--config={tmp_path / 'recipe.yaml'}", *flags(tmp_path, logging_steps=1)]) == 0
    history = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    steps = [line for line in history if "loss" in line]
    assert [line["tokens/web"] for line in steps] == [128, 256, 256, 256, 256, 256], (
        "200 tokens are reached in step 2 of 128"
    )
    assert [line["tokens/code"] for line in steps] == [0, 0, 128, 256, 384, 512]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give one of --shards and --sources"),
        ({"shards": ["a"], "sources": "{}"}, "give one of --shards and --sources"),
        ({"shards": ["a"], "stages": "{}"}, "stages, stopping_strategy, loss_by_source: of a mixture"),
        ({"shards": ["a=1", "b=2"], "order": "epoch"}, "order: epoch, needed: none"),
        ({"shards": ["x/a=1", "y/a=2"]}, "two sources are named 'a'"),
        ({"sources": "[]"}, r"sources: \[\], needed: a mapping"),
        ({"sources": '{"a": {"weight": 1}}'}, "sources: a: .*needed: shards, and a weight"),
        ({"sources": '{"a": {"shards": "x", "weight": "much"}}'}, "sources: a: weight: 'much', needed: a number"),
    ],
)
def test_flags_that_do_not_fit_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        DataArguments(**values)


def test_flags_name_sources_by_place_and_weight(tmp_path: Path) -> None:
    data = DataArguments(shards=["out/web=0.7", "s3://bucket/code=0.3", "extra=some/where"])
    assert data.data == {"web": ("out/web", 0.7), "code": ("s3://bucket/code", 0.3), "extra": ("some/where", 1.0)}
    assert DataArguments(shards=["out/web"]).data == "out/web"
    stages = '{"a": {"until": "1e9 tokens", "weights": {"web": 1}}, "b": {"weights": {"web": 2, "code": 1}}}'
    data = DataArguments(shards=["web=1", "code=1"], stages=stages)
    assert data.stage_weights == [(10**9, {"web": 1.0}), (None, {"web": 2.0, "code": 1.0})]


def test_a_manifest_of_a_mixture_is_that_of_its_first_set(train: Train, sources: Sources) -> None:
    trainer = train(1)
    first: Manifest = sources["code"][0]
    assert trainer.manifest == first
