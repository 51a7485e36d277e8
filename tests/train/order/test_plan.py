"""What a job will do is known before it starts."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.commands import plan_main as main
from tests.helpers.marked import write_marked
from tokentar import Manifest
from tokentar.shard_writer.errors import SettingError
from tokentar.shard_writer.format.manifest import ShardEntry, first_numbers, write_manifest
from tokentar.train.data.plan_text import describe
from tokentar.train.distributed.world import World
from tokentar.train.order.plan import Plan, steps_for
from tokentar.train.order.reading_order import build

Say = Callable[..., tuple[int, list[str], str]]


@pytest.mark.parametrize(
    ("rows", "streams", "world_size", "batch_size", "global_batch_size", "batches", "steps", "left_out"),
    [
        (32, 8, 2, 2, None, 8, 8, 0),
        (32, 8, 2, 2, 8, 8, 4, 0),
        (12, 2, 2, 1, None, 6, 6, 0),
        (12, 4, 2, 3, None, 2, 2, 0),
        (100, 8, 2, 3, 12, 16, 8, 4),  # 96 samples in whole rounds
        (100, 8, 2, 5, 20, 8, 4, 20),  # 96 samples hold 4 global batches
        (100, 10, 1, 7, 14, 14, 7, 2),
        (100, 3, 3, 33, None, 1, 1, 1),
    ],
)
def test_an_epoch_is_whole_rounds_and_whole_global_batches(
    rows: int,
    streams: int,
    world_size: int,
    batch_size: int,
    global_batch_size: int | None,
    batches: int,
    steps: int,
    left_out: int,
) -> None:
    world = World(0, world_size)
    order = build([rows], seed=0, readers=world_size, streams=streams)
    plan = Plan.of(order, world, batch_size, global_batch_size)
    assert (plan.batches, plan.steps, plan.left_out) == (batches, steps, left_out)
    assert plan.left_out == rows - plan.steps * plan.global_batch_size
    assert plan.left_out < streams + plan.global_batch_size
    assert plan.batches * batch_size * world_size == plan.steps * plan.global_batch_size


@pytest.mark.parametrize(
    ("batch_size", "global_batch_size", "message"),
    [
        (0, None, "batch_size: 0, needed: at least 1"),
        (2, 6, "global_batch_size: 6, needed: a multiple of world_size × batch_size = 2 × 2 = 4"),
        (2, 0, "global_batch_size: 0, needed"),
        (2, 2, "global_batch_size: 2, needed"),
        (7, None, "an epoch has 12 samples .* less than one global batch of 14; use a smaller batch or more data"),
        (1, 14, "less than one global batch of 14"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batch_size: int, global_batch_size: int | None, message: str) -> None:
    order = build([13], seed=0, readers=2, streams=4)
    with pytest.raises(SettingError, match=message):
        Plan.of(order, World(0, 2), batch_size, global_batch_size)


@pytest.mark.parametrize(
    ("max_tokens", "done", "steps"),
    [(1, 0, 1), (480, 0, 1), (481, 0, 2), (4800, 0, 10), (4800, 480, 9), (4800, 481, 9), (4800, 960, 8), (480, 500, 0)],
)
def test_a_budget_is_rounded_up_to_whole_steps(max_tokens: int, done: int, steps: int) -> None:
    """A step is 60 sequences of 8 tokens, 480 in all."""
    assert steps_for(max_tokens, 60, 8, done) == steps


# What keeps shards whole


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 6, 7, 8, 12, 18, 96, 100])
@pytest.mark.parametrize("readers", [1, 2, 3, 4, 5, 8])
def test_each_number_of_streams_that_is_proposed_keeps_shards_whole(tmp_path: Path, shards: int, readers: int) -> None:
    manifest = of_rows(write_marked(tmp_path / "set", 1, 1), [5000] * shards)
    world, too_many = World(0, readers), lcm(readers, 192 * shards)
    order = build(manifest.num_sequences, seed=0, readers=readers, streams=too_many)
    notice = " ".join(describe({"": manifest}, order, Plan.of(order, world, 1, None), world))
    assert f"{shards} shards are cut into" in notice
    proposed = [int(n) for n in re.findall(r"\d+", (re.findall(r"set --streams to ([\d or]+);?", notice) or [""])[0])]
    assert proposed == [n for n in range(1, shards + 1) if shards % n == n % readers == 0][-5:]
    for streams in proposed:
        assert build(manifest.num_sequences, seed=0, readers=readers, streams=streams).units.ranges == shards
    written = int(re.findall(r"write a multiple of (\d+) shards", notice)[0])
    assert build([5000] * written, seed=0, readers=readers, streams=too_many).units.ranges == written
    nothing_does = f"no --streams does it, as {readers} ranks × workers do not divide {shards} shards"
    assert (nothing_does in notice) == (proposed == [])


def test_shards_that_differ_in_length_are_only_kept_whole_by_writing_them_again(tmp_path: Path) -> None:
    manifest = write_marked(tmp_path / "set", 4, [5, 40, 7, 8])
    order = build(manifest.num_sequences, seed=0, readers=1, streams=4)
    notice = " ".join(describe({"": manifest}, order, Plan.of(order, World(), 1, None), World()))
    assert "reshard` the set, whose shards differ in length, to a multiple of 4 shards" in notice
    assert "--streams" not in notice


# The command


def of_rows(manifest: Manifest, rows: list[int], seq_length: int = 8) -> Manifest:
    """A manifest of shards that are not there."""
    totals = replace(manifest.info.splits["train"], sequences=sum(rows), tokens=sum(rows) * seq_length)
    info = replace(manifest.info, seq_length=seq_length, splits={"train": totals})
    entries = [
        ShardEntry(
            shard=f"train-{number:06d}",
            split="train",
            num_sequences=count,
            bytes=info.row_format.file_size(count),
            xxh3="0" * 16,
        )
        for number, count in enumerate(rows)
    ]
    return Manifest(manifest.root, info, tuple(entries), first_numbers(entries))


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the command; its exit status, lines and errors."""

    def run(shards: Path, **flags: Any) -> tuple[int, list[str], str]:
        words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
        status = main(["--shards", str(shards), *words])
        output = capsys.readouterr()
        return status, output.out.splitlines(), output.err

    return run


