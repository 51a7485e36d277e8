"""Ray as an engine, on a cluster: the bytes of the local one (G2), also when workers, nodes or the command are lost under way."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.slurm import calls, script, slurm, started, wait_until
from tests.helpers.tokenizers import byte_tokenizer
from tests.helpers.written import contents, jsonl
from tests.object_store.server import BUCKET, Server
from tokentar import TokentarError, write_shards
from tokentar.shard_writer.engines import ray
from tokentar.shard_writer.errors import StoreError
from tokentar.shard_writer.inputs import planning

TASKS, TASK_BYTES = 16, 100_000
FIRST_PORT = 20_000
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}  # else it depends on what Ray has left in the home, and on who has imported it
RAY = """#!/bin/sh
printf '%s\\n' "$@" >"$RAY_ARGUMENTS"
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@dataclass(frozen=True)
class Nodes:
    """A Ray cluster: a head without cores and nodes of one core each, all of them processes of this machine."""

    cluster: Any

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        return self.cluster.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20)

    def kill(self, node: Any) -> int:
        """Let a node be gone at once, with all that it runs; returns how many workers that were."""
        pid = next(info.process.pid for info in node.all_processes["raylet"])
        members = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
        workers = sum("ray::" in " ".join(member.cmdline()) for member in members)
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        return workers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An object store whose keys are in the environment of all tests here, and so in that of the cluster's nodes."""
    with Server(tmp_path_factory.mktemp("objstore")) as running, pytest.MonkeyPatch.context() as patch:
        running.make_bucket(BUCKET)
        for name, value in (running.environment() | NO_TOKEN).items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def nodes(server: Server) -> Iterator[Nodes]:
    """A cluster of two nodes, on a port that recipes/slurm/write.sbatch gives to some job."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    port = FIRST_PORT + os.getpid() % 10_000
    head = {"gcs_server_port": port, "num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = Nodes(cluster)
    nodes.add()
    nodes.add()
    yield nodes
    cluster.shutdown()


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What write_shards is told of a corpus of TASKS tasks."""
    monkeypatch.setattr(planning, "_SMALLEST_TASK", TASK_BYTES)
    monkeypatch.setattr(planning, "_LARGEST_TASK", TASK_BYTES)
    texts = [f"document {i} " * 50 for i in range(TASKS * TASK_BYTES // 700)]
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    source = jsonl(tmp_path / "a.jsonl", texts)
    return {"input": source, "tokenizer": str(tmp_path / "tokenizer"), "seq_length": 64, "num_shards": 6}


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_node_killed_while_it_tokenizes_changes_no_byte(nodes: Nodes, corpus: dict[str, Any], tmp_path: Path) -> None:
    write_shards(**corpus, output=tmp_path / "local", workers=0)
    victim, found = nodes.add(), []

    def kill_when_some_are_done() -> None:
        spool = tmp_path / "ray" / ".spool"
        while len(done := list(spool.glob("*[0-9].json"))) < 4:
            time.sleep(0.01)
        found.extend([nodes.kill(victim), len(done)])

    killer = threading.Thread(target=kill_when_some_are_done, daemon=True)
    killer.start()
    write_shards(**corpus, output=tmp_path / "ray", engine="ray", ray_address=nodes.address)
    killer.join()
    workers, done = found
    assert workers >= 1, "it was at work"
    assert done < TASKS
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    nodes.cluster.remove_node(victim)


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_set_read_from_a_store_and_written_to_it_is_that_of_the_local_engine(
    nodes: Nodes, server: Server, corpus: dict[str, Any], tmp_path: Path
) -> None:
    server.client().put_object(Bucket=BUCKET, Key="corpus/a.jsonl", Body=Path(corpus["input"]).read_bytes())
    corpus |= {"input": f"s3://{BUCKET}/corpus/a.jsonl"}
    write_shards(**corpus, output=tmp_path / "local", workers=0)
    shared = {"spool_dir": str(tmp_path / "shared"), "engine": "ray", "ray_address": nodes.address}
    write_shards(**corpus, output=f"s3://{BUCKET}/set", **shared)
    listed = server.client().list_objects_v2(Bucket=BUCKET, Prefix="set/")["Contents"]
    keys = {item["Key"] for item in listed}
    found = {
        key.removeprefix("set/"): server.client().get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys
    }
    assert found == contents(tmp_path / "local")
    assert not list((tmp_path / "shared").iterdir())


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_writing_that_slurm_ends_is_queued_again_and_goes_on_from_what_is_done(
    nodes: Nodes, corpus: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """recipes/slurm/write.sbatch, on the cluster that is there: of the real `ray symmetric-run`, only how it reads its arguments."""
    from ray.scripts.scripts import cli

    lines = Path(corpus["input"]).read_text().splitlines(keepends=True)
    for task in range(TASKS):
        (tmp_path / f"part-{task}.jsonl").write_text("".join(lines[task::TASKS]))
    corpus |= {"input": str(tmp_path / "part-*.jsonl")}
    host, _, port = nodes.address.rpartition(":")
    log, output = tmp_path / "log", tmp_path / "ray"
    flags = [word for name, value in (corpus | {"output": output}).items() for word in (f"--{name}", str(value))]
    job = slurm(tmp_path, nodes=f"{host},node-2", job=int(port) - FIRST_PORT, ray=RAY)
    with started([*script("write.sbatch"), *flags], log, RAY_ARGUMENTS=str(tmp_path / "arguments"), **job) as process:
        wait_until(lambda: len(list((output / ".spool").glob("*[0-9].json"))) >= 2, 60, log)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 0, log.read_text()
    assert calls(tmp_path) == f"requeue {int(port) - FIRST_PORT}\n"
    name, *arguments = (tmp_path / "arguments").read_text().splitlines()
    taken = cli.commands[name].make_context(name, arguments).params
    assert (taken["address"], taken["min_nodes"]) == (nodes.address, 2)
    caplog.set_level("INFO")
    for folder in (output, tmp_path / "local"):
        write_shards(**corpus, output=folder, workers=0)
    assert re.search(r"tokenize: goes on with \d+ tasks that an earlier run did", caplog.text)
    assert contents(output) == contents(tmp_path / "local")


@dataclass(frozen=True)
class DieFirst:
    """A step that takes its process along the first `times` times."""

    folder: Path
    times: int

    def __call__(self, item: int) -> int:
        before = len(list(self.folder.iterdir()))
        if item == 2 and before < self.times:
            (self.folder / f"{before}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item


def nothing(argument: Any) -> None:
    """What the workers of these steps do first."""


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_lost_worker_is_replaced_and_one_that_always_dies_is_given_up(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "_RETRIES", 1)
    (tmp_path / "shared").touch()
    for name in ("once", "always"):
        (tmp_path / name).mkdir()
    with (
        ray.connected(nodes.address, cores=1),
        ray.engine(None, nothing, None, tmp_path / "shared") as engine,
    ):
        assert sorted(engine.run(DieFirst(tmp_path / "once", 1), range(5))) == [0, 1, 4, 9, 16]
        assert len(list((tmp_path / "once").iterdir())) == 1, "it did die"
        with pytest.raises(
            TokentarError, match=r"Ray gave up a task \(\w+: .*\) after 1 more tries; .* goes on from what is done"
        ):
            list(engine.run(DieFirst(tmp_path / "always", 100), range(5)))


def refused(item: int) -> None:
    """A step on a node whose credentials are wrong."""
    raise StoreError("s3://a/b: access refused: 403; set AWS_ACCESS_KEY_ID")


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_node_that_a_store_refuses_is_named(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    said = (
        rf"s3://a/b: access refused: .*; so on node {socket.gethostname()}, whose variables are those that `ray start`"
    )
    with (
        ray.connected(nodes.address, cores=1),
        ray.engine(None, nothing, None, tmp_path / "shared") as engine,
        pytest.raises(StoreError, match=said),
    ):
        list(engine.run(refused, range(1)))


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_an_error_in_a_document_comes_from_a_ray_of_our_own_as_it_comes_from_here(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    with open(corpus["input"], "a") as file:
        file.write('{"text": 5}\n')
    errors = []
    for settings in ({"workers": 0}, {"engine": "ray", "workers": 1}):
        with pytest.raises(TokentarError) as raised:
            write_shards(**corpus, output=tmp_path / "out", **settings)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]
    assert "a.jsonl:" in errors[0][1]
