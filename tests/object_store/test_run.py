"""A run from a store that is killed in a fetch and goes on, on more ranks is the run that nobody stops (G5, G6, G10), by real processes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.commands import train_main as main
from tests.helpers.written import jsonl
from tests.object_store.proxy import Fault, FaultProxy
from tests.object_store.server import BUCKET, Server
from tests.torchrun.start import torchrun
from tokentar import Manifest, ShardLoader, write_shards

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]
STREAMS, GLOBAL_BATCH, STEPS, SAVED = 4, 4, 12, 8  # the last but one shard of each stream is at its end then
MODEL = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16}
MODEL |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
SHARD = 10_240  # bytes


@pytest.fixture
def manifest(tokenizer: str, tmp_path: Path) -> Manifest:
    """49 sequences in twelve shards, which are twelve steps and one left over, and some for validation."""
    corpus = jsonl(tmp_path / "x.jsonl", (f"number {i:04d}." for i in range(64)))
    settings: dict[str, Any] = {"validation_fraction": 0.1, "num_shards": 12, "workers": 0}
    return write_shards(input=corpus, tokenizer=tokenizer, output=tmp_path / "set", seq_length=16, **settings)


@pytest.fixture
def url(server: Server, there: str, manifest: Manifest) -> str:
    """The same in the store, put there past the proxy."""
    server.put_folder(manifest.folder, there.removeprefix(f"s3://{BUCKET}/"))
    return there


def flags(shards: Any, output: Path, ranks: int, cache: Path) -> list[str]:
    """A run of one epoch on so many ranks; the cache takes just what two of them need."""
    settings: dict[str, Any] = {
        "shards": shards,
        "output_dir": output,
        "model_config": json.dumps(MODEL),
        "streams": STREAMS,
        "per_device_train_batch_size": GLOBAL_BATCH // ranks,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "learning_rate": 5e-3,
        "save_steps": SAVED,
        "eval_strategy": "steps",
        "eval_steps": SAVED,
        "resume_from_checkpoint": "true",
        "cache_dir": cache,
        "cache_bytes": SHARD * (2 * (STREAMS // 2 + 1) + 2 * 2),
        "use_cpu": "true",
        "report_to": "none",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def losses(output: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, loss) of each line of a run's log, by kind."""
    lines = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return {kind: [(line["step"], line[kind]) for line in lines if kind in line] for kind in ("loss", "eval_loss")}


def test_a_run_killed_in_a_fetch_goes_on_with_what_comes_next(
    proxy: FaultProxy,
    url: str,
    manifest: Manifest,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    order = ShardLoader(manifest.split("train"), batch_size=GLOBAL_BATCH, streams=STREAMS).order
    turns = order.dealt(0).reshape(-1, STREAMS)
    to_come = turns[np.cumsum(order.units.length[turns], axis=0) > SAVED]
    cache, output = tmp_path / "shards", tmp_path / "run"
    saved = output / f"checkpoint-{SAVED}" / "trainer_state.json"
    proxy.plan(Fault(match=f"train-{turns[-1, 0]:06d}.tar", times=None, cut_at=5120, in_body=True, stall=True))
    torchrun(
        "tokentar.train", *flags(url, output, 1, cache), ranks=1, kill_when=lambda: saved.exists() and proxy.fired > 0
    )
    assert len(list(cache.glob("*.part"))) >= 1
    for shard in cache.glob("*.tar"):  # so that what is fetched now is what is needed
        shard.unlink()
    proxy.plan(None)
    ended = torchrun("tokentar.train", *flags(url, output, 2, cache))
    assert ended.returncode == 0, ended.stderr
    fetched = sorted(name for name in proxy.gets() if name.startswith("train-"))
    assert {f"train-{shard:06d}.tar" for shard in to_come} <= set(fetched)
    assert len(fetched) <= len(to_come) + 2, "and one that each rank has ahead"
    printed = capfd.readouterr().out
    assert re.search(r"shards: \d+ opened, \d+ of them fetched .*; waited \d+ times for one, ", printed)

    assert main(flags(manifest.root, tmp_path / "whole", 1, cache)) == 0
    expected = losses(tmp_path / "whole")
    assert [len(lines) for lines in expected.values()] == [STEPS, 2]
    assert expected["loss"][-1][1] < expected["loss"][0][1] - 0.2, "the weights move, so that they can differ"
    for kind, lines in losses(output).items():
        assert lines == [(step, pytest.approx(loss, rel=1e-4)) for step, loss in expected[kind]]
