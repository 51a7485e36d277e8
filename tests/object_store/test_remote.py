"""Objects are there whole or not at all, and are what was put, whatever happens on the way (A12)."""

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.object_store.proxy import HTML_PAGE, NO_SUCH_KEY, SLOW_DOWN, Fault, FaultProxy
from tests.object_store.server import HASTY, SECRET, Server
from tokentar import SetError, SettingError, TokentarError
from tokentar.shard_writer.errors import StoreError
from tokentar.shard_writer.storage import places
from tokentar.shard_writer.storage.client import PART_BYTES, Patience
from tokentar.shard_writer.storage.urls import Url

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def a_file(path: Path, size: int) -> tuple[Path, int, str]:
    """A file, its size and its checksum."""
    content = os.urandom(size)
    path.write_bytes(content)
    return path, size, xxhash.xxh3_64_hexdigest(content)


def on_server(server: Server, url: Url) -> bytes | None:
    """What the store holds under a URL, by a client that goes past the proxy."""
    client = server.client()
    try:
        found: bytes = client.get_object(Bucket=url.bucket.root.removeprefix("s3://"), Key=url.key)["Body"].read()
    except client.exceptions.NoSuchKey:
        return None
    return found


@pytest.mark.parametrize("size", [0, 1000, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES])
def test_a_file_goes_up_whole_and_is_not_sent_again(
    server: Server, proxy: FaultProxy, url: Url, tmp_path: Path, size: int
) -> None:
    path, *expected = a_file(tmp_path / "x", size)
    (url / "x.tar").upload(path, *expected)
    assert on_server(server, url / "x.tar") == path.read_bytes()
    proxy.plan(None)
    (url / "x.tar").upload(path, *expected)
    assert [line.split()[0] for line in proxy.requests] == ["HEAD"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(match="PUT", reply=SLOW_DOWN, times=2),
        Fault(match="PUT", cut_upload_at=300_000, times=2),
        Fault(match="PUT", cut_upload_at=300_000, stall=True),
    ],
    ids=["503-twice", "cut", "stall"],
)
def test_an_upload_goes_on_after_a_fault(
    server: Server, proxy: FaultProxy, url: Url, tmp_path: Path, fault: Fault
) -> None:
    path, *expected = a_file(tmp_path / "x", 1_000_000)
    proxy.plan(fault)
    (url / "x.tar").upload(path, *expected)
    assert proxy.fired == fault.times
    assert on_server(server, url / "x.tar") == path.read_bytes()


@pytest.mark.parametrize(
    "fault", [Fault(match="PUT", reply=SLOW_DOWN, times=None), Fault(match="PUT", cut_upload_at=9000, times=None)]
)
def test_an_upload_that_always_fails_names_url_and_local_copy_and_leaves_nothing(
    server: Server, proxy: FaultProxy, url: Url, tmp_path: Path, fault: Fault
) -> None:
    path, *expected = a_file(tmp_path / "x", 1_000_000)
    proxy.plan(fault)
    with pytest.raises(StoreError, match=re.escape(f"{url}/x.tar: ") + ".*3 attempts.*" + re.escape(str(path))):
        (url / "x.tar").upload(path, *expected)
    assert on_server(server, url / "x.tar") is None


def test_an_object_of_the_same_size_and_other_bytes_is_replaced(server: Server, url: Url, tmp_path: Path) -> None:
    (url / "x.tar").upload(*a_file(tmp_path / "old", 5000))
    path, *expected = a_file(tmp_path / "new", 5000)
    (url / "x.tar").upload(path, *expected)
    assert on_server(server, url / "x.tar") == path.read_bytes()


def test_unfinished_uploads_of_a_killed_run_are_dropped(server: Server, url: Url) -> None:
    client, name, other = server.client(), url.bucket.root.removeprefix("s3://"), f"{url.parent.key}/set2/x.tar"
    for key in (f"{url.key}/x.tar", other):
        upload = client.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
        client.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=1, Body=b"part")
    url.abort_uploads()
    left = client.list_multipart_uploads(Bucket=name, Prefix=url.parent.key).get("Uploads", [])
    assert [upload["Key"] for upload in left] == [other]


def test_one_of_two_writers_creates_a_set(url: Url) -> None:
    (url / "dataset.json").create(b"one")
    (url / "dataset.json").create(b"one")  # as after an answer that was lost
    with pytest.raises(SetError, match=re.escape(f"{url}/dataset.json: another writer")):
        (url / "dataset.json").create(b"other")
    assert (url / "dataset.json").read_bytes() == b"one"


def test_listings_are_sorted_and_stop_at_the_folder(url: Url) -> None:
    for name in ("b/c", "a", "b-c", "b", "B"):
        (url / name).put(b"x")
    (url.parent / "set2/a").put(b"x")
    assert [found.key.removeprefix(url.key) for found, _ in url.files()] == ["/B", "/a", "/b", "/b-c", "/b/c"]
    assert url.names() == ["B", "a", "b", "b-c"]


