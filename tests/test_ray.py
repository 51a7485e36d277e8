"""Ray as an engine: the bytes of the local one (G2), also when workers and nodes are lost under way; what is wrong is said at once."""

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from shard_writer import SettingError, TokentarError, ray_engine, sources, write_shards
from shard_writer.arguments import WriteArguments
from shard_writer.headroom import HeadRoom, estimate, tell
from shard_writer.ray_engine import Setup
from shard_writer.versions import difference, versions
from tests.tokenizers import byte_tokenizer
from tests.written import contents, jsonl

TASKS, TASK_BYTES = 16, 100_000


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
def nodes() -> Iterator[Nodes]:
    """A cluster of two nodes."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = Nodes(cluster)
    nodes.add()
    nodes.add()
    yield nodes
    cluster.shutdown()


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What write_shards is told of a corpus of TASKS tasks."""
    monkeypatch.setattr(sources, "_SMALLEST_TASK", TASK_BYTES)
    monkeypatch.setattr(sources, "_LARGEST_TASK", TASK_BYTES)
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
    monkeypatch.setattr(ray_engine, "_RETRIES", 1)
    (tmp_path / "shared").touch()
    for name in ("once", "always"):
        (tmp_path / name).mkdir()
    with (
        ray_engine.connected(nodes.address, cores=1),
        ray_engine.engine(None, nothing, None, tmp_path / "shared") as engine,
    ):
        assert sorted(engine.run(DieFirst(tmp_path / "once", 1), range(5))) == [0, 1, 4, 9, 16]
        assert len(list((tmp_path / "once").iterdir())) == 1, "it did die"
        with pytest.raises(
            TokentarError, match=r"Ray gave up a task \(\w+: .*\) after 1 more tries; .* goes on from what is done"
        ):
            list(engine.run(DieFirst(tmp_path / "always", 100), range(5)))


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


# Without a cluster


def test_ray_that_is_not_installed_is_told_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    source = jsonl(tmp_path / "a.jsonl", ["ab"])
    with pytest.raises(SettingError, match=r"engine: ray, but Ray is not installed; `pip install tokentar\[ray\]`"):
        write_shards(input=source, tokenizer=byte_tokenizer(), output=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "ray_address: 127.0.0.1:1 does not answer .*; start one with `ray start --head`"),
        ("nowhere.invalid:6379", "ray_address: nowhere.invalid:6379 does not answer"),
        ("ray://127.0.0.1:10001", "ray_address: ray://127.0.0.1:10001, needed: HOST:PORT"),
        ("127.0.0.1", "ray_address: 127.0.0.1, needed: HOST:PORT"),
    ],
)
def test_an_address_where_no_ray_is_stops_before_anything_is_written(
    address: str, message: str, tmp_path: Path
) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["ab"])
    with pytest.raises(SettingError, match=message):
        write_shards(
            input=source, tokenizer=byte_tokenizer(), output=tmp_path / "out", engine="ray", ray_address=address
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "slurm"}, "engine: 'slurm', needed: local or ray"),
        ({"ray_address": "a:1"}, "ray_address: 'a:1', needed: engine: ray"),
        ({"engine": "ray", "workers": 0}, "workers: 0, needed: 1 or more with engine: ray"),
    ],
)
def test_settings_that_do_not_fit_the_engine_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        WriteArguments(input=["a"], tokenizer="t", output="o", **settings)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """What a worker is told whose node is as it should be."""
    (tmp_path / "plan.json").write_text("plan")
    return Setup(
        prepare=nothing,
        argument=None,
        shared_file=tmp_path / "plan.json",
        content=b"plan",
        folder=tmp_path,
        versions=versions(),
    )


def test_a_node_with_other_code_is_named_with_what_differs(setup: Setup) -> None:
    old = replace(setup, versions=versions() | {"numpy": "1.0"})
    message = rf"node {socket.gethostname()} runs other code: numpy \S+ against 1\.0 where the command runs"
    with pytest.raises(TokentarError, match=message):
        old.begin()
    assert difference(versions(), versions() | {"tokentar": "0"}) == f"tokentar {versions()['tokentar']} against 0"


@pytest.mark.parametrize("seen", [None, b"of another folder"])
def test_a_node_that_does_not_see_the_output_is_named(setup: Setup, seen: bytes | None) -> None:
    setup.shared_file.unlink()
    if seen is not None:
        setup.shared_file.write_bytes(seen)
    with pytest.raises(TokentarError, match=rf"node {socket.gethostname()} does not see {setup.shared_file.parent} as"):
        setup.begin()


def test_room_is_estimated_from_the_text() -> None:
    """8 TB of text: 2e12 tokens of 4 bytes, 4e9 documents of 32."""
    room = HeadRoom(text=8 * 10**12, tasks=250_000, cells=4096, token_bytes=4)
    assert room.set_bytes == 8 * 10**12
    assert room.spool_bytes == 8 * 10**12 + 4 * 10**9 * 32
    assert room.parts == 476_838, "of 16 MiB"
    assert room.ranges == 476_838 * 4096
    assert "about 8,128.0 GB of spool and 8,000.0 GB of shards" in room.words()


def test_compressed_input_counts_fourfold_and_too_little_room_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import gzip

    lines = b'{"text": "ab"}\n' * 1000
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(packed := gzip.compress(lines))
    source = sources.plan_files(
        [str(tmp_path)], text_column="text", input_format="auto", dataset_config=None, dataset_split="train"
    )
    room = estimate(source, 1, 2)
    assert room is not None
    assert (room.text, room.tasks) == (15_000 + 4 * len(packed), 2)
    tell(room, tmp_path)
    assert "GB free" not in caplog.text
    tell(replace(room, text=16 * shutil.disk_usage(tmp_path).total), tmp_path)
    assert "GB free, about" in caplog.text
