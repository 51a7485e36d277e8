"""Training on two hosts, each with its own address and name: one goes away and comes back, or does not see the shards."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.helpers.marked import write_marked
from tests.object_store.proxy import FaultProxy
from tests.object_store.server import BUCKET, Server
from tests.torchrun import journal
from tests.torchrun.hosts import Host, Unavailable, hosts, wait_for
from tests.torchrun.journal import STEPS_PER_EPOCH, Death
from tokentar.shard_writer.format.manifest import write_manifest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Host]]:
    """Two hosts."""
    try:
        with hosts(tmp_path) as made:
            yield made
    except Unavailable as reason:
        pytest.skip(f"no hosts to train on, as this machine makes no network namespaces: {reason}")


@pytest.fixture
def doors(nodes: list[Host], tmp_path: Path) -> Iterator[list[FaultProxy]]:
    """A proxy on each host before one object store, which all that runs there uses, with a cache of the host's own."""
    with Server(tmp_path / "objstore") as server, ExitStack() as open_ones:
        server.make_bucket(BUCKET)
        made = [open_ones.enter_context(FaultProxy(server.address, node.listener())) for node in nodes]
        for node, door in zip(nodes, made, strict=True):
            node.environment = server.environment(door.url) | {"XDG_CACHE_HOME": str(tmp_path / node.name)}
        journal.write_set(tmp_path / "set")
        server.put_folder(tmp_path / "set", "set")
        yield made


def last_step(output: Path, part: int) -> int:
    return max(journal.read(output, f"part{part}").sequences, default=0)


def check_history(nodes: list[Host], shards: str, tmp_path: Path, ranks: int) -> None:
    """2 × `ranks` ranks until node 2 is gone in step 11, those of node 1 until it is back in step 22, then all to the end."""
    output = tmp_path / "parts"
    for path in (output, tmp_path / "whole"):
        path.mkdir()
    deaths = [asdict(Death(step=step, rank=rank, from_outside=True)) for step, rank in [(11, ranks), (22, 0)]]
    job = ("tests.torchrun.part", shards, str(output), json.dumps([*deaths, None]))
    deadline = time.monotonic() + 150
    first, second = nodes
    for node in nodes:
        node.torchrun(*job, ranks=ranks, nodes="1:2", max_restarts=1)
    journal.run(tmp_path / "set", tmp_path / "whole", "whole", per_device_train_batch_size=24, save_strategy="no")
    wait_for(lambda: last_step(output, 0) >= 10, deadline, nodes)
    second.cut_off()
    wait_for(lambda: last_step(output, 1) >= 21, deadline, nodes)
    second.torchrun(*job, ranks=ranks, nodes="1:2", max_restarts=1)
    assert [node.ended(deadline) for node in nodes] == [0, 0], first.log.read_text() + second.log.read_text()
    parts = [f"part{number}" for number in range(3)]
    assert journal.differences(tmp_path / "whole", output, parts) == []
    taken = [journal.read(output, part).sequences for part in parts]
    assert [len(list(output.glob(f"{part}-*.jsonl"))) for part in parts] == [2 * ranks, ranks, 2 * ranks]
    assert [min(steps) for steps in taken] == [1, 9, 21], "from the last whole checkpoints, of 8 and 20"
    history = taken[0] | taken[1] | taken[2]
    for epoch in range(3):
        steps = range(epoch * STEPS_PER_EPOCH + 1, (epoch + 1) * STEPS_PER_EPOCH + 1)
        numbers = [number for step in steps for number in history[step]]
        assert len(numbers) == len(set(numbers)) == 264, "of 273, as 9 are left out of each epoch"


def test_a_job_goes_on_without_a_node_and_again_with_it(nodes: list[Host], tmp_path: Path) -> None:
    """On a shared folder."""
    journal.write_set(tmp_path / "set")
    check_history(nodes, str(tmp_path / "set"), tmp_path, ranks=1)


def test_the_same_from_an_object_store_where_each_node_fetches_each_shard_once(
    nodes: list[Host], doors: list[FaultProxy], tmp_path: Path
) -> None:
    """Once for both of its ranks and, as the cache survives, for all of its starts."""
    check_history(nodes, f"s3://{BUCKET}/set", tmp_path, ranks=2)
    names = sorted(path.name for path in (tmp_path / "set").glob("*.tar"))
    assert [sorted(door.gets()) for door in doors] == [names, names]


def test_a_node_that_does_not_see_the_shards_ends_the_job_by_its_name(nodes: list[Host], tmp_path: Path) -> None:
    """Within a minute from when its ranks are there: before, it is torchrun that waits for both nodes."""
    manifest = write_marked(tmp_path / "set", 4, 8, vocab_length=300)
    tokenizer = replace(manifest.info.tokenizer, name=str(tmp_path))
    write_manifest(replace(manifest, info=replace(manifest.info, tokenizer=tokenizer)))
    model = '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}'
    flags = ["--shards", str(tmp_path / "set"), "--model_config", model, "--output_dir", str(tmp_path / "run")]
    job = ("tokentar.train", *flags, "--use_cpu", "true", "--report_to", "none")
    nodes[0].torchrun(*job, ranks=1, nodes="2")
    nodes[1].torchrun(*job, ranks=1, nodes="2", hidden=tmp_path / "set")
    wait_for(lambda: all(node.has_ranks() for node in nodes), time.monotonic() + 60, nodes)
    deadline = time.monotonic() + 60
    assert all(node.ended(deadline) != 0 for node in nodes)
    for node in nodes:
        assert f"rank 1 on node node-2: {tmp_path / 'set'}: no dataset.json" in node.log.read_text()