def test_the_plan_of_a_small_set_is_that_worked_out_by_hand(tmp_path: Path, say: Say) -> None:
    """41 sequences in 8 streams: 5 rounds, so 40 samples, in which 3 global batches of 12 find place."""
    folder = write_marked(tmp_path / "set", 4, [10, 10, 11, 10]).root
    flags = {"world_size": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_tokens": 1000}
    assert say(folder, **flags) == (
        0,
        [
            f"{folder}: 41 sequences × 8 tokens in 4 shards; order epoch, seed 0, 8 streams",
            "4 shards are cut into 8 row ranges, as 8 streams (2 ranks × 1 workers) are dealt equally many rows; that is free on a "
            "local disk, while of a remote set several ranks fetch the same shard; to avoid it, write a multiple of 8 shards in one run "
            "or set --streams to 2 or 4",
            "global batch 12 = 2 ranks × 2 × 3 accumulated; 3 steps an epoch",
            "left out of each epoch, another choice each time: 5 of 41 sequences",
            "each of 2 ranks × 1 workers reads 20 sequences an epoch from 4 units (shards, or row ranges as large), 4 shards open at a "
            "time; it holds about 0.0 MB and maps 0.1 MB of files, which the system may drop",
            "1,000 tokens: 11 steps, 3.67 epochs",  # 96 tokens a step, 3 steps an epoch
        ],
        "",
    )


def test_the_plan_of_a_large_set_needs_no_shard_and_says_what_it_takes(tmp_path: Path, say: Say) -> None:
    """A reader has 12 of 192 streams: 12 × 4096 rows in two permutations of 8 bytes, 3 blocks of 256 rows, 7 tables of 288."""
    manifest = of_rows(write_marked(tmp_path / "set", 1, 1), [8192] * 96, 2048)
    write_manifest(manifest)
    flags = {"world_size": 8, "num_workers": 2, "per_device_train_batch_size": 4, "max_tokens": 10**9}
    status, lines, errors = say(manifest.root, **flags)
    assert (status, errors) == (0, "")
    assert "786,432 sequences × 2048 tokens in 96 shards" in lines[0]
    assert lines[1].endswith("or set --streams to 16 or 32 or 48 or 96")
    assert lines[2] == "global batch 32 = 8 ranks × 4 × 1 accumulated; 24,576 steps an epoch"
    assert lines[3].endswith(": 0 of 786,432 sequences")
    assert "reads 49,152 sequences an epoch from 12 units (shards, or row ranges as large), 12 shards open" in lines[4]
    held, mapped = 12 * 4096 * 2 * 8 + 3 * 256 * 4096 + 7 * 8 * 288, 12 * 4097 * 10240
    assert f"it holds about {held / 1e6:.1f} MB and maps {mapped / 1e6:.1f} MB of files" in lines[4]
    assert lines[5] == "1,000,000,000 tokens: 15,259 steps, 0.62 epochs"


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("repeat", "global batch 12 = 1 ranks × 12 × 1 accumulated; epochs follow one another without end; 3 steps an"),
        ("resample", "global batch 12 = 1 ranks × 12 × 1 accumulated; shards are drawn with replacement, without end"),
    ],
)
def test_the_plan_of_an_order_without_end(tmp_path: Path, say: Say, order: str, line: str) -> None:
    """960 tokens are 120 sequences: 3 epochs of 40."""
    folder = write_marked(tmp_path / "set", 4, [10, 10, 11, 10]).root
    _, lines, _ = say(folder, order=order, streams=8, per_device_train_batch_size=12, max_tokens=960)
    assert any(each.startswith(line) for each in lines)
    assert lines[-1] == "960 tokens: 10 steps, 3.00 epochs"
    left_out = "left out of each epoch, another choice each time: 1 of 41 sequences"
    assert (left_out in lines) == (order == "repeat")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"world_size": 42},
            "41 sequences for 42 ranks × workers: each needs one at least; use fewer workers or ranks",
        ),
        ({"world_size": 7, "num_workers": 6}, "41 sequences for 42 ranks × workers"),
        ({"world_size": 0}, "world_size: 0, needed: at least 1"),
        ({"num_workers": -1}, "num_workers: -1, needed: 0 or more"),
        (
            {"per_device_train_batch_size": 42},
            r"an epoch has 41 samples \(41 .* less than one global batch of 42; use a",
        ),
        ({"world_size": 4, "per_device_train_batch_size": 11}, "less than one global batch of 44"),
        ({"gradient_accumulation_steps": 6}, "less than one global batch of 48"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps: 0, needed: at least 1"),
        ({"per_device_train_batch_size": 0}, "batch_size: 0, needed: at least 1"),
        (
            {"streams": 12, "world_size": 8},
            r"streams: 12 cannot be dealt to 8 ranks × workers; ranks × workers that work: \[1, 2, 3, 4, 6, 12\]",
        ),
        ({"streams": 12, "world_size": 2, "num_workers": 4}, "streams: 12 cannot be dealt to 8 ranks × workers"),
        ({"streams": 42}, "41 sequences for 42 streams: each stream needs one at least"),
        ({"max_tokens": 0}, "max_tokens: 0, needed: at least 1"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, say: Say, flags: dict[str, int], message: str) -> None:
    folder = write_marked(tmp_path / "set", 4, [10, 10, 11, 10]).root
    status, _, errors = say(folder, **flags)
    assert status == 1
    assert re.fullmatch(f"error: .*{message}.*\n", errors)


def test_the_plan_imports_no_torch(tmp_path: Path) -> None:
    folder = write_marked(tmp_path / "set", 4, 10).root
    script = (
        "import sys; from tokentar.__main__ import main; print(main(['plan', *sys.argv[1:]]), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, "--shards", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "0 False"
    assert "steps an epoch" in ended.stdout


def test_the_plan_of_a_mixture_tells_each_source_and_what_is_read_of_it(
    marked: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    """1,536 tokens are 192 sequences of 8, so 24 steps of 8: 144 and 48 of sets of 240 and 44, whose epochs have 240 and 40."""
    marked(12, 20, "web")
    root = marked(4, 11, "code").folder.parent
    flags = ["--streams", "8", "--max_tokens", "1536", "--per_device_train_batch_size", "8"]
    assert main(["--shards", f"{root}/web=3", f"{root}/code=1", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "mixture of 2 sources × 8 tokens; seed 0, 8 streams",
        f"source code: {root}/code: 44 sequences in 4 shards; left out of each epoch, another choice each time: 4",
        f"source web: {root}/web: 240 sequences in 12 shards; left out of each epoch, another choice each time: 0",
        "global batch 8 = 1 ranks × 8 × 1 accumulated; a source that ends begins its next epoch",
        "steps 1 to 24: code 25.00% (weight 1) = 48 sequences, 384 tokens, 1.20 epochs; "
        "web 75.00% (weight 3) = 144 sequences, 1,152 tokens, 0.60 epochs",
    ]
    assert lines[-1] == "1,536 tokens: 24 steps"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--order", "repeat"], "order: repeat, needed: none, as several sets are mixed"),
        (["--streams", "41"], "40 sequences for 41 streams"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(
    marked: Callable[..., Manifest], flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [str(marked(4, rows, name).folder) for name, rows in (("a", 10), ("b", 20))]
    assert main(["--shards", *sets, *flags]) == 1
    assert message in capsys.readouterr().err


def test_the_plan_of_a_recipe_is_that_of_its_flags(
    marked: Callable[..., Manifest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stage one ends with the step in which its 100 tokens are reached, step 2 of 64 tokens; the job with step 5."""
    root = marked(12, 20, "web").folder.parent
    marked(4, 11, "code")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"""
        train:
          sources:
            web: {{shards: {root}/web, weight: 3}}
            code: {{shards: {root}/code, weight: 1}}
          stages:
            first: {{until: 100 tokens, weights: {{web: 3, code: 1}}}}
            second: {{weights: {{web: 1, code: 1}}}}
          streams: 8
          dataloader_num_workers: 2
          max_tokens: 320
          learning_rate: 1.0e-3
    """)
    assert main(["--config", str(recipe)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("steps")] == ["steps 1 to 2", "steps 3 to 5"]
    assert lines[5].startswith("steps 3 to 5: code 50.00% (weight 1) = 12 sequences, 96 tokens, 0.30 epochs")
    assert "1 ranks × 2 workers" in lines[6]
    assert main(["--config", str(recipe), "--max_steps", "2"]) == 0
    steps = [line for line in capsys.readouterr().out.splitlines() if "step" in line]
    assert [line.partition(":")[0] for line in steps] == ["steps 1 to 2", "2 steps"]
    assert main(["--config", str(recipe), "--shards", f"{root}/web", "--num_workers", "0"]) == 0
    alone = capsys.readouterr().out
    assert main(["--shards", f"{root}/web", "--streams", "8", "--max_tokens", "320"]) == 0
    assert capsys.readouterr().out == alone
