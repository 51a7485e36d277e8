"""A set in a store is the set on disk, complete or not there at all (G2, G3; A11, A12)."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.written import contents, jsonl
from tests.object_store.proxy import SLOW_DOWN, Fault, FaultProxy
from tests.object_store.server import Server
from tests.torchrun.start import ROOT
from tokentar import Manifest, SetError, open_shards, write_shards
from tokentar.__main__ import main
from tokentar.shard_writer.errors import StoreError
from tokentar.shard_writer.maintenance.reshard import reshard
from tokentar.shard_writer.storage.urls import Url

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
Write = Callable[..., Manifest]


@pytest.fixture
def write(t0: Any, tmp_path: Path) -> Write:
    """A hundred documents as six shards, their provenance beside them; documents=N: other ones."""

    def run(output: Any, documents: int = 100, **settings: Any) -> Manifest:
        corpus = tmp_path / f"{documents}.jsonl"
        if not corpus.exists():  # its age is one of the things by which a run knows its own work
            jsonl(corpus, [f"document number {i}" for i in range(documents)])
        return write_shards(
            input=str(corpus), tokenizer=t0, output=output, seq_length=16, num_shards=6, workers=0, **settings
        )

    return run


def objects(server: Server, url: Url) -> dict[str, bytes]:
    """Everything below a URL, by a client that goes past the proxy."""
    client, bucket = server.client(), url.bucket.root.removeprefix("s3://")
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{url.key}/").get("Contents", [])
    names = [each["Key"].removeprefix(f"{url.key}/") for each in listed]
    return {name: client.get_object(Bucket=bucket, Key=f"{url.key}/{name}")["Body"].read() for name in names}


def test_a_set_in_a_store_has_the_bytes_of_one_on_disk(
    server: Server, write: Write, url: Url, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local, stored = write(tmp_path / "out"), write(str(url))
    assert objects(server, url) == contents(tmp_path / "out")
    assert (stored.info, stored.shards) == (local.info, local.shards)
    assert contents(tmp_path / "cache") == {}, "nothing is left of what was under way"
    assert main(["verify", str(url)]) == 0
    assert f"{url}: 6 shards" in capsys.readouterr().out


def test_reshard_reads_and_writes_stores(server: Server, write: Write, url: Url, tmp_path: Path) -> None:
    reshard(write(tmp_path / "out").root, tmp_path / "two", num_shards=2)
    write(url)
    reshard(url, url.parent / "two", num_shards=2)
    assert objects(server, url.parent / "two") == contents(tmp_path / "two")


def test_a_shard_that_cannot_be_uploaded_ends_the_run_and_the_next_one_sends_the_rest(
    server: Server, proxy: FaultProxy, write: Write, url: Url, tmp_path: Path
) -> None:
    proxy.plan(Fault(match="PUT /shards/" + (url / "train-000003.tar").key, reply=SLOW_DOWN, times=None))
    with pytest.raises(StoreError, match=re.escape(f"{url}/train-000003.tar: 503")) as caught:
        write(url)
    (copy,) = re.findall(r"the local copy is (\S+),", str(caught.value))
    there = objects(server, url)
    assert {"train-000003.tar", "manifest.jsonl", "dataset.json"}.isdisjoint(there)
    proxy.plan(None)
    manifest = write(url)
    assert {line.split()[1].rpartition("/")[2] for line in proxy.requests if line.startswith("PUT")} == {
        *(name for entry in manifest.shards for name in entry.files if name not in there),
        "manifest.jsonl",
        "dataset.json",
    }
    write(tmp_path / "out")
    assert objects(server, url) == contents(tmp_path / "out")
    assert not Path(copy).exists()


def test_a_writer_killed_in_its_upload_leaves_no_set_and_the_same_command_completes_it(
    server: Server, proxy: FaultProxy, write: Write, url: Url, tokenizer: str, tmp_path: Path
) -> None:
    corpus = jsonl(tmp_path / "x.jsonl", [f"document number {i}" for i in range(100)])
    command = [sys.executable, "-m", "tokentar", "write", "--input", corpus, "--tokenizer", tokenizer]
    command += ["--seq_length", "16", "--num_shards", "6", "--workers", "0"]
    proxy.plan(Fault(match="PUT /shards/" + (url / "train-000004.tar").key, times=None, cut_upload_at=100, stall=True))
    with subprocess.Popen([*command, "--output", str(url)], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while proxy.fired == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # for the others to arrive
        process.send_signal(signal.SIGKILL)
    there = objects(server, url)
    assert "dataset.json" not in there
    assert "train-000003.tar" in there
    with pytest.raises(SetError, match=r"no dataset\.json"):
        open_shards(url)
    proxy.plan(None)
    subprocess.run([*command, "--output", str(url)], cwd=ROOT, check=True, capture_output=True, timeout=60)
    sent = {line.split()[1].rpartition("/")[2] for line in proxy.requests if line.startswith("PUT")}
    assert sent.isdisjoint(name for name in there if name.endswith((".tar", ".parquet")))
    subprocess.run([*command, "--output", tmp_path / "out"], cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert objects(server, url) == contents(tmp_path / "out")


def test_a_set_in_a_store_is_never_mixed_with_another(server: Server, write: Write, url: Url, tmp_path: Path) -> None:
    write(url)
    before = objects(server, url)
    with pytest.raises(SetError, match=re.escape("already holds dataset.json, manifest.jsonl, train-000000.tar")):
        write(url, documents=50)
    assert objects(server, url) == before
    write(url, documents=50, overwrite=True, provenance=False)
    write(tmp_path / "out", documents=50, provenance=False)
    assert objects(server, url) == contents(tmp_path / "out")


def test_the_same_writing_to_a_store_again_sends_nothing(proxy: FaultProxy, write: Write, url: Url) -> None:
    first = write(url)
    proxy.requests.clear()
    assert write(url).info == first.info
    assert {request.split()[0] for request in proxy.requests} <= {"GET", "HEAD"}
    proxy.requests.clear()
    write(url, overwrite=True)
    assert "PUT" in {request.split()[0] for request in proxy.requests}


def test_verify_names_what_differs_in_a_store(write: Write, url: Url, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write(url)
    whole = (url / "train-000001.tar").read_bytes()
    (url / "train-000001.tar").put(whole[:600] + b"?" + whole[601:])
    (url / "train-000002.tar").put(whole[: manifest.info.row_format.stride * 2])
    (url / "train-000003.tar").delete()
    (url / "train-000009.tar").put(b"stray")
    assert main(["verify", str(url)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert re.search("train-000001.tar: checksum [0-9a-f]{16}, needed", lines[0])
    rows = manifest.shards[2].num_sequences
    assert f"train-000002.tar: {len(whole[: manifest.info.row_format.stride * 2])} bytes" in lines[1]
    assert f"2 of {rows} sequences are there" in lines[1]
    assert "train-000003.tar: cannot be read: no such object" in lines[2]
    assert "train-000009.tar: not in the manifest" in lines[3]


def test_show_prints_sequences_of_a_store(
    write: Write, url: Url, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = write(tmp_path / "out")
    write(url)
    printed = []
    for place in (local.root, url):
        assert main(["show", str(place), "--rows", "2", "--tokenizer", tokenizer]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "cument number" in printed[0]