DOWNLOAD_FAULTS = {
    "503-twice": Fault(match="GET", reply=SLOW_DOWN, times=2),
    "cut-in-header": Fault(match="GET", cut_at=40),
    "cut-at-half": Fault(match="GET", cut_at=500_000, times=2),
    "stall": Fault(match="GET", cut_at=500_000, stall=True),
    "flipped-bit": Fault(match="GET", flip_at=500_000),
    "html-page": Fault(match="GET", reply=HTML_PAGE),
}


@pytest.mark.parametrize("fault", DOWNLOAD_FAULTS.values(), ids=DOWNLOAD_FAULTS)
def test_a_download_goes_on_after_a_fault(proxy: FaultProxy, url: Url, tmp_path: Path, fault: Fault) -> None:
    path, size, xxh3 = a_file(tmp_path / "x", 1_000_000)
    (url / "x.tar").upload(path, size, xxh3)
    proxy.plan(fault)
    with open(tmp_path / "y", "w+b") as file:
        (url / "x.tar").download(file, size, xxh3)
    assert proxy.fired == fault.times
    assert (tmp_path / "y").read_bytes() == path.read_bytes()


FINAL = {
    "503": (StoreError, Fault(match="GET", reply=SLOW_DOWN, times=None), "503 .*SlowDown.*3 attempts"),
    "cut": (StoreError, Fault(match="GET", cut_at=5000, times=None), "3 attempts"),
    "flipped-bit": (
        SetError,
        Fault(match="GET", flip_at=500_000, times=None),
        "checksum [0-9a-f]{16}, needed [0-9a-f]{16}",
    ),
    "html-page": (SetError, Fault(match="GET", reply=HTML_PAGE, times=None), "web page"),
    "404": (SetError, Fault(match="GET", reply=NO_SUCH_KEY, times=None), "no such object"),
}


@pytest.mark.parametrize(("kind", "fault", "text"), FINAL.values(), ids=FINAL)
def test_a_fault_that_stays_is_an_error_that_names_the_url(
    proxy: FaultProxy, url: Url, tmp_path: Path, kind: type[TokentarError], fault: Fault, text: str
) -> None:
    path, size, xxh3 = a_file(tmp_path / "x", 1_000_000)
    (url / "x.tar").upload(path, size, xxh3)
    proxy.plan(fault)
    with (
        open(tmp_path / "y", "w+b") as file,
        pytest.raises(kind, match=re.escape(f"{url}/x.tar: ") + ".*" + text),
    ):
        (url / "x.tar").download(file, size, xxh3)


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_credentials_are_told_at_once_and_without_them(
    there: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "not-the-right-one")
    proxy.plan(None)
    url: Any = places.place(f"{there}/set/dataset.json", HASTY)
    with pytest.raises(StoreError, match=r"access refused: .*AWS_ACCESS_KEY_ID") as caught:
        url.read_bytes()
    assert "not-the-right-one" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert len(proxy.requests) == 1


def test_credentials_and_endpoint_come_from_the_files_of_aws(
    there: str, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = server.environment()
    for name in environment:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    (tmp_path / "config").write_text(f"[profile mine]\nregion = us-east-1\nendpoint_url = {server.url}\n")
    keys = (environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"])
    (tmp_path / "keys").write_text("[mine]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(*keys))
    for name, value in (("CONFIG_FILE", "config"), ("SHARED_CREDENTIALS_FILE", "keys")):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / value))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    url: Any = places.place(f"{there}/x", HASTY)
    url.put(b"found")
    assert url.read_bytes() == b"found"


def test_a_server_that_is_killed_and_comes_back_ends_no_upload(
    server: Server, there: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    patience = Patience(attempts=12, first_pause=0.5, longest_pause=2, stall_seconds=2, upload_seconds=3)
    url: Any = places.place(f"{there}/set", patience)
    files = [a_file(tmp_path / f"{i}", 3 * PART_BYTES) for i in range(2)]
    upload = threading.Thread(target=lambda: [(url / file[0].name).upload(*file) for file in files])
    upload.start()
    time.sleep(0.4)
    server.kill()
    server.start()
    upload.join(60)
    assert "again in" in caplog.text
    assert [on_server(server, url / file[0].name) == file[0].read_bytes() for file in files] == [True, True]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ftp://host/x", "ftp://: no store"),
        ("s3://", "names no bucket"),
        ("s3:/bucket/set", "one slash behind s3:, needed: two"),
        ("hf://datasets/user", "names no bucket or repository"),
        ("s3://KEY:hidden@bucket/x", "credentials within a URL"),
        ("https://host/x.tar?X-Amz-Signature=hidden", "query or fragment"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingError, match=re.escape(text)) as caught:
        places.place(name)
    assert "hidden" not in str(caught.value)


def test_names_with_no_scheme_and_pipes_are_paths() -> None:
    assert places.place("a/b") == Path("a/b")
    assert places.place("file:///a/b") == Path("/a/b")
    assert places.place("pipe:touch x") == Path("pipe:touch x")
