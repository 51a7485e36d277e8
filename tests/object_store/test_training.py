"""Reading from a store that fails: the undisturbed order, or an error that names the URL; never part of a shard (G3, G5, G10)."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.commands import plan_main as plan
from tests.helpers.marked import write_marked
from tests.helpers.worlds import job, next_batches
from tests.object_store.proxy import HTML_PAGE, NO_SUCH_KEY, SLOW_DOWN, Fault, FaultProxy, response
from tests.object_store.server import SECRET, Server
from tokentar import Access, Manifest, SetError, ShardLoader
from tokentar.shard_writer.errors import StoreError
from tokentar.shard_writer.storage import places
from tokentar.shard_writer.storage.client import Patience
from tokentar.shard_writer.storage.urls import Url

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
ROWS, STRIDE, SIZE = 4, 1024, 10_240  # of a shard of the marked set: sequences, bytes of one, bytes of all
Read = Callable[..., list[list[list[int]]]]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Twelve shards of four sequences."""
    return write_marked(tmp_path / "set", 12, ROWS, vocab_length=300)


@pytest.fixture
def url(server: Server, url: Url, manifest: Manifest) -> Url:
    """The same set in the store, put there past the proxy."""
    server.put_folder(manifest.folder, url.key)
    return url


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The batches of one epoch of each of two ranks."""

    def batches(shards: Any, **settings: Any) -> list[list[list[int]]]:
        access = Access(cache_dir=str(tmp_path / "shards"), **settings)
        loaders = job(shards, 2, batch_size=4, streams=4, access=access)
        return [next_batches(loader, None) for loader in loaders]

    return batches


PASSING = {
    "503-twice": Fault(match="train-000005", reply=SLOW_DOWN, times=2),
    "cut-at-half": Fault(match="train-000005", cut_at=5120, in_body=True),
    "cut-between-members": Fault(match="train-000005", cut_at=2 * STRIDE, in_body=True),
    "cut-in-a-header": Fault(match="train-000005", cut_at=2 * STRIDE + 100, in_body=True),
    "cut-before-the-body": Fault(match="train-000005", cut_at=40),
    "each-cut-once": Fault(match=".tar", cut_at=3000, in_body=True, times=12),
    "stall": Fault(match="train-000005", cut_at=5120, in_body=True, stall=True),
    "50-kB-a-second": Fault(match=".tar", rate=50_000, times=12),
    "flipped-bit": Fault(match="train-000005", flip_at=700, in_body=True),
    "html-page": Fault(match="train-000005", reply=HTML_PAGE),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_after_a_fault_that_passes_the_order_is_that_of_an_undisturbed_run(
    proxy: FaultProxy, url: Url, manifest: Manifest, read: Read, fault: Fault, tmp_path: Path
) -> None:
    proxy.plan(fault)
    assert read(url) == read(manifest)
    assert proxy.fired == fault.times
    cached = {path.read_bytes() for path in (tmp_path / "shards").glob("*.tar")}
    assert cached == {manifest.path(entry).read_bytes() for entry in manifest.shards}


EXPIRED = response("400 Bad Request", b"<Error><Code>ExpiredToken</Code><Message>hidden</Message></Error>")
DENIED = response("403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>hidden</Message></Error>")
LASTING = {
    "503": (StoreError, {"reply": SLOW_DOWN}, r"503 .*SlowDown.* \(3 attempts\); try again later"),
    "cut": (StoreError, {"cut_at": 100, "in_body": True}, r".*\(3 attempts\); try again later"),
    "403": (StoreError, {"reply": DENIED}, "access refused: 403 .*; set AWS_ACCESS_KEY_ID"),
    "expired": (StoreError, {"reply": EXPIRED}, "access refused: 400 .*ExpiredToken.*; set AWS_ACCESS_KEY_ID"),
    "flipped-bit": (SetError, {"flip_at": 700, "in_body": True}, "checksum [0-9a-f]{16}, needed [0-9a-f]{16}"),
    "html-page": (SetError, {"reply": HTML_PAGE}, "56 bytes, needed 10240; .* no shard but a web page"),
    "404": (SetError, {"reply": NO_SUCH_KEY}, "no such object; `tokentar verify` names"),
}


@pytest.mark.parametrize(("kind", "fault", "text"), LASTING.values(), ids=LASTING)
def test_a_fault_that_lasts_is_an_error_that_names_url_and_way_out(
    proxy: FaultProxy,
    url: Url,
    manifest: Manifest,
    read: Read,
    kind: type[Exception],
    fault: dict[str, Any],
    text: str,
    tmp_path: Path,
) -> None:
    proxy.plan(Fault(match="train-000005", times=None, **fault))
    with pytest.raises(kind, match=re.escape(f"{url}/train-000005.tar: ") + text) as caught:
        read(url)
    assert "hidden" not in str(caught.value)
    assert not list((tmp_path / "shards").glob(f"{manifest.shards[5].xxh3}*"))


@pytest.mark.parametrize(
    "fault", [{"flip_at": 700, "in_body": True}, {"reply": NO_SUCH_KEY}], ids=["flipped-bit", "404"]
)
def test_a_damaged_object_may_be_left_out_and_changes_nothing_else(
    proxy: FaultProxy, url: Url, manifest: Manifest, fault: dict[str, Any], tmp_path: Path
) -> None:
    """Shard 5 is sequences 20 to 23."""
    proxy.plan(Fault(match="train-000005", times=None, **fault))
    access = Access(cache_dir=str(tmp_path / "shards"), bad_shards="skip")
    whole = job(manifest, 2, batch_size=4, streams=4)
    loaders = job(url, 2, batch_size=4, streams=4, access=access)
    for loader, wanted in zip(loaders, whole, strict=True):
        found = [loader.sample_numbers.tolist() for _ in loader]
        assert found == [[n for n in batch if n not in range(20, 24)] for batch in next_batches(wanted, None)]
    assert sum(loader.left_out for loader in loaders) == 4


def test_workers_read_the_same_order(proxy: FaultProxy, url: Url, manifest: Manifest, tmp_path: Path) -> None:
    proxy.plan(Fault(match=".tar", cut_at=3000, in_body=True, times=12))
    access = Access(cache_dir=str(tmp_path / "shards"))
    whole, loader = (
        ShardLoader(shards, batch_size=4, streams=4, num_workers=workers, rank=0, world_size=1, access=access)
        for shards, workers in ((manifest, 0), (url, 2))
    )
    assert [batch["input_ids"][:, 0].tolist() for batch in loader] == next_batches(whole, None)
    assert loader.pool.notes.total().fetched == 12


def test_two_ranks_of_two_jobs_fetch_each_shard_once_and_wait_for_none_that_is_there(
    proxy: FaultProxy, url: Url, manifest: Manifest, tmp_path: Path
) -> None:
    """One job has 24 streams, so its ranks share shards. Locks are those of open files, so threads stand for processes."""
    proxy.plan(Fault(match=".tar", rate=200_000, times=None))
    access = Access(cache_dir=str(tmp_path / "shards"))
    here, there = (
        [loader for streams in (4, 24) for loader in job(shards, 2, batch_size=4, streams=streams, access=access)]
        for shards in (manifest, url)
    )
    for batches, wanted in zip(zip(*there, strict=True), zip(*here, strict=True), strict=True):
        for batch, other in zip(batches, wanted, strict=True):
            assert torch.equal(batch["input_ids"], other["input_ids"])
    assert sorted(proxy.gets()) == [entry.file_name for entry in manifest.shards]


def test_a_server_that_is_killed_and_comes_back_changes_nothing(
    server: Server, url: Url, manifest: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    patience = Patience(attempts=40, first_pause=0.2, longest_pause=0.5, stall_seconds=2, connect_seconds=2)
    settings: dict[str, Any] = {"batch_size": 4, "streams": 1}
    wanted = next_batches(ShardLoader(manifest, **settings), None)
    access = Access(cache_dir=str(tmp_path / "shards"), cache_bytes=4 * SIZE)  # one stream, one ahead, two to evaluate
    loader = ShardLoader(places.place(str(url), patience), access=access, **settings)
    found = []
    for batch in loader:
        found.append(batch["input_ids"][:, 0].tolist())
        if len(found) == 3:
            server.kill()
            threading.Timer(0.5, server.start).start()
    assert found == wanted
    assert "again in" in caplog.text


def test_the_plan_of_a_set_in_a_store_is_that_of_the_set_on_disk(
    url: Url, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for place in (manifest.root, url, url / "train-{000000..000011}.tar"):
        assert plan(["--shards", str(place), "--world_size", "2", "--max_tokens", "1000"]) == 0
        printed.append(capsys.readouterr().out.replace(str(url), str(manifest.root)))
    assert printed == [printed[0]] * 3
    assert printed[0].startswith(f"{manifest.root}: 48 sequences × 8 tokens in 12 shards")


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_credentials_end_a_run_before_it_begins(
    url: Url, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "not-the-right-one")
    proxy.plan(None)
    with pytest.raises(StoreError, match=r"dataset\.json: access refused: 403.*; set AWS_ACCESS_KEY_ID") as caught:
        ShardLoader(places.place(str(url)), batch_size=4)
    assert "not-the-right-one" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert len(proxy.requests) == 1
